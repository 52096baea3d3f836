//! Decoders whose cache grows, on a GPU: steps that are replayed give what the module gives. Without a GPU, or without the `cuda`
//! feature, each test says that it skips.

use std::sync::Arc;

use candle::{DType, Device, Tensor, D};
use candle_nn::VarBuilder;
use candle_transformers::models::{gemma3, llama, qwen2, qwen3};
use opara_candle::{DecoderError, DecoderExecutor, Error, OnUncapturable, OparaExecutor};
use opara_examples::relative_error;
use serde_json::json;

use super::prompt;
use super::texts::weights;
use crate::common::gpu;

pub const VOCABULARY: usize = 300;

pub fn qwen2(dtype: DType, device: &Device) -> anyhow::Result<qwen2::ModelForCausalLM> {
    qwen2_of(opara_weights::seeded(3, dtype, device))
}

fn qwen2_of(weights: VarBuilder) -> anyhow::Result<qwen2::ModelForCausalLM> {
    let config = serde_json::from_value(json!({
        "vocab_size": VOCABULARY, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128, "sliding_window": 128,
        "max_window_layers": 2, "tie_word_embeddings": false, "rope_theta": 10000.0, "rms_norm_eps": 1e-6,
        "use_sliding_window": false, "hidden_act": "silu"
    }))?;
    Ok(qwen2::ModelForCausalLM::new(&config, weights)?)
}

/// Qwen3 reads several tokens behind a text in types of 16 bits, too; candle's Qwen2 joins a mask of f32 to one of its own type.
fn qwen3(dtype: DType, device: &Device) -> anyhow::Result<qwen3::ModelForCausalLM> {
    let config = serde_json::from_value(json!({
        "vocab_size": VOCABULARY, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
        "head_dim": 32, "attention_bias": false, "num_key_value_heads": 2, "max_position_embeddings": 128, "sliding_window": null,
        "max_window_layers": 2, "tie_word_embeddings": false, "rope_theta": 10000.0, "rms_norm_eps": 1e-6,
        "use_sliding_window": false, "hidden_act": "silu"
    }))?;
    Ok(qwen3::ModelForCausalLM::new(&config, opara_weights::seeded(3, dtype, device))?)
}

/// Llama keeps its cache beside the model, which clones share.
fn llama(dtype: DType, device: &Device) -> anyhow::Result<(Arc<llama::Llama>, llama::Cache)> {
    let config: llama::LlamaConfig = serde_json::from_value(json!({
        "hidden_size": 128, "intermediate_size": 256, "vocab_size": VOCABULARY, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 4, "rms_norm_eps": 1e-5, "max_position_embeddings": 128
    }))?;
    let config = config.into_config(false);
    let model = llama::Llama::load(opara_weights::seeded(3, dtype, device), &config)?;
    Ok((Arc::new(model), llama::Cache::new(true, dtype, &config, device)?))
}

/// Gemma 3 writes to its caches in place. Of two layers one sees the latest tokens alone.
fn gemma3(dtype: DType, device: &Device, window: usize) -> anyhow::Result<gemma3::Model> {
    gemma3_of(opara_weights::seeded(3, dtype, device), window)
}

fn gemma3_of(weights: VarBuilder, window: usize) -> anyhow::Result<gemma3::Model> {
    let config = serde_json::from_value(json!({
        "attention_bias": false, "head_dim": 64, "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 128,
        "intermediate_size": 256, "num_attention_heads": 4, "num_hidden_layers": 2, "num_key_value_heads": 1,
        "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0, "vocab_size": VOCABULARY,
        "query_pre_attn_scalar": 64, "sliding_window": window, "sliding_window_pattern": 2, "max_position_embeddings": 128
    }))?;
    Ok(gemma3::Model::new(false, &config, weights)?)
}

