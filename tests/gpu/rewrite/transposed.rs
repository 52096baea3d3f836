//! Transposed convolutions.

use candle::{DType, Device, Result, Tensor};

use super::{is_less_accurate, is_not_faster, no_less_accurate, noise, Inputs, FLOATS};
use crate::common::gpu;

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
        let numbers = opara_weights::seeded(13, DType::F32, crate::common::CPU);
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
            // Enough elements that their mean error is not chance.
            let (h, w) = if kernel.len() == 2 { (40, 36) } else { (1200, 1) };
            let x = noise(seed, (batch, 24, h, w))?;
            let x = if kernel.len() == 2 { x } else { x.squeeze(3)? };
            x.to_dtype(dtype)?.to_device(&device)
        };
        let (inputs, wide) = (Inputs { built: vec![x(1)?], asked: vec![x(2)?] }, layer.to(DType::F64, &device)?);
        let said = format!("batch {batch}, {kernel:?}");
        let [module, wide] = [module, wide].map(|layer| move |x: &[Tensor]| layer.forward(&x[0]));
        let report = no_less_accurate(dtype, &said, module, wide, inputs)?;
        let rule = report.rewrites().iter().find(|rewrite| rewrite.rule == "transposed-convolution");
        if !is_not_faster(&report) && !is_less_accurate(dtype, &report) {
            assert_eq!(rule.map(|rewrite| (rewrite.times, rewrite.saved)), Some((2, 1)), "{report}");
        }
    }
    Ok(())
}
