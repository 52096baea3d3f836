//! Layers of Transformers.

use std::slice::from_ref;

use candle::{DType, Device, Result, Tensor};
use opara_candle::Mode;

use super::{accurate, is_less_accurate, is_not_faster, no_less_accurate, noise, Inputs, FLOATS};
use crate::common::{assert_same, gpu};

/// A Transformer layer of plain operators: attention of 4 heads of 32 with a mask, and two matmuls with GELU in between.
#[derive(Clone)]
struct Layer {
    weights: Vec<Tensor>,
    mask: Tensor,
    is_decomposed: bool,
}

impl Layer {
    fn new(is_decomposed: bool) -> Result<Self> {
        let numbers = opara_weights::seeded(9, DType::F32, crate::common::CPU);
        let matrix = |name: &str, out: usize, inner: usize| numbers.get((out, inner), name);
        let vector = |name: &str, len: usize| numbers.get((len, 1), name)?.reshape(len);
        let weights = vec![
            matrix("qkv", 384, 128)?,
            vector("of qkv", 384)?,
            matrix("out", 128, 128)?,
            vector("of out", 128)?,
            matrix("up", 256, 128)?,
            vector("of up", 256)?,
            matrix("down", 128, 256)?,
            vector("of down", 128)?,
        ];
        let mask = (0..48).map(|key| if key < 40 { 0f32 } else { -1e4 }).collect();
        Ok(Self { weights, mask: Tensor::from_vec(mask, (1, 1, 1, 48), crate::common::CPU)?, is_decomposed })
    }

    fn to(&self, dtype: DType, device: &Device) -> Result<Self> {
        let to = |t: &Tensor| t.to_device(device)?.to_dtype(dtype);
        Ok(Self { weights: self.weights.iter().map(to).collect::<Result<_>>()?, mask: to(&self.mask)?, ..*self })
    }

    /// `x` is `(batch, 48, 128)`.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let linear = |x: &Tensor, at: usize| {
            let (batch, tokens, inner) = x.dims3()?;
            let y = x.reshape((batch * tokens, inner))?.matmul(&self.weights[2 * at].t()?)?;
            y.broadcast_add(&self.weights[2 * at + 1])?.reshape((batch, tokens, ()))
        };
        let (batch, tokens, hidden) = x.dims3()?;
        let heads =
            |at: usize| linear(x, 0)?.narrow(2, at * hidden, hidden)?.reshape((batch, tokens, 4, 32))?.transpose(1, 2);
        let (q, k, v) = (heads(0)?.contiguous()?, heads(1)?.contiguous()?, heads(2)?.contiguous()?);
        let scores = (q.matmul(&k.t()?)? * 32f64.powf(-0.5))?.broadcast_add(&self.mask)?;
        let p = match self.is_decomposed || scores.dtype() == DType::F64 {
            true => candle_nn::ops::softmax(&scores, candle::D::Minus1)?,
            false => candle_nn::ops::softmax_last_dim(&scores)?,
        };
        let y = p.matmul(&v)?.transpose(1, 2)?.contiguous()?.reshape((batch, tokens, hidden))?;
        let x = (linear(&y, 1)? + x)?;
        linear(&linear(&x, 2)?.gelu_erf()?, 3)? + x
    }
}

#[test]
fn attention_and_products_are_no_less_accurate() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    for (dtype, is_decomposed) in FLOATS.into_iter().flat_map(|dtype| [(dtype, false), (dtype, true)]) {
        let layer = Layer::new(is_decomposed)?;
        let module = layer.to(dtype, &device)?;
        let x = |seed| noise(seed, (1, 2, 48, 128))?.squeeze(0)?.to_dtype(dtype)?.to_device(&device);
        let (inputs, wide) = (Inputs { built: vec![x(1)?], asked: vec![x(2)?] }, layer.to(DType::F64, &device)?);
        let said = format!("decomposed {is_decomposed}");
        let [module, wide] = [module, wide].map(|layer| move |x: &[Tensor]| layer.forward(&x[0]));
        let report = no_less_accurate(dtype, &said, module, wide, inputs)?;
        if dtype != DType::F32 {
            let times =
                |rule| report.rewrites().iter().find(|rewrite| rewrite.rule == rule).map(|rewrite| rewrite.times);
            assert_eq!((times("attention"), times("product-activation")), (Some(1), Some(1)), "{report}");
            assert_eq!(times("copied-heads"), Some(1), "{report}");
        }
    }
    Ok(())
}