/// Writes a text behind prompts of these lengths, the module's own tokens, and compares the logits.
pub fn assert_near<M: Clone + Send + Sync + 'static>(
    fast: &mut DecoderExecutor<M>,
    fresh: &M,
    forward: impl Fn(&mut M, &Tensor, usize) -> candle::Result<Tensor>,
    tolerance: f32,
    device: &Device,
) -> anyhow::Result<()> {
    for tokens in [5, 30, 2] {
        let (mut own, prompt) = (fresh.clone(), prompt(tokens, device)?);
        let mut expected = forward(&mut own, &prompt, 0)?;
        let mut got = fast.forward(&prompt, 0)?;
        for at in tokens as usize..60 {
            let apart = relative_error(&got, &expected)?;
            assert!(apart <= tolerance, "{apart} behind {at} tokens of a prompt of {tokens}");
            let token = expected.flatten_all()?.argmax(D::Minus1)?.reshape((1, 1))?;
            expected = forward(&mut own, &token, at)?;
            got = fast.forward(&token, at)?;
        }
        let is_replayed = format!("{fast:?}").contains("is_replayed: true");
        assert_eq!(is_replayed, fast.refused().is_none(), "{fast:?}");
    }
    Ok(())
}

#[test]
fn steps_give_the_modules_logits() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    for (dtype, tolerance) in [(DType::F32, 1e-4), (DType::F16, 1e-2), (DType::BF16, 8e-2)] {
        let strict = || OparaExecutor::builder().on_uncapturable(OnUncapturable::Error);
        let example = prompt(6, &device)?;
        let model = qwen2(dtype, &device)?;
        let forward = qwen2::ModelForCausalLM::forward;
        let mut fast = strict().build_decoder(model.clone(), forward, &example, 64)?;
        assert_near(&mut fast, &model, forward, tolerance, &device)?;

        // Of a window of two, a step has one earlier token, which the next one does not have any more. Attention to so few need not be
        // known: then the module runs eagerly.
        for window in [24, 3, 2] {
            let model = gemma3(dtype, &device, window)?;
            let builder = if window == 24 { strict() } else { OparaExecutor::builder() };
            let mut fast = builder.build_decoder(model.clone(), gemma3::Model::forward, &example, 64)?;
            assert_near(&mut fast, &model, gemma3::Model::forward, tolerance, &device)?;
        }

        let (model, cache) = llama(dtype, &device)?;
        let forward = move |cache: &mut llama::Cache, tokens: &Tensor, at| model.forward(tokens, at, cache);
        let mut fast = strict().build_decoder(cache.clone(), forward.clone(), &example, 64)?;
        assert_near(&mut fast, &cache, forward, tolerance, &device)?;
    }
    Ok(())
}

/// A model that is made anew for each text has tables of its own, at other addresses.
#[test]
fn models_that_are_made_anew_are_replayed() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let example = prompt(6, &device)?;
    for (dtype, tolerance) in [(DType::F32, 1e-4), (DType::F16, 1e-2)] {
        let weights = weights(dtype, &device);
        let model = gemma3_of(weights.clone(), 24)?;
        let make = move || gemma3_of(weights.clone(), 24).map_err(candle::Error::wrap);
        let strict = OparaExecutor::builder().on_uncapturable(OnUncapturable::Error);
        let mut fast = strict.build_decoder_from(make, gemma3::Model::forward, &example, 64)?;
        assert_near(&mut fast, &model, gemma3::Model::forward, tolerance, &device)?;
    }
    // A cache that grows is dropped in each step, by the only model that has it.
    let weights = weights(DType::F16, &device);
    let make = move || qwen2_of(weights.clone()).map_err(candle::Error::wrap);
    let model = make()?;
    let forward = qwen2::ModelForCausalLM::forward;
    let strict = OparaExecutor::builder().on_uncapturable(OnUncapturable::Error);
    let mut fast = strict.build_decoder_from(make, forward, &example, 64)?;
    assert_near(&mut fast, &model, forward, 1e-2, &device)
}

#[test]
fn a_text_goes_on_where_it_ends_and_not_beyond_its_capacity() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let model = qwen2(DType::F16, &device)?;
    let example = prompt(6, &device)?;
    let mut fast = OparaExecutor::builder().build_decoder(model, qwen2::ModelForCausalLM::forward, &example, 12)?;
    let token = prompt(1, &device)?;
    fast.forward(&example, 0)?;
    let first = fast.forward(&token, 6)?;
    let refused = |result: opara_candle::Result<Tensor>| match result {
        Err(Error::Decoder(error)) => error,
        other => panic!("{other:?}"),
    };
    assert!(matches!(refused(fast.forward(&token, 6)), DecoderError::Position { expected: 7, got: 6 }));
    assert!(matches!(refused(fast.forward(&example, 7)), DecoderError::Capacity { tokens: 13, capacity: 12 }));
    assert!(matches!(refused(fast.forward(&token.flatten_all()?, 7)), DecoderError::Tokens { .. }));
    for at in 7..12 {
        fast.forward(&token, at)?;
    }
    assert!(matches!(refused(fast.forward(&token, 12)), DecoderError::Capacity { tokens: 13, capacity: 12 }));
    // Another text, and nothing is left of the one before.
    fast.forward(&example, 0)?;
    assert_eq!(relative_error(&fast.forward(&token, 6)?, &first)?, 0.);
    Ok(())
}

