//! Replay against eager, bit for bit.

use candle::{DType, Device, Result, Tensor};

use crate::Error;

/// Factor between the example's floats and those of the second input: it keeps them finite and exact to scale.
const SCALE: f64 = 0.75;

/// Inputs of the same shapes and dtypes with other values: floats reversed and scaled, integers the lower of what is there
/// and what is there from the end on. So an id stays within the table that it was meant for, also where each place of a
/// row has a table of its own: out of range, it would take a GPU's context down. A single number, say a position, comes
/// nearer to 0.
///
/// They are made on the host: of a GPU's kernels some take memory when they are first used, which nothing else here needs
/// (of candle's `indexing`, which asserts, 90 MiB on an H200 with driver 580).
pub(crate) fn other_values(inputs: &[Tensor]) -> Result<Vec<Tensor>> {
    inputs.iter().map(|input| other(&input.to_device(&Device::Cpu)?)?.to_device(input.device())).collect()
}

fn other(input: &Tensor) -> Result<Tensor> {
    let flat = input.flatten_all()?;
    let halved = || input / (input.ones_like()? + input.ones_like()?);
    match flat.elem_count() {
        0 => return Ok(input.clone()),
        1 if input.dtype().is_float() => return input * SCALE,
        // Of a dtype that cannot be divided it stays.
        1 => return halved().or_else(|_| Ok(input.clone())),
        _ => {}
    }
    let reversed = flat.flip(&[0])?.reshape(input.shape())?;
    if input.dtype().is_float() {
        reversed * SCALE
    } else {
        input.minimum(&reversed)
    }
}

/// What the module's error on [other values](other_values) means, where it takes the example: that it is sound, but that
/// a recording cannot be proven to hold for other values.
pub(crate) fn fails_on_other_values(error: Error) -> Error {
    match error {
        Error::Candle(error) => {
            let reason = format!("it fails on other values in inputs of the same shapes: {error}");
            Error::NotCapturable { reason }
        }
        error => error,
    }
}

/// Compares outputs bit for bit; NaN equals NaN.
///
/// # Errors
/// [`Error::Mismatch`] for the first output that differs.
pub(crate) fn same_bits(mode: &'static str, expected: &[Tensor], got: &[Tensor]) -> crate::Result<()> {
    if expected.len() != got.len() {
        let output = expected.len().min(got.len());
        let elements = expected.get(output).or(got.get(output)).map_or(1, |t| t.elem_count().max(1));
        return Err(Error::Mismatch { mode, output, differing: elements, elements });
    }
    for (output, (expected, got)) in expected.iter().zip(got).enumerate() {
        let elements = expected.elem_count();
        let differing = if expected.shape() == got.shape() && expected.dtype() == got.dtype() {
            bits(expected)?.iter().zip(bits(got)?).filter(|(a, b)| **a != *b).count()
        } else {
            elements.max(1)
        };
        if differing > 0 {
            return Err(Error::Mismatch { mode, output, differing, elements });
        }
    }
    Ok(())
}

/// The elements' bits, every NaN the same.
fn bits(tensor: &Tensor) -> Result<Vec<u64>> {
    const NAN: u64 = u64::MAX;
    let flat = tensor.to_device(&Device::Cpu)?.flatten_all()?;
    let float = |nan: bool, bits: u64| if nan { NAN } else { bits };
    Ok(match tensor.dtype() {
        DType::U8 => flat.to_vec1::<u8>()?.into_iter().map(u64::from).collect(),
        DType::U32 => flat.to_vec1::<u32>()?.into_iter().map(u64::from).collect(),
        DType::I64 => flat.to_vec1::<i64>()?.into_iter().map(|v| v as u64).collect(),
        DType::F32 => flat.to_vec1::<f32>()?.into_iter().map(|v| float(v.is_nan(), v.to_bits().into())).collect(),
        DType::F16 => flat.to_vec1::<half::f16>()?.into_iter().map(|v| float(v.is_nan(), v.to_bits().into())).collect(),
        DType::BF16 => {
            flat.to_vec1::<half::bf16>()?.into_iter().map(|v| float(v.is_nan(), v.to_bits().into())).collect()
        }
        // Every value of the narrower types is exact as a double.
        _ => flat.to_dtype(DType::F64)?.to_vec1::<f64>()?.into_iter().map(|v| float(v.is_nan(), v.to_bits())).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nan_equals_nan_and_zeros_differ_by_sign() -> Result<()> {
        let t = |v: &[f32]| Tensor::new(v, &Device::Cpu);
        assert!(same_bits("test", &[t(&[f32::NAN, 1.])?], &[t(&[-f32::NAN, 1.])?]).is_ok());
        let error = same_bits("test", &[t(&[0., 1.])?], &[t(&[-0., 1.])?]).unwrap_err();
        assert!(matches!(error, Error::Mismatch { output: 0, differing: 1, elements: 2, .. }));
        assert!(same_bits("test", &[t(&[0., 1.])?], &[t(&[0.])?]).is_err());
        let error = same_bits("test", &[t(&[0.])?], &[t(&[0.])?, t(&[0., 1.])?]).unwrap_err();
        assert!(matches!(error, Error::Mismatch { output: 1, .. }), "one more output than expected");
        Ok(())
    }

    #[test]
    fn other_values_stay_in_range() -> Result<()> {
        let ids = Tensor::new(&[[3u32, 7, 9]], &Device::Cpu)?;
        let x = Tensor::new(&[1f32, 2.], &Device::Cpu)?;
        let other = other_values(&[ids, x])?;
        assert_eq!(other[0].to_vec2::<u32>()?, [[3, 7, 3]]);
        assert_eq!(other[1].to_vec1::<f32>()?, [1.5, 0.75]);
        let position = |dtype| Tensor::new(7u32, &Device::Cpu)?.to_dtype(dtype);
        for dtype in [DType::U8, DType::U32, DType::I64] {
            assert_eq!(other_values(&[position(dtype)?])?[0].to_dtype(DType::U32)?.to_scalar::<u32>()?, 3);
        }
        Ok(())
    }
}
