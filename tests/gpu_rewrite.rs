//! Modules of plain candle operators whose launches are rewritten, against candle and against double precision. Without a GPU each
//! test says that it skips.

mod common;

use std::slice::from_ref;

use candle::{DType, Device, Result, Tensor};
use common::{assert_same, gpu};
use opara_candle::{Builder, Mode, Numerics, OparaExecutor};

/// A builder that rewrites these small modules whether or not their replays gain from it.
fn accurate() -> Builder {
    OparaExecutor::builder().numerics(Numerics::Accurate).benchmark_challengers(false)
}

const FLOATS: [DType; 3] = [DType::F16, DType::BF16, DType::F32];

/// The unit roundoff: half the distance from 1 to the next number.
fn unit(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 2f64.powi(-11),
        DType::BF16 => 2f64.powi(-8),
        _ => 2f64.powi(-24),
    }
}

/// Weights of convolutions, each with a norm after it.
#[derive(Clone)]
struct Block {
    weight: Tensor,
    /// Mean, variance, scale and shift of each channel.
    norm: [Tensor; 4],
    stride: usize,
    groups: usize,
}

impl Block {
    fn new(name: &str, [out, inner, kernel]: [usize; 3], stride: usize, groups: usize, dtype: DType) -> Result<Self> {
        let numbers = opara_weights::seeded(7, DType::F32, common::CPU);
        let numbers = numbers.pp(name);
        // Random numbers of mean 0 and variance 1, one per channel.
        let vector = |name: &str| numbers.get((out, 1), name)?.reshape(out);
        let norm = [vector("mean")?, (vector("variance")?.abs()? + 0.5)?, (vector("scale")? + 1.)?, vector("shift")?];
        let weight = numbers.get((out, inner / groups, kernel, kernel), "weight")?;
        let [mean, variance, scale, shift] = norm.map(|v| v.to_dtype(dtype));
        Ok(Self { weight: weight.to_dtype(dtype)?, norm: [mean?, variance?, scale?, shift?], stride, groups })
    }

    /// The same numbers elsewhere, in another type.
    fn to(&self, dtype: DType, device: &Device) -> Result<Self> {
        let to = |t: &Tensor| t.to_device(device)?.to_dtype(dtype);
        let [mean, variance, scale, shift] = self.norm.each_ref().map(to);
        Ok(Self { weight: to(&self.weight)?, norm: [mean?, variance?, scale?, shift?], ..*self })
    }

    /// As candle-nn's batch norm has it.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let padding = self.weight.dim(2)? / 2;
        let y = x.conv2d(&self.weight, padding, self.stride, 1, self.groups)?;
        let channel = |v: &Tensor| v.reshape((1, (), 1, 1));
        let [mean, variance, scale, shift] = &self.norm;
        let y = y.broadcast_sub(&channel(mean)?)?.broadcast_div(&channel(&(variance + 1e-5)?.sqrt()?)?)?;
        y.broadcast_mul(&channel(scale)?)?.broadcast_add(&channel(shift)?)
    }
}

/// A stem, a pool and a residual block, as in ResNets.
fn residual(blocks: &[Block], x: &Tensor) -> Result<Tensor> {
    let x = blocks[0].forward(x)?.relu()?.max_pool2d(2)?;
    let y = blocks[1].forward(&x)?.relu()?;
    let y = blocks[2].forward(&y)?;
    (y + blocks[3].forward(&x)?)?.relu()
}

fn residual_blocks(dtype: DType) -> Result<Vec<Block>> {
    Ok(vec![
        Block::new("stem", [32, 3, 3], 1, 1, dtype)?,
        Block::new("first", [64, 32, 3], 1, 1, dtype)?,
        Block::new("second", [64, 64, 3], 1, 1, dtype)?,
        Block::new("beside", [64, 32, 1], 1, 1, dtype)?,
    ])
}

/// A depthwise convolution between pointwise ones, as in MobileNets.
fn separable(blocks: &[Block], x: &Tensor) -> Result<Tensor> {
    let x = blocks[0].forward(x)?.silu()?;
    let x = blocks[1].forward(&x)?.silu()?;
    let weights = candle_nn::ops::sigmoid(&x.mean_keepdim((2, 3))?)?;
    blocks[2].forward(&x.broadcast_mul(&weights)?)
}