#[test]
fn what_changes_with_the_length_in_another_way_runs_eagerly() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let example = prompt(6, &device)?;
    let model = qwen2(DType::F32, &device)?;
    type Forward = fn(&mut qwen2::ModelForCausalLM, &Tensor, usize) -> candle::Result<Tensor>;
    let cases: [(Forward, &str); 3] = [
        // The host decides by the length.
        (
            |model, tokens, at| if at > 20 { model.forward(tokens, at)? * 2. } else { model.forward(tokens, at) },
            "behind",
        ),
        // A number that the host puts into a kernel's arguments, to which each token does not add as much.
        (|model, tokens, at| model.forward(tokens, at)? * (1. / (at + 1) as f64), "as much with each token"),
        // A number that the host uploads.
        (
            |model, tokens, at| {
                let scale = Tensor::new(&[1. / (at as f32 + 1.)], tokens.device())?;
                model.forward(tokens, at)?.broadcast_mul(&scale)
            },
            "host uploads",
        ),
    ];
    for (forward, said) in cases {
        let mut fast = OparaExecutor::builder().build_decoder(model.clone(), forward, &example, 64)?;
        let reason = fast.refused().expect("it is refused").to_string();
        assert!(reason.contains(said), "{reason}");
        assert_near(&mut fast, &model, forward, 0., &device)?;
        let strict = OparaExecutor::builder().on_uncapturable(OnUncapturable::Error);
        assert!(matches!(strict.build_decoder(model.clone(), forward, &example, 64), Err(Error::NotCapturable { .. })));
    }
    Ok(())
}

#[test]
fn several_tokens_behind_a_replayed_text_have_the_modules_logits() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let (model, example) = (qwen2(DType::F32, &device)?, prompt(6, &device)?);
    type Forward = fn(&mut qwen2::ModelForCausalLM, &Tensor, usize) -> candle::Result<Tensor>;
    // Logits of the last token, and of each.
    let all: Forward = |model, tokens, at| {
        let one_by_one = (0..tokens.dim(1)?).map(|i| model.forward(&tokens.narrow(1, i, 1)?, at + i));
        Tensor::cat(&one_by_one.collect::<candle::Result<Vec<_>>>()?, 1)
    };
    for (forward, count) in [(qwen2::ModelForCausalLM::forward as Forward, 1), (all, 3)] {
        let strict = OparaExecutor::builder().on_uncapturable(OnUncapturable::Error);
        let mut fast = strict.build_decoder(model.clone(), forward, &example, 64)?;
        let (mut own, turn) = (model.clone(), prompt(3, &device)?);
        forward(&mut own, &example, 0)?;
        fast.forward(&example, 0)?;
        let token = prompt(1, &device)?;
        for at in [6, 7] {
            forward(&mut own, &token, at)?;
            fast.forward(&token, at)?;
        }
        let (expected, got) = (forward(&mut own, &turn, 8)?, fast.forward(&turn, 8)?);
        assert_eq!((got.dims(), got.dim(1)?), (expected.dims(), count));
        assert!(relative_error(&got, &expected)? <= 1e-4);
        let apart = relative_error(&fast.forward(&token, 11)?, &forward(&mut own, &token, 11)?)?;
        assert!(apart <= 1e-4, "{apart}");
    }
    Ok(())
}

