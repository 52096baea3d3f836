//! Convolutions of each channel by itself, in any type: candle runs them channel by channel, which takes seconds in f64.

use candle::{Result, Tensor};
use opara_plan::trace::Window;

use crate::ops::{pad, Padding};

/// The sum over a window's elements of what lies under them times their weight. `x` is `(batch, channels, h, w)`, `weight`
/// `(channels, 1, kh, kw)`. The padding is not the window's.
pub(super) fn depthwise(x: &Tensor, weight: &Tensor, window: &Window, padding: Padding) -> Result<Tensor> {
    let [stride, dilation] = [window.stride, window.dilation].map(|pair| pair.map(|n| n as usize));
    let (_, _, kernel_rows, kernel_columns) = weight.dims4()?;
    let x = pad(x, padding)?;
    // Along a dimension, the elements under one of a window's, window by window.
    let under = |x: &Tensor, along: usize, at: usize, kernel: usize| {
        let reach = dilation[along] * (kernel - 1);
        let windows = x.dim(2 + along)?.saturating_sub(reach + 1) / stride[along] + 1;
        let ids = (0..windows).map(|window| (window * stride[along] + at * dilation[along]) as u32);
        x.index_select(&Tensor::from_iter(ids, x.device())?, 2 + along)
    };
    let mut sum: Option<Tensor> = None;
    for row in 0..kernel_rows {
        let rows = under(&x, 0, row, kernel_rows)?;
        for column in 0..kernel_columns {
            let weight = weight.narrow(2, row, 1)?.narrow(3, column, 1)?.reshape((1, (), 1, 1))?;
            let part = under(&rows, 1, column, kernel_columns)?.broadcast_mul(&weight)?;
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
            let weight = Tensor::randn(0f64, 1., (6, 1, kernel, kernel), &Device::Cpu)?;
            let expected = x.conv2d(&weight, padding, stride, dilation, 6)?;
            let pair = |n: usize| [n as u64; 2];
            let [kernel, padding, stride, dilation] = [kernel, padding, stride, dilation].map(pair);
            let of = Window { kernel, padding, stride, dilation, groups: 6 };
            let got = depthwise(&x, &weight, &of, (padding[0] as usize).into())?;
            assert_eq!((got.dims(), got.dtype()), (expected.dims(), DType::F64));
            let largest = (got - expected)?.abs()?.flatten_all()?.max(0)?.to_scalar::<f64>()?;
            assert!(largest < 1e-12, "{largest:.1e} with stride {stride:?}");
        }
        Ok(())
    }
}