fn separable_blocks(dtype: DType) -> Result<Vec<Block>> {
    Ok(vec![
        Block::new("up", [48, 8, 1], 1, 1, dtype)?,
        Block::new("deep", [48, 48, 3], 2, 48, dtype)?,
        Block::new("down", [16, 48, 1], 1, 1, dtype)?,
    ])
}

type Forward = fn(&[Block], &Tensor) -> Result<Tensor>;

/// Builds an executor of a module, and returns the results of executor, candle and double precision for another input.
fn answers(
    device: &Device,
    dtype: DType,
    (forward, blocks): (Forward, &[Block]),
    [built, asked]: [&Tensor; 2],
) -> anyhow::Result<(OparaExecutor, [Tensor; 3])> {
    let on = |dtype: DType| blocks.iter().map(|block| block.to(dtype, device)).collect::<Result<Vec<_>>>();
    let module = on(dtype)?;
    let [built, asked] = [built, asked].map(|x| x.to_dtype(dtype)?.to_device(device));
    let (built, asked) = (built?, asked?);
    let reference = forward(&on(DType::F64)?, &asked.to_dtype(DType::F64)?)?;
    let candle = forward(&module, &asked)?;
    let call = move |x: &[Tensor]| Ok(vec![forward(&module, &x[0])?]);
    let fast = accurate().build_fn(call, &[built])?;
    let ours = fast.call(&[asked])?.remove(0);
    Ok((fast, [ours, candle, reference]))
}

/// Root mean square error in roundoffs.
fn error(dtype: DType, got: &Tensor, reference: &Tensor) -> Result<f64> {
    let (got, reference) = (got.to_dtype(DType::F64)?, reference);
    let scale = reference.sqr()?.mean_all()?.sqrt()?.to_scalar::<f64>()?;
    let error = (got - reference)?.sqr()?.mean_all()?.sqrt()?.to_scalar::<f64>()?;
    Ok(error / scale / unit(dtype))
}

fn noise(seed: u64, shape: (usize, usize, usize, usize)) -> Result<Tensor> {
    let elements = shape.0 * shape.1 * shape.2 * shape.3;
    opara_weights::seeded(seed, DType::F32, common::CPU).get((elements, 1), "x")?.reshape(shape)
}

#[test]
fn convolutions_with_what_follows_are_no_less_accurate() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    for (dtype, batch) in FLOATS.into_iter().flat_map(|dtype| [(dtype, 1), (dtype, 3)]) {
        let blocks = residual_blocks(dtype)?;
        let inputs = [noise(1, (batch, 3, 32, 32))?, noise(2, (batch, 3, 32, 32))?];
        let (fast, [ours, candle, reference]) = answers(&device, dtype, (residual, &blocks), [&inputs[0], &inputs[1]])?;
        let report = fast.report();
        assert_eq!(report.mode, Mode::Graph, "{report}");
        let (ours, candle) = (error(dtype, &ours, &reference)?, error(dtype, &candle, &reference)?);
        println!("{dtype:?}, batch {batch}: {ours:.3} roundings, candle {candle:.3}\n{report}");
        // A little more tolerance, since it was built with other inputs.
        assert!(ours <= 1.2 * candle + 0.1, "{dtype:?}, batch {batch}: {ours:.3} roundings, candle {candle:.3}");
        if dtype != DType::F32 {
            let convolutions = report.rewrites.iter().find(|rewrite| rewrite.rule == "convolution");
            assert_eq!(convolutions.map(|rewrite| rewrite.times), Some(4), "{report}");
        }
    }
    Ok(())
}

#[test]
fn grouped_convolutions_become_one_launch() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    for (dtype, batch) in FLOATS.into_iter().flat_map(|dtype| [(dtype, 1), (dtype, 2)]) {
        let blocks = separable_blocks(dtype)?;
        let inputs = [noise(1, (batch, 8, 20, 20))?, noise(2, (batch, 8, 20, 20))?];
        let (fast, [ours, candle, reference]) =
            answers(&device, dtype, (separable, &blocks), [&inputs[0], &inputs[1]])?;
        let report = fast.report();
        let (ours, candle) = (error(dtype, &ours, &reference)?, error(dtype, &candle, &reference)?);
        println!("{dtype:?}, batch {batch}: {ours:.3} roundings, candle {candle:.3}\n{report}");
        assert!(ours <= 1.2 * candle + 0.1, "{dtype:?}, batch {batch}: {ours:.3} roundings, candle {candle:.3}");
        let grouped = report.rewrites.iter().find(|rewrite| rewrite.rule == "grouped-convolution");
        assert!(grouped.is_some_and(|rewrite| rewrite.times == 1 && rewrite.saved >= 95), "{report}");
    }
    Ok(())
}