#[test]
fn prompts_and_turns_are_read_in_pieces_up_to_the_capacity() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let forward = qwen3::ModelForCausalLM::forward;
    for (dtype, tolerance) in [(DType::F32, 1e-4), (DType::F16, 1e-2), (DType::BF16, 8e-2)] {
        let (model, capacity) = (qwen3(dtype, &device)?, 110);
        let strict = OparaExecutor::builder().on_uncapturable(OnUncapturable::Error);
        let mut fast = strict.build_decoder(model.clone(), forward, &prompt(6, &device)?, capacity)?;
        assert_eq!(fast.several_refused(), None);
        let near = |got: &Tensor, expected: &Tensor| -> anyhow::Result<()> {
            let apart = relative_error(got, expected)?;
            assert!(apart <= tolerance, "{apart} in {dtype:?}");
            Ok(())
        };
        let mut first = None;
        // Prompts and turns that fill a piece, and that do not; the last one ends where a text is full, within a piece.
        for parts in [vec![40, 1, 1, 7, 33, 1, 2, 25], vec![1, 1, 8, 70, 30], vec![107, 2, 1], vec![40]] {
            let (mut own, mut at) = (model.clone(), 0);
            for count in parts {
                let ids = (0..count).map(|i| ((i * 7 + 11 * at) % VOCABULARY) as u32);
                let tokens = Tensor::from_iter(ids, &device)?.unsqueeze(0)?;
                let (got, expected) = (fast.forward(&tokens, at)?, forward(&mut own, &tokens, at)?);
                assert!(format!("{fast:?}").contains("is_replayed: true"), "{fast:?}");
                near(&got, &expected)?;
                if at == 0 && count == 40 {
                    // Nothing is left of another text.
                    let first: &Tensor = first.get_or_insert(got.clone());
                    assert_eq!(relative_error(&got, first)?, 0.);
                }
                at += count;
            }
        }
    }
    Ok(())
}

#[test]
fn several_texts_go_on_together() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    for (dtype, tolerance) in [(DType::F32, 1e-4), (DType::F16, 1e-2)] {
        let model = qwen2(dtype, &device)?;
        let rows = |tokens: u32, by: u32| -> candle::Result<Tensor> {
            let of = |row: u32| Tensor::from_iter((0..tokens).map(|i| (i * 7 + row * by) % VOCABULARY as u32), &device);
            Tensor::stack(&[of(0)?, of(1)?, of(2)?], 0)
        };
        let strict = OparaExecutor::builder().on_uncapturable(OnUncapturable::Error);
        let forward = qwen2::ModelForCausalLM::forward;
        let mut fast = strict.build_decoder(model.clone(), forward, &rows(6, 5)?, 64)?;
        let (mut own, prompt) = (model.clone(), rows(9, 11)?);
        let mut pair = (own.forward(&prompt, 0)?, fast.forward(&prompt, 0)?);
        for at in 9..40 {
            let apart = relative_error(&pair.1, &pair.0)?;
            assert!(apart <= tolerance, "{apart} behind {at} tokens in {dtype:?}");
            let token = pair.0.argmax(D::Minus1)?.reshape((3, 1))?;
            pair = (own.forward(&token, at)?, fast.forward(&token, at)?);
        }
        assert!(format!("{fast:?}").contains("is_replayed: true"), "{fast:?}");
        let one = prompt.narrow(0, 0, 1)?.narrow(1, 0, 1)?;
        assert!(matches!(fast.forward(&one, 40), Err(Error::Decoder(DecoderError::Tokens { .. }))));
    }
    Ok(())
}

/// What a convolution over the latest tokens and a recurrence have of a text, beside a count on the device.
#[derive(Clone)]
struct Recurrent {
    table: Tensor,
    window: Tensor,
    sum: Tensor,
    count: Tensor,
}

impl Recurrent {
    fn of(table: &Tensor) -> candle::Result<Self> {
        let zeros = |n: usize| Tensor::zeros((1, n), table.dtype(), table.device());
        let count = Tensor::zeros(1, table.dtype(), table.device())?;
        Ok(Self { table: table.clone(), window: zeros(3 * 128)?.reshape((3, 128))?, sum: zeros(128)?, count })
    }