/// A layer of 4 heads of 32 whose queries, keys and values are products of their own, with biases as in BERT or without as in T5; what
/// is added to the scores is the same for each item of the batch.
#[derive(Clone)]
struct Apart {
    /// Of queries, keys, values, the result, and both products behind it.
    weights: Vec<Tensor>,
    /// Of queries, keys and values, or none.
    biases: Vec<Tensor>,
    scores: Tensor,
}

impl Apart {
    fn new(has_bias: bool) -> Result<Self> {
        let numbers = opara_weights::seeded(13, DType::F32, crate::common::CPU);
        let sizes = [(128, 128), (128, 128), (128, 128), (128, 128), (256, 128), (128, 256)];
        let weights = sizes.iter().zip(0..).map(|(&size, at)| numbers.get(size, &format!("weight {at}")));
        let biases =
            (0..if has_bias { 3 } else { 0 }).map(|at| numbers.get((128, 1), &format!("bias {at}"))?.reshape(128));
        let scores = numbers.get((4 * 48, 48), "scores")?.reshape((1, 4, 48, 48))?;
        Ok(Self { weights: weights.collect::<Result<_>>()?, biases: biases.collect::<Result<_>>()?, scores })
    }

    fn to(&self, dtype: DType, device: &Device) -> Result<Self> {
        let to = |t: &Tensor| t.to_device(device)?.to_dtype(dtype);
        let all = |tensors: &[Tensor]| tensors.iter().map(to).collect::<Result<Vec<_>>>();
        Ok(Self { weights: all(&self.weights)?, biases: all(&self.biases)?, scores: to(&self.scores)? })
    }

    /// `x` is `(batch, 48, 128)`.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (batch, tokens, hidden) = x.dims3()?;
        let rows = x.reshape((batch * tokens, hidden))?;
        let heads = |at: usize| {
            let y = rows.matmul(&self.weights[at].t()?)?;
            let y = self.biases.get(at).map_or(Ok(y.clone()), |bias| y.broadcast_add(bias))?;
            y.reshape((batch, tokens, 4, 32))?.transpose(1, 2)?.contiguous()
        };
        let (q, k, v) = (heads(0)?, heads(1)?, heads(2)?);
        let scores = q.matmul(&k.t()?)?.broadcast_add(&self.scores)?;
        let p = match scores.dtype() {
            DType::F64 => candle_nn::ops::softmax(&scores, candle::D::Minus1)?,
            _ => candle_nn::ops::softmax_last_dim(&scores)?,
        };
        let y = p.matmul(&v)?.transpose(1, 2)?.contiguous()?.reshape((batch * tokens, hidden))?;
        let x = (y.matmul(&self.weights[3].t()?)? + rows)?;
        let y = x.matmul(&self.weights[4].t()?)?.relu()?.matmul(&self.weights[5].t()?)?;
        (x + y)?.reshape((batch, tokens, hidden))
    }
}

#[test]
fn queries_keys_and_values_of_one_product_are_no_less_accurate() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let cases = FLOATS.into_iter().flat_map(|dtype| [false, true].map(|has_bias| (dtype, has_bias)));
    for ((dtype, has_bias), batch) in cases.flat_map(|case| [(case, 1), (case, 3)]) {
        let layer = Apart::new(has_bias)?;
        let (module, wide) = (layer.to(dtype, &device)?, layer.to(DType::F64, &device)?);
        let x = |seed| noise(seed, (batch, 48, 128))?.to_dtype(dtype)?.to_device(&device);
        let inputs = Inputs { built: vec![x(1)?], asked: vec![x(2)?] };
        let said = format!("bias {has_bias}, batch {batch}");
        let [module, wide] = [module, wide].map(|layer| move |x: &[Tensor]| layer.forward(&x[0]));
        let report = no_less_accurate(dtype, &said, module, wide, inputs)?;
        if dtype != DType::F32 && !is_not_faster(&report) {
            let times =
                |rule| report.rewrites().iter().find(|rewrite| rewrite.rule == rule).map(|rewrite| rewrite.times);
            for rule in ["attention", "copied-heads", "products-of-one", "product-activation"] {
                assert_eq!(times(rule), Some(1), "{said}: {rule}\n{report}");
            }
        }
    }
    Ok(())
}