/// A layer that doubles the length, as in decoders of audio, or height and width, as in decoders of images.
#[derive(Clone)]
struct Upsampling {
    weight: Tensor,
    bias: Tensor,
    /// Of windows over rows, or over rows and columns.
    padding: usize,
    output_padding: usize,
}

impl Upsampling {
    fn new(kernel: &[usize], padding: usize, output_padding: usize) -> Result<Self> {
        let numbers = opara_weights::seeded(13, DType::F32, common::CPU);
        let elements = 24 * 16 * kernel.iter().product::<usize>();
        let weight = numbers.get((elements, 1), "weight")?.reshape([&[24, 16], kernel].concat())?;
        Ok(Self { weight, bias: numbers.get((16, 1), "bias")?.reshape(16)?, padding, output_padding })
    }

    fn to(&self, dtype: DType, device: &Device) -> Result<Self> {
        let to = |t: &Tensor| t.to_device(device)?.to_dtype(dtype);
        Ok(Self { weight: to(&self.weight)?, bias: to(&self.bias)?, ..*self })
    }

    /// `x` is `(batch, 24, length)` or `(batch, 24, h, w)`.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let Self { weight, bias, padding, output_padding } = self;
        let x = x.relu()?;
        let y = match x.rank() {
            3 => x.conv_transpose1d(weight, *padding, *output_padding, 2, 1, 1)?,
            _ => x.conv_transpose2d(weight, *padding, *output_padding, 2, 1)?,
        };
        let shape = [&[1, 16], &vec![1; x.rank() - 2][..]].concat();
        y.broadcast_add(&bias.reshape(shape)?)?.tanh()
    }
}

#[test]
fn transposed_convolutions_are_no_less_accurate() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    // Kernels of two strides, one and a half, and one.
    let layers = [(&[4][..], 1, 0), (&[3], 1, 1), (&[4, 4], 1, 0), (&[3, 3], 1, 1), (&[2, 2], 0, 0)];
    for ((dtype, batch), (kernel, padding, output_padding)) in
        FLOATS.into_iter().flat_map(|dtype| [(dtype, 1), (dtype, 3)]).flat_map(|one| layers.map(|layer| (one, layer)))
    {
        let layer = Upsampling::new(kernel, padding, output_padding)?;
        let module = layer.to(dtype, &device)?;
        let x = |seed| {
            let x = noise(seed, (batch, 24, 12, if kernel.len() == 2 { 10 } else { 1 }))?;
            let x = if kernel.len() == 2 { x } else { x.squeeze(3)? };
            x.to_dtype(dtype)?.to_device(&device)
        };
        let asked = x(2)?;
        let reference = layer.to(DType::F64, &device)?.forward(&asked.to_dtype(DType::F64)?)?;
        let candle = error(dtype, &module.forward(&asked)?, &reference)?;
        let call = move |x: &[Tensor]| Ok(vec![module.forward(&x[0])?]);
        let fast = accurate().stress(1).build_fn(call, &[x(1)?])?;
        let ours = error(dtype, &fast.call(&[asked])?[0], &reference)?;
        let report = fast.report();
        println!("{dtype:?}, batch {batch}, {kernel:?}: {ours:.3} roundings, candle {candle:.3}\n{report}");
        assert!(ours <= 1.2 * candle + 0.1, "{dtype:?}, {kernel:?}: {ours:.3} roundings, candle {candle:.3}\n{report}");
        assert_eq!(report.mode, Mode::Graph, "{report}");
        let rule = report.rewrites.iter().find(|rewrite| rewrite.rule == "transposed-convolution");
        // What is no less accurate, but not faster on tensors as small as these, leaves a note.
        if !report.notes.iter().any(|note| note.contains("one after the other")) {
            assert_eq!(rule.map(|rewrite| (rewrite.times, rewrite.saved)), Some((2, 1)), "{report}");
        }
    }
    Ok(())
}

