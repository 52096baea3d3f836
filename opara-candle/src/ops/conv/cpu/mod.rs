//! Convolution on the CPU: chooses the kernel and the way it is parallelised.

mod depthwise;
mod product;
mod shapes;

use candle::{CpuStorage, CustomOp2, CustomOp3, Layout, Result, Shape, Tensor};

use self::depthwise::depthwise;
use self::product::{Group, Product};
use self::shapes::Conv;
use crate::cpu::kernels::{each, elements, Element, WORTH_A_THREAD};
use crate::gradient::{applied2, applied3};
use crate::ops::ConvConfig;

/// Convolution, bias and activation as one operator.
pub(super) fn conv2d(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, config: ConvConfig) -> Result<Tensor> {
    let (x, weight) = (x.contiguous()?, weight.contiguous()?);
    match bias {
        Some(bias) => applied3(&x, &weight, &bias.contiguous()?, &Conv2d(config)),
        None => applied2(&x, &weight, &Conv2d(config)),
    }
}

/// The custom operator: two operands without a bias, three with one.
struct Conv2d(ConvConfig);

/// A contiguous operand.
type Operand<'a, S> = (&'a S, &'a Layout);

impl Conv2d {
    fn on_cpu(
        &self,
        x: Operand<CpuStorage>,
        weight: Operand<CpuStorage>,
        bias: Option<Operand<CpuStorage>>,
    ) -> Result<(CpuStorage, Shape)> {
        let (batch, channels, h, w) = x.1.shape().dims4()?;
        let (out, _, kh, kw) = weight.1.shape().dims4()?;
        let output = self.0.output((h, w), (kh, kw))?;
        let conv = Conv { config: self.0, batch, channels: (channels, out), input: (h, w), window: (kh, kw), output };
        macro_rules! run {
            ($t:ty) => {{
                let bias = bias.map(|(bias, layout)| elements::<$t>(bias, layout)).transpose()?;
                let (x, weight) = (elements(x.0, x.1)?, elements(weight.0, weight.1)?);
                <$t as candle::WithDType>::to_cpu_storage_owned(convolved::<$t>(&conv, x, weight, bias))
            }};
        }
        let y = of_floats!(x.0, run, "convolution");
        Ok((y, (batch, out, output.0, output.1).into()))
    }
}

impl CustomOp2 for Conv2d {
    fn name(&self) -> &'static str {
        "conv2d"
    }

    fn cpu_fwd(&self, x: &CpuStorage, xl: &Layout, w: &CpuStorage, wl: &Layout) -> Result<(CpuStorage, Shape)> {
        self.on_cpu((x, xl), (w, wl), None)
    }
}

impl CustomOp3 for Conv2d {
    fn name(&self) -> &'static str {
        "conv2d"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        xl: &Layout,
        w: &CpuStorage,
        wl: &Layout,
        b: &CpuStorage,
        bl: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        self.on_cpu((x, xl), (w, wl), Some((b, bl)))
    }
}

/// With at least this many output channels per input channel, im2col and a matmul are faster than the depthwise kernel.
const MATMUL_CHANNELS: usize = 4;

/// Computes the result of contiguous operands.
fn convolved<T: Element>(conv: &Conv, x: &[T], weight: &[T], bias: Option<&[T]>) -> Vec<T> {
    let groups = conv.config.groups;
    let (channels, outs) = (conv.channels.0 / groups, conv.channels.1 / groups);
    let (k, n) = (channels * conv.window.0 * conv.window.1, conv.output.0 * conv.output.1);
    let mut y = vec![T::zero(); conv.batch * conv.channels.1 * n];
    if y.is_empty() {
        return y;
    }
    if channels == 1 && outs < MATMUL_CHANNELS {
        depthwise(conv, x, weight, bias, &mut y);
        return y;
    }
    let product = Product::new(conv);
    let work = 2 * outs * k * n;
    let xs = x.chunks_exact(channels * conv.input.0 * conv.input.1);
    let tasks: Vec<_> = xs.zip(y.chunks_exact_mut(outs * n)).enumerate().collect();
    // Parallelise either over the groups and batch items, or inside each matmul.
    let many = tasks.len() >= 4 * rayon::current_num_threads() || work < WORTH_A_THREAD;
    let worth = tasks.len() * work > WORTH_A_THREAD;
    let run = || {
        each(many && worth, tasks, |(i, (x, y))| {
            let first = i % groups * outs;
            let (weight, bias) = (&weight[first * k..][..outs * k], bias.map(|bias| &bias[first..][..outs]));
            product.run(Group { x, weight, bias }, !many, y)
        })
    };
    match worth {
        // Enter the thread pool once, not once per step.
        true => rayon::scope(|_| run()),
        false => run(),
    }
    y
}
