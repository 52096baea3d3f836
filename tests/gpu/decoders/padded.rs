//! Texts of several lengths beside each other, filled up on the left: by a mask that the module keeps, and by one that it is given.

use candle::{DType, Device, Module, Tensor, D};
use candle_nn::ops::{rms_norm, softmax_last_dim};
use candle_nn::rotary_emb::rope;
use candle_transformers::models::{mistral, qwen2};
use opara_candle::{DecoderError, Error, OnUncapturable, OparaExecutor};
use opara_examples::relative_error;
use serde_json::json;

use super::behaviour::{qwen2, VOCABULARY};
use crate::common::gpu;

pub fn strict() -> opara_candle::Builder {
    OparaExecutor::builder().on_uncapturable(OnUncapturable::Error)
}

/// A decoder of one layer for texts of several lengths: token 0 before a text is padding, which a mask hides. The mask grows with the
/// text.
#[derive(Clone)]
struct Padded {
    table: Tensor,
    mask: Option<Tensor>,
    cache: Option<[Tensor; 2]>,
}

impl Padded {
    fn forward(&mut self, tokens: &Tensor, at: usize) -> candle::Result<Tensor> {
        let (rows, count) = tokens.dims2()?;
        let (device, dtype) = (tokens.device(), self.table.dtype());
        let x = self.table.index_select(&tokens.flatten_all()?, 0)?.reshape((rows, count, 2, 64))?;
        let x = x.transpose(1, 2)?.contiguous()?;
        let low = Tensor::new(-1e4f32, device)?.to_dtype(dtype)?;
        let new = Tensor::zeros((rows, 1, 1, count), dtype, device)?;
        let mask = match &self.mask {
            Some(mask) => Tensor::cat(&[mask, &new], 3)?,
            None => tokens.eq(0u32)?.reshape((rows, 1, 1, count))?.where_cond(&low.broadcast_as(new.shape())?, &new)?,
        };
        let [k, v] = match &self.cache {
            Some([k, v]) => [Tensor::cat(&[k, &x], 2)?, Tensor::cat(&[v, &x], 2)?],
            None => [x.clone(), x.clone()],
        };
        let mut scores = (x.matmul(&k.t()?)? * 0.125)?.broadcast_add(&mask)?;
        if count > 1 {
            let hidden = |i: usize| (0..at + count).map(move |j| if j > at + i { -1e4f32 } else { 0. });
            let causal = Tensor::from_iter((0..count).flat_map(hidden), device)?.reshape((count, at + count))?;
            scores = scores.broadcast_add(&causal.to_dtype(dtype)?)?;
        }
        let y = candle_nn::ops::softmax_last_dim(&scores)?.matmul(&v)?;
        (self.mask, self.cache) = (Some(mask), Some([k, v]));
        y.narrow(2, count - 1, 1)?.transpose(1, 2)?.reshape((rows, 128))?.matmul(&self.table.t()?)
    }
}

#[test]
fn texts_of_several_lengths_go_on_together_behind_padding() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let padded = |tokens: u32, pads: [u32; 3]| -> candle::Result<Tensor> {
        let of = |pad: u32| Tensor::from_iter((0..tokens).map(|i| if i < pad { 0 } else { 1 + i * 7 % 290 }), &device);
        Tensor::stack(&[of(pads[0])?, of(pads[1])?, of(pads[2])?], 0)
    };
    for (dtype, tolerance) in [(DType::F32, 1e-4), (DType::F16, 1e-2)] {
        let table = opara_weights::seeded(1, dtype, &device).get((VOCABULARY, 128), "table")?;
        let model = Padded { table, mask: None, cache: None };
        let mut fast = strict().build_decoder(model.clone(), Padded::forward, &padded(6, [0, 3, 1])?, 64)?;
        // Other paddings than those of the example.
        for (count, pads) in [(9, [5, 0, 2]), (30, [0, 29, 13])] {
            let (mut own, prompt) = (model.clone(), padded(count, pads)?);
            let mut pair = (own.forward(&prompt, 0)?, fast.forward(&prompt, 0)?);
            for at in count as usize..40 {
                let apart = relative_error(&pair.1, &pair.0)?;
                assert!(apart <= tolerance, "{apart} behind {at} tokens in {dtype:?}");
                let token = pair.0.argmax(D::Minus1)?.reshape((3, 1))?;
                pair = (own.forward(&token, at)?, fast.forward(&token, at)?);
            }
            assert!(format!("{fast:?}").contains("is_replayed: true"), "{fast:?}");
        }
    }
    Ok(())
}