/// A decoder's layer of plain operators without attention: norms of sums, and a gated unit.
#[derive(Clone)]
struct Gated {
    /// Gate, up and down.
    weights: [Tensor; 3],
    scales: [Tensor; 2],
}

impl Gated {
    fn new() -> Result<Self> {
        let numbers = opara_weights::seeded(11, DType::F32, crate::common::CPU);
        let scale = |name: &str| numbers.get((128, 1), name)?.reshape(128)? + 1.;
        let weights =
            [numbers.get((320, 128), "gate")?, numbers.get((320, 128), "up")?, numbers.get((128, 320), "down")?];
        Ok(Self { weights, scales: [scale("before")?, scale("behind")?] })
    }

    fn to(&self, dtype: DType, device: &Device) -> Result<Self> {
        let to = |t: &Tensor| t.to_device(device)?.to_dtype(dtype);
        let [gate, up, down] = self.weights.each_ref().map(to);
        let [before, behind] = self.scales.each_ref().map(to);
        Ok(Self { weights: [gate?, up?, down?], scales: [before?, behind?] })
    }

    /// `x` and `residual` are `(tokens, 128)`.
    fn forward(&self, x: &Tensor, residual: &Tensor) -> Result<Tensor> {
        let norm = |x: &Tensor, scale: &Tensor| match x.dtype() {
            DType::F64 => {
                let mean = (x.sqr()?.mean_keepdim(candle::D::Minus1)? + 1e-6)?;
                x.broadcast_div(&mean.sqrt()?)?.broadcast_mul(scale)
            }
            _ => candle_nn::ops::rms_norm(x, scale, 1e-6),
        };
        let sum = (x + residual)?;
        let y = norm(&sum, &self.scales[0])?;
        let [gate, up, down] = &self.weights;
        let y = (candle_nn::ops::silu(&y.matmul(&gate.t()?)?)? * y.matmul(&up.t()?)?)?.matmul(&down.t()?)?;
        norm(&(sum + y)?, &self.scales[1])
    }
}

#[test]
fn gated_units_and_norms_of_sums_are_no_less_accurate() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    // Eight rows are one launch, more are a product and what follows.
    for (dtype, tokens) in FLOATS.into_iter().flat_map(|dtype| [(dtype, 4), (dtype, 48)]) {
        let layer = Gated::new()?;
        let module = layer.to(dtype, &device)?;
        let x = |seed| noise(seed, (1, 1, tokens, 128))?.reshape((tokens, 128))?.to_dtype(dtype)?.to_device(&device);
        let inputs = Inputs { built: vec![x(1)?, x(4)?], asked: vec![x(2)?, x(3)?] };
        let wide = layer.to(DType::F64, &device)?;
        let [module, wide] = [module, wide].map(|layer| move |x: &[Tensor]| layer.forward(&x[0], &x[1]));
        no_less_accurate(dtype, &format!("{tokens} tokens"), module, wide, inputs)?;
    }
    Ok(())
}

/// With benchmarks, either the rewritten launches stay or candle's bits do, and the report says which.
#[test]
fn what_is_not_faster_has_candles_bits() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    for dtype in FLOATS {
        let module = Gated::new()?.to(dtype, &device)?;
        let x = |seed| noise(seed, (1, 1, 8, 128))?.reshape((8, 128))?.to_dtype(dtype)?.to_device(&device);
        let inputs = [x(1)?, x(2)?];
        let expected = module.forward(&inputs[0], &inputs[1])?;
        let call = move |x: &[Tensor]| Ok(vec![module.forward(&x[0], &x[1])?]);
        let fast = accurate().benchmark_challengers(true).build_fn(call, &inputs)?;
        let report = fast.report();
        println!("{report}");
        assert_eq!(report.mode(), Mode::Graph, "{report}");
        if report.rewrites().is_empty() {
            assert_same(&fast.call(&inputs)?, from_ref(&expected), &report);
        } else {
            let is_timed = report.build_ms().contains_key("exact plan");
            assert!(is_timed || report.build_ms().contains_key("rewrite run"), "{report}");
        }
    }
    Ok(())
}