/// Numbers that are hard for a norm folded into weights: far from the mean, cancelling, large and tiny.
#[test]
fn adversarial_operands_are_no_less_accurate() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    for dtype in FLOATS {
        let plain = noise(3, (1, 3, 32, 32))?;
        let shapes = [
            ("positive", plain.abs()?),
            ("around 100", (&plain + 100.)?),
            ("large", (&plain * 1000.)?),
            ("tiny", (&plain * 1e-6)?),
            ("powers of two", ((&plain * 4.)?.round()? * std::f64::consts::LN_2)?.exp()?),
        ];
        for (name, x) in shapes {
            let (fast, [ours, candle, reference]) =
                answers(&device, dtype, (residual, &residual_blocks(dtype)?), [&x, &x])?;
            let is_finite = |t: &Tensor| -> Result<bool> {
                Ok(t.to_dtype(DType::F64)?.abs()?.flatten_all()?.max(0)?.to_scalar::<f64>()?.is_finite())
            };
            if !is_finite(&candle)? {
                continue;
            }
            let (ours, candle) = (error(dtype, &ours, &reference)?, error(dtype, &candle, &reference)?);
            println!("{dtype:?}, {name}: {ours:.3} roundings, candle {candle:.3}");
            assert!(ours <= 1.05 * candle + 0.1, "{dtype:?}, {name}: {ours:.3}, candle {candle:.3}\n{}", fast.report());
        }
    }
    Ok(())
}

/// A Transformer layer of plain operators: attention of 4 heads of 32 with a mask, and two matmuls with GELU in between.
#[derive(Clone)]
struct Layer {
    weights: Vec<Tensor>,
    mask: Tensor,
    is_decomposed: bool,
}

impl Layer {
    fn new(is_decomposed: bool) -> Result<Self> {
        let numbers = opara_weights::seeded(9, DType::F32, common::CPU);
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
        Ok(Self { weights, mask: Tensor::from_vec(mask, (1, 1, 1, 48), common::CPU)?, is_decomposed })
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
        let asked = x(2)?;
        let reference = layer.to(DType::F64, &device)?.forward(&asked.to_dtype(DType::F64)?)?;
        let candle = error(dtype, &module.forward(&asked)?, &reference)?;
        let call = move |x: &[Tensor]| Ok(vec![module.forward(&x[0])?]);
        let fast = accurate().stress(1).build_fn(call, &[x(1)?])?;
        let ours = error(dtype, &fast.call(&[asked])?[0], &reference)?;
        let report = fast.report();
        println!("{dtype:?}, decomposed {is_decomposed}: {ours:.3} roundings, candle {candle:.3}\n{report}");
        assert!(ours <= 1.2 * candle + 0.1, "{dtype:?}: {ours:.3} roundings, candle {candle:.3}\n{report}");
        assert_eq!(report.mode, Mode::Graph, "{report}");
        if dtype != DType::F32 {
            let times = |rule| report.rewrites.iter().find(|rewrite| rewrite.rule == rule).map(|rewrite| rewrite.times);
            assert_eq!((times("attention"), times("product-activation")), (Some(1), Some(1)), "{report}");
        }
    }
    Ok(())
}

/// For each element: is it NaN, infinite or finite?
fn kinds(t: &Tensor) -> Result<Vec<u8>> {
    let values = t.to_device(common::CPU)?.flatten_all()?.to_dtype(DType::F64)?.to_vec1::<f64>()?;
    Ok(values.iter().map(|x| if x.is_nan() { 2 } else { u8::from(x.is_infinite()) }).collect())
}

#[test]
fn what_is_not_finite_stays_so() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    for dtype in [DType::F16, DType::BF16] {
        for number in [f32::NAN, f32::INFINITY] {
            let x = noise(4, (1, 3, 32, 32))?;
            let mut values = x.flatten_all()?.to_vec1::<f32>()?;
            values[700] = number;
            let x = Tensor::from_vec(values, (1, 3, 32, 32), common::CPU)?;
            let (_, [ours, candle, _]) = answers(&device, dtype, (residual, &residual_blocks(dtype)?), [&x, &x])?;
            assert_eq!(kinds(&ours)?, kinds(&candle)?, "{number} in {dtype:?}");
        }
    }
    Ok(())
}

