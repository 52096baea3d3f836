//! Convolutions in f64, by a kernel or as sums over the elements of a window: candle runs groups one by one, which takes seconds where
//! each channel is one, and libraries have no fast convolution of this type, but products.

use candle::{Result, Tensor};
use opara_plan::trace::Window;

use super::elementwise::binary;
#[cfg(feature = "cuda")]
use crate::ops::double_conv;
use crate::ops::{pad, Padding};

/// The sum over a window's elements of what lies under them times their weight. `x` is `(batch, channels, h, w)`, `weight`
/// `(out, channels / groups, kh, kw)`. The padding is not the window's.
pub(super) fn convolution(x: &Tensor, weight: &Tensor, window: &Window, padding: Padding) -> Result<Tensor> {
    let [stride, dilation] = [window.stride, window.dilation].map(|pair| pair.map(|n| n as usize));
    let (out, inner, kernel_rows, kernel_columns) = weight.dims4()?;
    let (batch, channels, _, _) = x.dims4()?;
    let groups = channels / inner.max(1);
    #[cfg(feature = "cuda")]
    if (inner, out) != (1, groups) {
        if let Some(y) = double_conv(x, weight, padding, stride.into(), dilation.into())? {
            return Ok(y);
        }
    }
    let x = pad(x, padding)?;
    // Along a dimension, the elements under one of a window's, window by window.
    let under = |x: &Tensor, along: usize, at: usize, kernel: usize| {
        let reach = dilation[along] * (kernel - 1);
        let windows = x.dim(2 + along)?.saturating_sub(reach + 1) / stride[along] + 1;
        let first = at * dilation[along];
        if stride[along] == 1 {
            return x.narrow(2 + along, first, windows);
        }
        let ids = (0..windows).map(|window| (window * stride[along] + first) as u32);
        x.contiguous()?.index_select(&Tensor::from_iter(ids, x.device())?, 2 + along)
    };
    let weight = weight.permute((2, 3, 0, 1))?.contiguous()?;
    let mut sum: Option<Tensor> = None;
    for row in 0..kernel_rows {
        let rows = under(&x, 0, row, kernel_rows)?;
        for column in 0..kernel_columns {
            let under = under(&rows, 1, column, kernel_columns)?.contiguous()?;
            let (_, _, h, w) = under.dims4()?;
            let weight = weight.get(row)?.get(column)?;
            let part = if (inner, out) == (1, groups) {
                binary("mul", &under, &weight.reshape((1, out, 1, 1))?)?
            } else {
                let weight = weight.reshape((1, groups, out / groups, inner))?;
                let product = weight.broadcast_matmul(&under.reshape((batch, groups, inner, h * w))?)?;
                product.reshape((batch, out, h, w))?
            };
            sum = Some(sum.map_or(Ok(part.clone()), |sum| sum + part)?);
        }
    }
    sum.ok_or_else(|| candle::Error::Msg("a window without elements".into()))
}

#[cfg(test)]
mod tests {
    use candle::{DType, Device};

    use super::*;

    #[test]
    fn the_same_as_candles() -> Result<()> {
        let x = Tensor::randn(0f64, 1., (2, 6, 11, 9), &Device::Cpu)?;
        for (kernel, padding, stride, dilation) in [(3, 1, 1, 1), (5, 2, 2, 1), (3, 0, 2, 2), (1, 0, 1, 1)] {
            for (groups, out) in [(6, 6), (6, 12), (3, 9), (1, 4)] {
                let weight = Tensor::randn(0f64, 1., (out, 6 / groups, kernel, kernel), &Device::Cpu)?;
                let expected = x.conv2d(&weight, padding, stride, dilation, groups)?;
                let pair = |n: usize| [n as u64; 2];
                let [kernel, padding, stride, dilation] = [kernel, padding, stride, dilation].map(pair);
                let window = Window { kernel, padding, stride, dilation, groups: groups as u64 };
                let got = convolution(&x, &weight, &window, (padding[0] as usize).into())?;
                assert_eq!((got.dims(), got.dtype()), (expected.dims(), DType::F64));
                let largest = (got - expected)?.abs()?.flatten_all()?.max(0)?.to_scalar::<f64>()?;
                assert!(largest < 1e-12, "{largest:.1e} of {groups} groups with stride {stride:?}");
            }
        }
        Ok(())
    }

    #[test]
    fn rows_may_differ_from_columns() -> Result<()> {
        let x = Tensor::randn(0f64, 1., (2, 4, 13, 1), &Device::Cpu)?;
        let weight = Tensor::randn(0f64, 1., (6, 4, 3, 1), &Device::Cpu)?;
        let expected = x.squeeze(3)?.conv1d(&weight.squeeze(3)?, 2, 2, 2, 1)?;
        let window = Window { kernel: [3, 1], padding: [2, 0], stride: [2, 1], dilation: [2, 1], groups: 1 };
        let got = convolution(&x, &weight, &window, (2, 0).into())?.squeeze(3)?;
        assert!((got - expected)?.abs()?.flatten_all()?.max(0)?.to_scalar::<f64>()? < 1e-12);
        Ok(())
    }
}
