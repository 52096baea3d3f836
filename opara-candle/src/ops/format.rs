//! The memory layout of `(batch, channels, h, w)`: NCHW or NHWC ("channels last"). As in PyTorch, the strides give the
//! format, and the shape is the same.

use candle::{Result, Tensor};

/// Is the layout NHWC: contiguous channels per pixel, contiguous pixels per row, contiguous rows?
pub(crate) fn is_channels_last(x: &Tensor) -> bool {
    let (&[_, channels, h, w], &[image, 1, row, pixel]) = (x.dims(), x.stride()) else { return false };
    !x.is_contiguous() && pixel == channels && row == w * channels && image == h * row
}

/// Applies the element-wise `f` to `x` and keeps its memory layout.
pub(crate) fn unary(x: &Tensor, f: impl FnOnce(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
    match is_channels_last(x) {
        true => f(&x.permute((0, 2, 3, 1))?)?.permute((0, 3, 1, 2)),
        false => f(x),
    }
}

/// Applies the element-wise `f` to `x` and `y`, and keeps their memory layout if they share one.
pub(crate) fn binary(x: &Tensor, y: &Tensor, f: impl FnOnce(&Tensor, &Tensor) -> Result<Tensor>) -> Result<Tensor> {
    match is_channels_last(x) && is_channels_last(y) {
        true => f(&x.permute((0, 2, 3, 1))?, &y.permute((0, 2, 3, 1))?)?.permute((0, 3, 1, 2)),
        false => f(x, y),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle::Device;

    #[test]
    fn element_wise_operators_keep_the_memory_layout() -> Result<()> {
        let x = Tensor::arange(0f32, 2. * 3. * 4. * 5., &Device::Cpu)?.reshape((2, 3, 4, 5))?;
        let last = x.permute((0, 2, 3, 1))?.contiguous()?.permute((0, 3, 1, 2))?;
        assert!(is_channels_last(&last) && !is_channels_last(&x) && last.dims() == x.dims());
        let values = |t: &Tensor| t.flatten_all()?.to_vec1::<f32>();
        let (one, two) = (unary(&last, Tensor::sqr)?, binary(&last, &last, |a, b| a + b)?);
        assert!(is_channels_last(&one) && is_channels_last(&two));
        assert_eq!((values(&one)?, values(&two)?), (values(&x.sqr()?)?, values(&(&x + &x)?)?));
        let mixed = binary(&last, &x, |a, b| a + b)?;
        assert_eq!(values(&mixed)?, values(&two)?);
        Ok(())
    }
}
