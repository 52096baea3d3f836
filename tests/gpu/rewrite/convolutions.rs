//! Convolutions with norms, residuals and activations.

use std::slice::from_ref;

use candle::{DType, Device, Result, Tensor};
use opara_candle::{Mode, OparaExecutor, Report};

use super::{accurate, error, is_not_faster, noise, FLOATS};
use crate::common::{assert_same, gpu};

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
        let numbers = opara_weights::seeded(7, DType::F32, crate::common::CPU);
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

/// Builds an executor of a module for a batch of random images of `[channels, side]`, and holds it against candle for another batch.
fn report_of(
    device: &Device,
    (dtype, batch): (DType, usize),
    module: (Forward, &[Block]),
    [channels, side]: [usize; 2],
) -> anyhow::Result<Report> {
    let shape = (batch, channels, side, side);
    let inputs = [noise(1, shape)?, noise(2, shape)?];
    let (fast, [ours, candle, reference]) = answers(device, dtype, module, [&inputs[0], &inputs[1]])?;
    let report = fast.report();
    let (ours, candle) = (error(dtype, &ours, &reference)?, error(dtype, &candle, &reference)?);
    println!("{dtype:?}, batch {batch}: {ours:.3} roundings, candle {candle:.3}\n{report}");
    // A little more tolerance, since it was built with other inputs.
    assert!(ours <= 1.2 * candle + 0.1, "{dtype:?}, batch {batch}: {ours:.3} roundings, candle {candle:.3}");
    Ok(report)
}

#[test]
fn convolutions_with_what_follows_are_no_less_accurate() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    for (dtype, batch) in FLOATS.into_iter().flat_map(|dtype| [(dtype, 1), (dtype, 3)]) {
        let blocks = residual_blocks(dtype)?;
        let report = report_of(&device, (dtype, batch), (residual, &blocks), [3, 32])?;
        assert_eq!(report.mode(), Mode::Graph, "{report}");
        if dtype != DType::F32 && !is_not_faster(&report) {
            let convolutions = report.rewrites().iter().find(|rewrite| rewrite.rule == "convolution");
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
        let report = report_of(&device, (dtype, batch), (separable, &blocks), [8, 20])?;
        let grouped = report.rewrites().iter().find(|rewrite| rewrite.rule == "grouped-convolution");
        assert!(grouped.is_some_and(|rewrite| rewrite.times == 1 && rewrite.saved >= 95), "{report}");
    }
    Ok(())
}

/// Of few numbers each operator is judged by itself, beside a convolution of all groups that stands for candle's.
#[test]
fn grouped_convolutions_of_few_results_are_no_less_accurate() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let group: Forward = |blocks, x| blocks[0].forward(x)?.relu();
    for (dtype, [channels, groups]) in FLOATS.into_iter().flat_map(|dtype| [[24, 4], [32, 8]].map(|of| (dtype, of))) {
        let block = Block::new("few", [channels, channels, 3], 2, groups, dtype)?;
        let inputs = [noise(1, (1, channels, 5, 5))?, noise(2, (1, channels, 5, 5))?];
        let (fast, of) = answers(&device, dtype, (group, from_ref(&block)), [&inputs[0], &inputs[1]])?;
        let [ours, candle] = [0, 1].map(|at| error(dtype, &of[at], &of[2]));
        let (ours, candle, report) = (ours?, candle?, fast.report());
        // TF32 is off by thousands of roundings.
        assert!(ours <= 2. * candle + 1., "{dtype:?}: {ours:.3} roundings, candle {candle:.3}\n{report}");
    }
    Ok(())
}

/// `max(x, 0)`, a depthwise convolution and a pointwise one, beside their operand, as in a cell of NASNet.
fn cell(blocks: &[Block], x: &Tensor) -> Result<Tensor> {
    let x = blocks[0].forward(x)?;
    let y = blocks[2].forward(&blocks[1].forward(&x.relu()?)?)?;
    Tensor::cat(&[&x, &(&y + &x)?, &y], 1)?.relu()
}

fn cell_blocks(dtype: DType) -> Result<Vec<Block>> {
    Ok(vec![
        Block::new("up", [48, 8, 1], 1, 1, dtype)?,
        Block::new("deep", [48, 48, 5], 1, 48, dtype)?,
        Block::new("beside", [48, 48, 1], 1, 1, dtype)?,
    ])
}

#[test]
fn sums_and_relu_become_part_of_what_is_around_them() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    for (dtype, batch) in FLOATS.into_iter().flat_map(|dtype| [(dtype, 1), (dtype, 2)]) {
        let blocks = cell_blocks(dtype)?;
        let report = report_of(&device, (dtype, batch), (cell, &blocks), [8, 20])?;
        for rule in ["concat-sums", "convolution-of-relu", "concat-relu"] {
            assert!(report.rewrites().iter().any(|rewrite| rewrite.rule == rule), "{rule}: {report}");
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

/// For each element: is it NaN, infinite or finite?
fn kinds(t: &Tensor) -> Result<Vec<u8>> {
    let values = t.to_device(crate::common::CPU)?.flatten_all()?.to_dtype(DType::F64)?.to_vec1::<f64>()?;
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
            let x = Tensor::from_vec(values, (1, 3, 32, 32), crate::common::CPU)?;
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
        assert!(report.rewrites().is_empty() && report.mode() == Mode::Graph, "{report}");
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
    // So large that candle's convolutions of 16 bits are slower by far, whatever runs beside.
    const SIDE: usize = 160;
    let ids: Vec<u32> = (0..SIDE as u32).rev().collect();
    let ids = Tensor::new(ids, &device)?;
    let inputs = |seed| -> Result<Vec<Tensor>> {
        Ok(vec![noise(seed, (2, 3, SIDE, SIDE))?.to_dtype(dtype)?.to_device(&device)?, ids.clone()])
    };
    let builder = accurate().stress(2);
    let fast = builder.build_fn(forward.clone(), &inputs(1)?)?;
    let report = fast.report();
    println!("{report}");
    assert_eq!(report.mode(), Mode::Graph, "{report}");
    assert!(report.rewrites().iter().any(|rewrite| rewrite.rule == "convolution"), "{report}");
    let inputs = inputs(2)?;
    for (ours, candle) in fast.call(&inputs)?.iter().zip(forward(&inputs)?) {
        let candle = candle.to_dtype(DType::F64)?;
        assert!(error(dtype, ours, &candle)? < 20., "{report}");
    }
    Ok(())
}
