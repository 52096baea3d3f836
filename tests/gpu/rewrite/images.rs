//! A block of EfficientNets: zeros around an image, SiLU as a product with a sigmoid, and channels that are multiplied by what a mean
//! of them gives.

use candle::{DType, Device, Result, Tensor};

use super::{is_less_accurate, is_not_faster, no_less_accurate, noise, Inputs, FLOATS};
use crate::common::gpu;

const CHANNELS: usize = 48;
const SQUEEZED: usize = 16;

#[derive(Clone)]
struct Block {
    /// Of each channel, with a bias.
    deep: [Tensor; 2],
    /// From the channels to fewer and back, with biases.
    squeeze: [Tensor; 4],
    kernel: usize,
    stride: usize,
    /// Whether means are of columns and then rows, as in EfficientNets, or of both at once.
    is_in_steps: bool,
}

impl Block {
    fn new(kernel: usize, stride: usize, is_in_steps: bool) -> Result<Self> {
        let numbers = opara_weights::seeded(17, DType::F32, crate::common::CPU);
        let weight = |name: &str, out: usize, inner: usize| numbers.get((out, inner, 1, 1), name);
        let bias = |name: &str, out: usize| numbers.get((out, 1), name)?.reshape((1, out, 1, 1));
        let deep = [numbers.get((CHANNELS, 1, kernel, kernel), "deep")?, bias("of deep", CHANNELS)?];
        let squeeze = [
            weight("down", SQUEEZED, CHANNELS)?,
            bias("of down", SQUEEZED)?,
            weight("up", CHANNELS, SQUEEZED)?,
            bias("of up", CHANNELS)?,
        ];
        Ok(Self { deep, squeeze, kernel, stride, is_in_steps })
    }

    fn to(&self, dtype: DType, device: &Device) -> Result<Self> {
        let to = |t: &Tensor| t.to_device(device)?.to_dtype(dtype);
        let [weight, bias] = self.deep.each_ref().map(to);
        let [down, of_down, up, of_up] = self.squeeze.each_ref().map(to);
        Ok(Self { deep: [weight?, bias?], squeeze: [down?, of_down?, up?, of_up?], ..*self })
    }

    /// `x` is `(batch, channels, h, w)`.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let swish = |x: &Tensor| x * candle_nn::ops::sigmoid(x)?;
        let Self { deep: [weight, bias], squeeze: [down, of_down, up, of_up], kernel, stride, is_in_steps } = self;
        let zeros = kernel - stride;
        let (before, after) = (zeros / 2, zeros - zeros / 2);
        let x = x.relu()?.pad_with_zeros(2, before, after)?.pad_with_zeros(3, before, after)?;
        let x = swish(&x.conv2d(weight, 0, *stride, 1, CHANNELS)?.broadcast_add(bias)?)?;
        let mean = match is_in_steps {
            true => x.mean_keepdim(2)?.mean_keepdim(3)?,
            false => x.mean_keepdim((2, 3))?,
        };
        let gate = swish(&mean.conv2d(down, 0, 1, 1, 1)?.broadcast_add(of_down)?)?;
        let gate = candle_nn::ops::sigmoid(&gate.conv2d(up, 0, 1, 1, 1)?.broadcast_add(of_up)?)?;
        x.broadcast_mul(&gate)
    }
}

#[test]
fn squeezed_images_are_no_less_accurate() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let blocks = [(3, 1, true), (5, 1, false), (3, 2, true), (5, 2, true)];
    for ((dtype, batch), (kernel, stride, is_in_steps)) in
        FLOATS.into_iter().flat_map(|dtype| [(dtype, 1), (dtype, 3)]).flat_map(|one| blocks.map(|block| (one, block)))
    {
        let block = Block::new(kernel, stride, is_in_steps)?;
        let module = block.to(dtype, &device)?;
        let x = |seed| noise(seed, (batch, CHANNELS, 28, 28))?.to_dtype(dtype)?.to_device(&device);
        let (inputs, wide) = (Inputs { built: vec![x(1)?], asked: vec![x(2)?] }, block.to(DType::F64, &device)?);
        let said = format!("batch {batch}, {kernel} x {kernel}, stride {stride}, in steps {is_in_steps}");
        let [module, wide] = [module, wide].map(|block| move |x: &[Tensor]| block.forward(&x[0]));
        let report = no_less_accurate(dtype, &said, module, wide, inputs)?;
        if is_not_faster(&report) || is_less_accurate(dtype, &report) {
            continue;
        }
        let times = |rule| report.rewrites().iter().find(|rewrite| rewrite.rule == rule).map(|rewrite| rewrite.times);
        assert_eq!(times("grouped-convolution"), Some(1), "{report}");
        assert_eq!(times("convolution-padding"), Some(1), "{report}");
        if dtype != DType::F32 {
            let rules = ["convolution-activation", "row-mean", "pixel-product", "product-activation"];
            assert_eq!(rules.map(times), [Some(1), Some(1), Some(2), Some(1)], "{report}");
        }
    }
    Ok(())
}
