//! Blocks of GoogLeNet and Inception: convolutions, pools of images between copies of a number, and branches beside each other.

use candle::{DType, Device, Result, Tensor};

use super::{is_less_accurate, is_not_faster, no_less_accurate, noise, Inputs, FLOATS};
use crate::common::gpu;

/// A pool, as candle has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pool {
    /// Of maxima between minus infinity.
    Max,
    /// The same between the smallest finite number.
    MaxOfFinite,
    /// Of means between zeros.
    Mean,
}

impl Pool {
    /// A number around all sides.
    fn around(self, x: &Tensor, [before, after]: [usize; 2]) -> Result<Tensor> {
        if self == Pool::Mean {
            return x.pad_with_zeros(2, before, after)?.pad_with_zeros(3, before, after);
        }
        let number = if self == Pool::Max { f32::NEG_INFINITY } else { f32::MIN };
        let mut x = x.clone();
        for dim in [2, 3] {
            let edge = |lines: usize| {
                let mut shape = x.dims().to_vec();
                shape[dim] = lines;
                Tensor::full(number, shape, x.device())?.to_dtype(x.dtype())
            };
            let mut parts = vec![x.clone()];
            if before > 0 {
                parts.insert(0, edge(before)?);
            }
            if after > 0 {
                parts.push(edge(after)?);
            }
            x = Tensor::cat(&parts, dim)?;
        }
        Ok(x)
    }

    fn forward(self, x: &Tensor, padding: [usize; 2], stride: usize) -> Result<Tensor> {
        let x = self.around(x, padding)?;
        match self {
            Pool::Max | Pool::MaxOfFinite => x.max_pool2d_with_stride(3, stride),
            Pool::Mean => x.avg_pool2d_with_stride(3, stride),
        }
    }
}

#[derive(Clone)]
struct Block {
    /// Of each convolution, with a bias: before the first pool, then the branches, in the order in which they are computed.
    weights: Vec<[Tensor; 2]>,
    pool: Pool,
}

impl Block {
    fn new(pool: Pool) -> Result<Self> {
        let numbers = opara_weights::seeded(23, DType::F32, crate::common::CPU);
        let weight = |(at, [out, inner, kernel]): (usize, [usize; 3])| -> Result<[Tensor; 2]> {
            let weight = numbers.get((out, inner, kernel, kernel), &format!("{at}"))?;
            let bias = numbers.get((out, 1), &format!("of {at}"))?.reshape((1, out, 1, 1))?;
            // Rows of the weight have length one.
            Ok([(weight / ((inner * kernel * kernel) as f64).sqrt())?, bias])
        };
        let sizes =
            [[32, 16, 3], [16, 32, 1], [24, 32, 1], [32, 24, 3], [8, 32, 1], [16, 8, 3], [16, 32, 1]].into_iter();
        Ok(Self { weights: sizes.enumerate().map(weight).collect::<Result<_>>()?, pool })
    }

    fn to(&self, dtype: DType, device: &Device) -> Result<Self> {
        let to = |t: &Tensor| t.to_device(device)?.to_dtype(dtype);
        let weights = self.weights.iter().map(|[weight, bias]| Ok([to(weight)?, to(bias)?]));
        Ok(Self { weights: weights.collect::<Result<_>>()?, pool: self.pool })
    }

    /// `x` is `(batch, 16, h, w)`.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let convolution = |at: usize, x: &Tensor| {
            let [weight, bias] = &self.weights[at];
            x.conv2d(weight, weight.dim(2)? / 2, 1, 1, 1)?.broadcast_add(bias)?.relu()
        };
        // Padding below and to the right only, as where a last window reaches past the image.
        let x = self.pool.forward(&convolution(0, x)?, [0, 1], 2)?;
        let branches = [
            convolution(1, &x)?,
            convolution(3, &convolution(2, &x)?)?,
            convolution(5, &convolution(4, &x)?)?,
            convolution(6, &self.pool.forward(&x, [1, 1], 1)?)?,
        ];
        Tensor::cat(&branches, 1)
    }
}

#[test]
fn pools_between_branches_are_no_less_accurate() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    for ((dtype, batch), pool) in FLOATS
        .into_iter()
        .flat_map(|dtype| [(dtype, 1), (dtype, 4)])
        .flat_map(|one| [Pool::Max, Pool::MaxOfFinite, Pool::Mean].map(|pool| (one, pool)))
    {
        let block = Block::new(pool)?;
        let module = block.to(dtype, &device)?;
        let x = |seed| noise(seed, (batch, 16, 28, 28))?.to_dtype(dtype)?.to_device(&device);
        // The same numbers as the module's, and not those before they were rounded.
        let (inputs, wide) = (Inputs { built: vec![x(1)?], asked: vec![x(2)?] }, module.to(DType::F64, &device)?);
        let [module, wide] = [module, wide].map(|block| move |x: &[Tensor]| block.forward(&x[0]));
        let report = no_less_accurate(dtype, &format!("batch {batch}, {pool:?}"), module, wide, inputs)?;
        if is_not_faster(&report) || is_less_accurate(dtype, &report) {
            continue;
        }
        let rule = report.rewrites().iter().find(|rewrite| rewrite.rule == "pool-padding");
        // Copies of two parts along each dimension, and of three; and at each of six edges a number, which is converted, or zeros.
        let for_an_edge = if pool == Pool::Mean || dtype == DType::F32 { 1 } else { 2 };
        let saved = 10 + 6 * for_an_edge;
        assert_eq!(rule.map(|rewrite| (rewrite.times, rewrite.saved)), Some((2, saved)), "{report}");
    }
    Ok(())
}