    /// Token by token.
    fn forward(&mut self, tokens: &Tensor, at: usize) -> candle::Result<Tensor> {
        let mut logits = None;
        for i in 0..tokens.dim(1)? {
            let x = self.table.index_select(&tokens.narrow(1, i, 1)?.flatten_all()?, 0)?;
            self.window = Tensor::cat(&[&self.window.narrow(0, 1, 2)?, &x], 0)?;
            self.sum = ((&self.sum * 0.75)? + self.window.sum_keepdim(0)?.tanh()?)?;
            self.count = (&self.count + 1.)?;
            let place = Tensor::new(&[(at + i) as f32], tokens.device())?.to_dtype(x.dtype())?;
            let factor = self.count.broadcast_add(&place)?.affine(0.01, 1.)?;
            logits = Some(self.sum.broadcast_mul(&factor)?.matmul(&self.table.t()?)?);
        }
        logits.ok_or_else(|| candle::Error::Msg("no tokens".into()))
    }
}

#[test]
fn states_that_a_step_rewrites_are_replayed() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let example = prompt(6, &device)?;
    for (dtype, tolerance) in [(DType::F32, 1e-4), (DType::F16, 1e-2)] {
        let model = Recurrent::of(&opara_weights::seeded(1, dtype, &device).get((VOCABULARY, 128), "table")?)?;
        let strict = OparaExecutor::builder().on_uncapturable(OnUncapturable::Error);
        let mut fast = strict.build_decoder(model.clone(), Recurrent::forward, &example, 64)?;
        // Prompts may be as many steps, which begin with states of zeros.
        assert!(fast.several_refused().is_some_and(|why| why.contains("states")));
        assert_near(&mut fast, &model, Recurrent::forward, tolerance, &device)?;
    }
    Ok(())
}

/// A decoder of one layer, whose cache of keys fades by a factor at every call.
#[derive(Clone)]
struct Fading {
    table: Tensor,
    factor: f64,
    cache: Option<[Tensor; 2]>,
}

impl Fading {
    fn forward(&mut self, tokens: &Tensor, _: usize) -> candle::Result<Tensor> {
        let x = self
            .table
            .index_select(&tokens.flatten_all()?, 0)?
            .reshape((1, (), 2, 64))?
            .transpose(1, 2)?
            .contiguous()?;
        let [k, v] = match &self.cache {
            Some([k, v]) => [Tensor::cat(&[k, &x], 2)?, Tensor::cat(&[v, &x], 2)?],
            None => [x.clone(), x.clone()],
        };
        let weights = candle_nn::ops::softmax_last_dim(&(x.matmul(&k.t()?)? * 0.125)?)?;
        let y = weights.matmul(&v)?;
        self.cache = Some([(k * self.factor)?, v]);
        let last = y.narrow(2, y.dim(2)? - 1, 1)?.transpose(1, 2)?.reshape((1, 128))?;
        last.matmul(&self.table.t()?)
    }
}

#[test]
fn a_step_that_overwrites_other_memory_than_its_caches_runs_eagerly() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let example = prompt(6, &device)?;
    let model = (gemma3(DType::F16, &device, 24)?, Tensor::zeros((4, VOCABULARY), DType::F16, &device)?);
    // Its latest logits.
    let forward = |(model, latest): &mut (gemma3::Model, Tensor), tokens: &Tensor, at| {
        let logits = model.forward(tokens, at)?;
        latest.slice_set(&logits.reshape((1, VOCABULARY))?.contiguous()?, 0, 2)?;
        Ok(logits)
    };
    let fast = OparaExecutor::builder().build_decoder(model, forward, &example, 64)?;
    // Clones of the model share the tensor.
    let reason = fast.refused().expect("it is refused");
    assert!(reason.contains("write to the same memory"), "{reason}");
    Ok(())
}

#[test]
fn a_cache_that_changes_behind_attention_is_no_cache_that_grows() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    // In f16 candle rounds scores, so that attention in one launch is more accurate, and only the cache is in question.
    let table = opara_weights::seeded(1, DType::F16, &device).get((VOCABULARY, 128), "table")?;
    let example = prompt(6, &device)?;
    for (factor, is_refused) in [(1., false), (0.5, true)] {
        let model = Fading { table: table.clone(), factor, cache: None };
        let mut fast = OparaExecutor::builder().build_decoder(model.clone(), Fading::forward, &example, 64)?;
        assert_eq!(fast.refused().is_some(), is_refused, "{:?}", fast.refused());
        assert!(fast.refused().is_none_or(|reason| reason.contains("earlier tokens")), "{:?}", fast.refused());
        assert_near(&mut fast, &model, Fading::forward, if is_refused { 0. } else { 1e-2 }, &device)?;
    }
    Ok(())
}
