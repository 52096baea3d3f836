//! The difference between two results.

use anyhow::{ensure, Result};
use candle::{DType, Device, Tensor};

/// Computes the largest difference between `got` and `expected`, relative to the largest expected value.
///
/// # Errors
/// Tensors of different shapes, or an error of the device.
pub fn relative_error(got: &Tensor, expected: &Tensor) -> Result<f32> {
    ensure!(got.shape() == expected.shape(), "a shape of {:?} instead of {:?}", got.dims(), expected.dims());
    let values = |tensor: &Tensor| -> Result<Vec<f32>> {
        Ok(tensor.to_dtype(DType::F32)?.to_device(&Device::Cpu)?.flatten_all()?.to_vec1()?)
    };
    let (got, expected) = (values(got)?, values(expected)?);
    // Not `f32::max`, which ignores NaN.
    let max = |values: &mut dyn Iterator<Item = f32>| {
        values.fold(0f32, |max, value| if max.is_nan() || value.abs() <= max { max } else { value.abs() })
    };
    Ok(max(&mut got.iter().zip(&expected).map(|(a, b)| a - b)) / max(&mut expected.iter().copied()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(values: &[f32]) -> Result<Tensor> {
        Ok(Tensor::new(values, &Device::Cpu)?)
    }

    #[test]
    fn errors_are_relative_to_the_largest_value() -> Result<()> {
        assert_eq!(relative_error(&tensor(&[1., -3.5])?, &tensor(&[1., -4.])?)?, 0.125);
        assert_eq!(relative_error(&tensor(&[1., 2.])?, &tensor(&[1., 2.])?)?, 0.);
        Ok(())
    }

    #[test]
    fn nan_and_other_shapes_do_not_pass() -> Result<()> {
        for got in [[f32::NAN, 1.], [1., f32::NAN]] {
            assert!(relative_error(&tensor(&got)?, &tensor(&[1., 1.])?)?.is_nan(), "{got:?}");
        }
        assert!(relative_error(&tensor(&[1.])?, &tensor(&[1., 1.])?).is_err());
        Ok(())
    }
}