#[test]
fn without_rules_the_bits_are_candles() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let dtype = DType::F16;
    let blocks = residual_blocks(dtype)?.iter().map(|block| block.to(dtype, &device)).collect::<Result<Vec<_>>>()?;
    let x = noise(1, (1, 3, 32, 32))?.to_dtype(dtype)?.to_device(&device)?;
    let expected = residual(&blocks, &x)?;
    let call = move |x: &[Tensor]| Ok(vec![residual(&blocks, &x[0])?]);
    let accurate = accurate();
    let rules = ["grouped-convolution", "convolution"];
    let without = rules.into_iter().fold(accurate.clone(), |builder, rule| builder.without_rule(rule));
    for builder in [OparaExecutor::builder(), without, accurate.recheck(100)] {
        let fast = builder.build_fn(call.clone(), from_ref(&x))?;
        let report = fast.report();
        assert!(report.rewrites.is_empty() && report.mode == Mode::Graph, "{report}");
        assert_same(&fast.call(from_ref(&x))?, from_ref(&expected), &report);
    }
    Ok(())
}

/// Unknown operators between known ones, two inputs, two outputs, and schedules under stress.
#[test]
fn runs_end_at_what_is_not_known() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let dtype = DType::F16;
    let blocks = residual_blocks(dtype)?.iter().map(|block| block.to(dtype, &device)).collect::<Result<Vec<_>>>()?;
    let forward = move |x: &[Tensor]| {
        let y = blocks[0].forward(&x[0])?.relu()?;
        let flipped = y.index_select(&x[1], 3)?;
        let z = blocks[1].forward(&(flipped + &y)?)?;
        Ok(vec![z.relu()?, y])
    };
    let ids: Vec<u32> = (0..32).rev().collect();
    let ids = Tensor::new(ids, &device)?;
    let inputs = |seed| -> Result<Vec<Tensor>> {
        Ok(vec![noise(seed, (1, 3, 32, 32))?.to_dtype(dtype)?.to_device(&device)?, ids.clone()])
    };
    let builder = accurate().stress(2);
    let fast = builder.build_fn(forward.clone(), &inputs(1)?)?;
    let report = fast.report();
    println!("{report}");
    assert_eq!(report.mode, Mode::Graph, "{report}");
    assert!(report.rewrites.iter().any(|rewrite| rewrite.rule == "convolution"), "{report}");
    let inputs = inputs(2)?;
    for (ours, candle) in fast.call(&inputs)?.iter().zip(forward(&inputs)?) {
        let candle = candle.to_dtype(DType::F64)?;
        assert!(error(dtype, ours, &candle)? < 20., "{report}");
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
        let numbers = opara_weights::seeded(11, DType::F32, common::CPU);
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
        let asked = [x(2)?, x(3)?];
        let [a, b] = asked.each_ref().map(|x| x.to_dtype(DType::F64));
        let reference = layer.to(DType::F64, &device)?.forward(&a?, &b?)?;
        let candle = error(dtype, &module.forward(&asked[0], &asked[1])?, &reference)?;
        let call = move |x: &[Tensor]| Ok(vec![module.forward(&x[0], &x[1])?]);
        let fast = accurate().stress(1).build_fn(call, &[x(1)?, x(4)?])?;
        let ours = error(dtype, &fast.call(&asked)?[0], &reference)?;
        let report = fast.report();
        println!("{dtype:?}, {tokens} tokens: {ours:.3} roundings, candle {candle:.3}\n{report}");
        assert!(ours <= 1.2 * candle + 0.1, "{dtype:?}: {ours:.3} roundings, candle {candle:.3}\n{report}");
        assert_eq!(report.mode, Mode::Graph, "{report}");
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
        assert_eq!(report.mode, Mode::Graph, "{report}");
        if report.rewrites.is_empty() {
            assert_same(&fast.call(&inputs)?, from_ref(&expected), &report);
        } else {
            let is_timed = report.build_ms.contains_key("exact plan");
            assert!(is_timed || report.build_ms.contains_key("rewrite run"), "{report}");
        }
    }
    Ok(())
}