/// Attention of 3 heads that a model of 16 bits computes in f32, as Stable Diffusion's and Llama's do. Operands are
/// `(batch, tokens, 3 * size)`.
fn attention_in_f32(x: &[Tensor], size: usize, mask: Option<&Tensor>) -> Result<Tensor> {
    let dtype = x[0].dtype();
    let inner = if dtype == DType::F64 { dtype } else { DType::F32 };
    let heads = |x: &Tensor| {
        let (batch, tokens, _) = x.dims3()?;
        // A result on the way, as products are.
        let x = x.relu()?.reshape((batch, tokens, 3, size))?.transpose(1, 2)?.contiguous()?;
        x.reshape((batch * 3, tokens, size))?.to_dtype(inner)
    };
    let (q, k, v) = (heads(&x[0])?, heads(&x[1])?, heads(&x[2])?);
    let scores = q.matmul(&(k.t()? * (size as f64).powf(-0.5))?)?;
    let scores = match mask {
        Some(mask) if mask.dtype() == DType::U8 => {
            let hidden = Tensor::new(f32::NEG_INFINITY, mask.device())?.to_dtype(inner)?;
            mask.broadcast_as(scores.shape())?.where_cond(&hidden.broadcast_as(scores.shape())?, &scores)?
        }
        Some(mask) => scores.broadcast_add(&mask.to_dtype(inner)?)?,
        None => scores,
    };
    let p = match inner {
        DType::F32 => candle_nn::ops::softmax_last_dim(&scores)?,
        _ => candle_nn::ops::softmax(&scores, candle::D::Minus1)?,
    };
    let y = p.matmul(&v)?.to_dtype(dtype)?;
    let (batch, queries, _) = x[0].dims3()?;
    y.reshape((batch, 3, queries, size))?.transpose(1, 2)?.reshape((batch, queries, 3 * size))?.tanh()
}

#[test]
fn attention_in_f32_of_16_bits_is_no_less_accurate() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let sizes = [32, 40, 64, 80, 96, 128, 160];
    // Queries and keys; scores of so large operands leave one weight, of small ones all are alike.
    let lengths = [(70, 77, 1.), (64, 300, 8.), (130, 33, 0.01)];
    let cases = FLOATS[..2].iter().flat_map(|&dtype| sizes.map(|size| (dtype, size)));
    for ((dtype, size), (queries, keys, factor)) in cases.flat_map(|one| lengths.map(|length| (one, length))) {
        let hides = |key: usize| key % 3 == 1;
        let hidden = Tensor::from_iter((0..keys).map(|key| u8::from(hides(key))), &device)?.reshape((1, 1, keys))?;
        let added = (0..keys).map(|key| if hides(key) { f32::NEG_INFINITY } else { 0.5 });
        let added = Tensor::from_iter(added, &device)?.reshape((1, 1, keys))?;
        for mask in [None, Some(added), Some(hidden)] {
            let x = |seed, tokens: usize, factor: f64| {
                (noise(seed, (2, tokens, 3 * size))? * factor)?.to_dtype(dtype)?.to_device(&device)
            };
            let of =
                |seed| anyhow::Ok(vec![x(seed, queries, factor)?, x(seed + 1, keys, factor)?, x(seed + 2, keys, 1.)?]);
            let mut inputs = Inputs { built: of(1)?, asked: of(4)? };
            if let Some(hidden) = mask.as_ref().filter(|mask| mask.dtype() == DType::U8) {
                // A score of an infinite key is infinite or NaN, and hidden.
                let of_keys = hidden.reshape((1, keys, 1))?.broadcast_as(inputs.asked[1].shape())?;
                let infinite = Tensor::full(f32::INFINITY, of_keys.shape(), &device)?.to_dtype(dtype)?;
                inputs.asked[1] = of_keys.where_cond(&infinite, &inputs.asked[1])?;
            }
            let said = format!(
                "heads of {size}, {queries} x {keys}, operands {factor}, mask {:?}",
                mask.as_ref().map(Tensor::dtype)
            );
            let module = move |x: &[Tensor]| attention_in_f32(x, size, mask.as_ref());
            let report = no_less_accurate(dtype, &said, module.clone(), module, inputs)?;
            let times = report
                .rewrites()
                .iter()
                .find(|rewrite| rewrite.rule == "attention-in-f32")
                .map(|rewrite| rewrite.times);
            if !is_not_faster(&report) {
                assert_eq!(times, Some(1), "{said}\n{report}");
            }
        }
    }
    Ok(())
}