/// A decoder of two layers that is told which tokens count: keys of others are hidden, and the places of a row begin behind its padding.
#[derive(Clone)]
struct Masked {
    table: Tensor,
    norm: Tensor,
    layers: Vec<[Tensor; 2]>,
    angles: [Tensor; 2],
    caches: Vec<Option<[Tensor; 2]>>,
}

impl Masked {
    fn new(dtype: DType, device: &Device) -> candle::Result<Self> {
        let of = |name: &str, shape: (usize, usize)| opara_weights::seeded(5, dtype, device).get(shape, name);
        let layer = |at: usize| Ok([of(&format!("{at}.qkv"), (3 * 128, 128))?, of(&format!("{at}.out"), (128, 128))?]);
        let angle = |at: usize| (at / 32) as f32 * 10000f32.powf(-((at % 32) as f32) / 32.);
        let angles = Tensor::from_iter((0..64 * 32).map(angle), device)?.reshape((64, 32))?;
        Ok(Self {
            table: of("table", (VOCABULARY, 128))?,
            norm: Tensor::ones(128, dtype, device)?,
            layers: (0..2).map(layer).collect::<candle::Result<_>>()?,
            angles: [angles.cos()?.to_dtype(dtype)?, angles.sin()?.to_dtype(dtype)?],
            caches: vec![None, None],
        })
    }

    fn forward(&mut self, tokens: &Tensor, at: usize, mask: &Tensor) -> candle::Result<Tensor> {
        let ((rows, count), dtype) = (tokens.dims2()?, self.table.dtype());
        let counted = mask.to_dtype(DType::F32)?;
        let places = match count {
            1 => counted.sum_keepdim(1)?,
            _ => counted.cumsum(1)?.narrow(1, at, count)?,
        };
        let places = (places - 1.)?.relu()?.to_dtype(DType::U32)?.flatten_all()?;
        let [cos, sin] =
            [&self.angles[0], &self.angles[1]].map(|of| of.index_select(&places, 0)?.reshape((rows, count, 32)));
        let (cos, sin) = (cos?, sin?);
        let hidden = bias(mask, count, dtype)?;
        let mut x = self.table.index_select(&tokens.flatten_all()?, 0)?;
        for ([qkv, out], cache) in self.layers.iter().zip(&mut self.caches) {
            let y = rms_norm(&x, &self.norm, 1e-5)?.matmul(&qkv.t()?)?.reshape((rows, count, 3, 2, 64))?;
            let head = |which: usize| y.narrow(2, which, 1)?.squeeze(2)?.transpose(1, 2)?.contiguous();
            let (q, k, v) = (rope(&head(0)?, &cos, &sin)?, rope(&head(1)?, &cos, &sin)?, head(2)?);
            let [k, v] = match cache.take() {
                Some([keys, values]) => [Tensor::cat(&[keys, k], 2)?, Tensor::cat(&[values, v], 2)?],
                None => [k, v],
            };
            let scores = (q.matmul(&k.t()?)? * 0.125)?.broadcast_add(&hidden)?;
            let y = softmax_last_dim(&scores)?.matmul(&v)?.transpose(1, 2)?.reshape((rows * count, 128))?;
            *cache = Some([k, v]);
            x = (x + y.matmul(&out.t()?)?)?;
        }
        let last = x.reshape((rows, count, 128))?.narrow(1, count - 1, 1)?.reshape((rows, 128))?;
        rms_norm(&last, &self.norm, 1e-5)?.matmul(&self.table.t()?)
    }
}

