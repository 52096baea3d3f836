//! Compares outputs of replay and eager execution bit by bit.

use candle::{DType, Device, Result, Tensor};

use crate::Error;

/// Do two tensors of one shape and dtype have the same bits? All NaN count as equal.
pub(crate) fn same_values(a: &Tensor, b: &Tensor) -> Result<bool> {
    /// Most tensors that differ do so within their first elements.
    const AT_ONCE: usize = 4096;
    if a.id() == b.id() {
        return Ok(true);
    }
    let on_host = |t: &Tensor| t.to_device(&Device::Cpu)?.flatten_all();
    let (a, b) = (on_host(a)?, on_host(b)?);
    for start in (0..a.elem_count()).step_by(AT_ONCE) {
        let some = |t: &Tensor| bits(&t.narrow(0, start, AT_ONCE.min(a.elem_count() - start))?);
        if some(&a)? != some(&b)? {
            return Ok(false);
        }
    }
    Ok(true)
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

/// The bits of the elements, with one value for all NaN.
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
}