/// Attention as Llama writes it: pairs of four heads of queries share keys and values, and a mask of integers hides scores. Operands are
/// `(batch, tokens, heads * size)`.
fn llama_attention(x: &[Tensor], size: usize, inner: DType, mask: &Tensor) -> Result<Tensor> {
    let (batch, tokens, _) = x[0].dims3()?;
    let inner = if x[0].dtype() == DType::F64 { DType::F64 } else { inner };
    // Results on the way, as products are, that keep a NaN.
    let heads = |x: &Tensor| x.neg()?.reshape((batch, tokens, (), size))?.transpose(1, 2);
    let repeated = |x: &Tensor| Tensor::cat(&[x, x], 2)?.reshape((batch, 4, tokens, size));
    let (q, k, v) = (heads(&x[0])?.contiguous()?, repeated(&heads(&x[1])?.contiguous()?)?, repeated(&heads(&x[2])?)?);
    let scores = (q.to_dtype(inner)?.matmul(&k.to_dtype(inner)?.t()?)? / (size as f64).sqrt())?;
    let hidden = match inner {
        DType::F16 => Tensor::new(half::f16::NEG_INFINITY, mask.device())?,
        _ => Tensor::new(f32::NEG_INFINITY, mask.device())?.to_dtype(inner)?,
    };
    let shape = scores.shape().clone();
    let scores = mask.broadcast_as(&shape)?.where_cond(&hidden.broadcast_as(&shape)?, &scores)?;
    let p = match inner {
        DType::F64 => candle_nn::ops::softmax(&scores, candle::D::Minus1)?,
        _ => candle_nn::ops::softmax_last_dim(&scores)?,
    };
    let y = p.matmul(&v.to_dtype(inner)?.contiguous()?)?.to_dtype(x[0].dtype())?;
    y.transpose(1, 2)?.reshape((batch, tokens, 4 * size))?.tanh()
}

#[test]
fn masked_attention_of_shared_heads_is_no_less_accurate() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let (batch, tokens, size) = (3, 70, 64);
    // A token sees those before it, but for the second item's last ones and what each item has at 5.
    let hides = |item: usize, query: usize, key: usize| key > query || key == 5 || (item == 1 && key > 60);
    let all = (0..batch * tokens * tokens).map(|at| (at / tokens / tokens, at / tokens % tokens, at % tokens));
    let mask = Tensor::from_iter(all.map(|(item, query, key)| u8::from(hides(item, query, key))), &device)?;
    let of_items = mask.reshape((batch, 1, tokens, tokens))?;
    let of_all = of_items.narrow(0, 0, 1)?.contiguous()?;
    let types =
        [(DType::F16, DType::F32), (DType::BF16, DType::F32), (DType::F32, DType::F32), (DType::F16, DType::F16)];
    for ((dtype, inner), mask) in types.into_iter().flat_map(|types| [(types, &of_all), (types, &of_items)]) {
        let x = |seed, heads: usize| noise(seed, (batch, tokens, heads * size))?.to_dtype(dtype)?.to_device(&device);
        let of = |seed| anyhow::Ok(vec![x(seed, 4)?, x(seed + 1, 2)?, x(seed + 2, 2)?]);
        for number in [f32::INFINITY, f32::NAN, 1e36] {
            let mut inputs = Inputs { built: of(1)?, asked: of(4)? };
            let hidden = Tensor::full(number, (batch, 1, 2 * size), &device)?.to_dtype(dtype)?;
            inputs.asked[1] = inputs.asked[1].slice_assign(&[0..batch, 5..6, 0..2 * size], &hidden)?;
            let said = format!("in {inner:?}, masks {:?}, hidden keys {number}", mask.dims());
            let mask = mask.clone();
            let module = move |x: &[Tensor]| llama_attention(x, size, inner, &mask);
            let report = no_less_accurate(dtype, &said, module.clone(), module, inputs)?;
            let times =
                |rule| report.rewrites().iter().find(|rewrite| rewrite.rule == rule).map(|rewrite| rewrite.times);
            if !is_not_faster(&report) && !is_less_accurate(dtype, &report) {
                assert_eq!((times("attention"), times("grouped-heads")), (Some(1), Some(1)), "{said}\n{report}");
            }
        }
    }
    Ok(())
}