/// Tokens of three rows, and which of them count: all but so many first ones.
fn padded_rows(tokens: u32, pads: [u32; 3], device: &Device) -> candle::Result<[Tensor; 2]> {
    let of = |row: usize| (0..tokens).map(move |i| if i < pads[row] { 0 } else { 1 + (i * 7 + 31 * row as u32) % 290 });
    let mask = |row: usize| (0..tokens).map(move |i| u8::from(i >= pads[row]));
    let shape = (3, tokens as usize);
    let ids = Tensor::from_iter((0..3).flat_map(of), device)?.reshape(shape)?;
    Ok([ids, Tensor::from_iter((0..3).flat_map(mask), device)?.reshape(shape)?])
}

#[test]
fn texts_of_several_lengths_go_on_together_by_a_mask_that_the_module_is_given() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    for (dtype, tolerance) in [(DType::F32, 1e-4), (DType::F16, 1e-2)] {
        let model = Masked::new(dtype, &device)?;
        let [ids, mask] = padded_rows(6, [0, 3, 1], &device)?;
        // Clones, or models that a function makes.
        let mut fast = match dtype {
            DType::F32 => strict().build_padded_decoder(model.clone(), Masked::forward, &ids, &mask, 64)?,
            _ => {
                let make = {
                    let model = model.clone();
                    move || Ok(model.clone())
                };
                strict().build_padded_decoder_from(make, Masked::forward, &ids, &mask, 64)?
            }
        };
        println!(
            "{dtype:?}: several {:?}\n{:?}",
            fast.several_refused(),
            fast.report().map(|report| report.to_string())
        );
        let ones = Tensor::ones((3, 1), DType::U8, &device)?;
        // Other paddings than those of the example, none, and one text that pauses.
        let mut furthest = 0f32;
        for (count, pads, pause) in
            [(9, [5, 0, 2], None), (30, [0, 29, 13], None), (7, [0; 3], None), (12, [1, 4, 0], Some(15))]
        {
            let (mut own, [ids, mut mask]) = (model.clone(), padded_rows(count, pads, &device)?);
            let (mut expected, mut got) = (own.forward(&ids, 0, &mask)?, fast.forward_padded(&ids, &mask, 0)?);
            // The second row by itself, without padding.
            let (mut alone, first) = (model.clone(), pads[1] as usize);
            let text = ids.narrow(0, 1, 1)?.narrow(1, first, count as usize - first)?.contiguous()?;
            let mut of_alone = alone.forward(&text, 0, &text.ones_like()?.to_dtype(DType::U8)?)?;
            for at in count as usize..44 {
                let apart = relative_error(&got, &expected)?;
                let apart_alone = relative_error(&got.narrow(0, 1, 1)?, &of_alone)?;
                furthest = furthest.max(apart).max(apart_alone);
                let said = format!("{apart} and {apart_alone} behind {at} tokens in {dtype:?}, {pads:?}");
                assert!(apart <= tolerance && apart_alone <= tolerance, "{said}");
                let token = expected.argmax(D::Minus1)?.reshape((3, 1))?;
                let pauses = pause == Some(at);
                let counts = if pauses { Tensor::new(&[[1u8], [1], [0]], &device)? } else { ones.clone() };
                mask = Tensor::cat(&[&mask, &counts], 1)?;
                expected = own.forward(&token, at, &mask)?;
                got = if pauses { fast.forward_padded(&token, &counts, at)? } else { fast.forward(&token, at)? };
                let (own_token, tokens) = (token.narrow(0, 1, 1)?.contiguous()?, at + 1 - first);
                of_alone = alone.forward(&own_token, at - first, &Tensor::ones((1, tokens), DType::U8, &device)?)?;
            }
            assert!(format!("{fast:?}").contains("is_replayed: true"), "{fast:?}");
        }
        println!("{dtype:?}: {furthest} apart at most");
    }
    Ok(())
}

/// What is added to scores, `(rows, 1, queries, keys)`: keys that do not count and later ones are hidden.
fn bias(mask: &Tensor, queries: usize, dtype: DType) -> candle::Result<Tensor> {
    let (rows, keys) = mask.dims2()?;
    let counted = mask.to_dtype(DType::F32)?;
    let hidden = counted.affine(1e4, -1e4)?.to_dtype(dtype)?.reshape((rows, 1, 1, keys))?;
    if queries == 1 {
        return Ok(hidden);
    }
    let low = |i: usize| (0..keys).map(move |j| if j + queries > keys + i { -1e4f32 } else { 0. });
    let causal = Tensor::from_iter((0..queries).flat_map(low), mask.device())?.reshape((1, 1, queries, keys))?;
    hidden.broadcast_add(&causal.to_dtype(dtype)?)
}

/// Rotary embeddings tell distances, so that places of a row may begin at its padding.
#[test]
fn a_module_of_candle_transformers_is_given_the_mask_of_its_scores() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    for (dtype, tolerance) in [(DType::F32, 1e-4), (DType::F16, 1e-2)] {
        let config: mistral::Config = serde_json::from_value(json!({
            "vocab_size": VOCABULARY, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_act": "silu", "max_position_embeddings": 128,
            "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "sliding_window": null, "use_flash_attn": false
        }))?;
        let model = mistral::Model::new(&config, opara_weights::seeded(3, dtype, &device))?;
        let forward = move |model: &mut mistral::Model, tokens: &Tensor, at: usize, mask: &Tensor| {
            let x = model.embed_tokens().forward(tokens)?;
            model.forward_embeds(&x, Some(&bias(mask, tokens.dim(1)?, dtype)?), at)
        };
        let [ids, mask] = padded_rows(6, [2, 0, 1], &device)?;
        let mut fast = strict().build_padded_decoder(model.clone(), forward, &ids, &mask, 64)?;
        assert_eq!(fast.several_refused(), None, "{dtype:?}: prompts are read in pieces");
        let (mut own, [ids, mut mask]) = (model, padded_rows(20, [7, 0, 15], &device)?);
        let (mut expected, mut got) = (forward(&mut own, &ids, 0, &mask)?, fast.forward_padded(&ids, &mask, 0)?);
        for at in 20..50 {
            let apart = relative_error(&got, &expected)?;
            assert!(apart <= tolerance, "{apart} behind {at} tokens in {dtype:?}");
            let token = expected.argmax(D::Minus1)?.reshape((3, 1))?;
            mask = Tensor::cat(&[&mask, &Tensor::ones((3, 1), DType::U8, &device)?], 1)?;
            (expected, got) = (forward(&mut own, &token, at, &mask)?, fast.forward(&token, at)?);
        }
        assert!(format!("{fast:?}").contains("is_replayed: true"), "{fast:?}");
    }
    Ok(())
}

#[test]
fn a_mask_is_for_modules_that_read_it() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let (model, [ids, mask]) = (qwen2(DType::F32, &device)?, padded_rows(6, [0, 3, 1], &device)?);
    let forward = qwen2::ModelForCausalLM::forward;
    let mut fast = strict().build_decoder(model.clone(), forward, &ids, 32)?;
    let refused = fast.forward_padded(&ids, &mask, 0);
    assert!(matches!(refused, Err(Error::Decoder(DecoderError::NoMask))), "{refused:?}");
    // What padding a step sees would depend on the mask of its prompt alone.
    let ignores = move |model: &mut qwen2::ModelForCausalLM, x: &Tensor, at: usize, _: &Tensor| forward(model, x, at);
    let reason = OparaExecutor::builder().build_padded_decoder(model, ignores, &ids, &mask, 32)?;
    let reason = reason.refused().expect("it is refused").to_string();
    assert!(reason.contains("does not read the mask"), "{reason}");
    Ok(())
}
