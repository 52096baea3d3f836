//! Compares outputs of replay and eager execution bit by bit.

use candle::{bail, DType, Device, Result, Tensor};

use crate::Mismatch;

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
/// [`Mismatch`] for the first output that differs.
pub(crate) fn same_bits(mode: &'static str, expected: &[Tensor], got: &[Tensor]) -> crate::Result<()> {
    if expected.len() != got.len() {
        let output = expected.len().min(got.len());
        let elements = expected.get(output).or(got.get(output)).map_or(1, |t| t.elem_count().max(1));
        return Err(Mismatch { mode, output, differing: elements, elements }.into());
    }
    for (output, (expected, got)) in expected.iter().zip(got).enumerate() {
        let elements = expected.elem_count();
        let differing = if expected.shape() == got.shape() && expected.dtype() == got.dtype() {
            bits(expected)?.iter().zip(bits(got)?).filter(|(a, b)| **a != *b).count()
        } else {
            elements.max(1)
        };
        if differing > 0 {
            return Err(Mismatch { mode, output, differing, elements }.into());
        }
    }
    Ok(())
}

/// [`same_bits`], for which values are copied to the host only if they differ.
///
/// # Errors
/// [`Mismatch`] for the first output that differs.
pub(crate) fn same_bits_by_device(mode: &'static str, expected: &[Tensor], got: &[Tensor]) -> crate::Result<()> {
    if same_on_device(expected, got) {
        return Ok(());
    }
    same_bits(mode, expected, got)
}

/// Are all elements equal, as compared on the device, without copying them to the host? If not, or if the device cannot compare
/// them, the caller compares them on the host.
pub(crate) fn same_on_device(expected: &[Tensor], got: &[Tensor]) -> bool {
    let on_device = |(a, b): (&Tensor, &Tensor)| {
        !a.device().is_cpu()
            && a.shape() == b.shape()
            && a.dtype() == b.dtype()
            && differing(a, b).is_ok_and(|differing| differing == 0)
    };
    expected.len() == got.len() && expected.iter().zip(got).all(on_device)
}

/// The number of elements that differ, computed with candle's operators. All NaN count as equal; zeros differ by sign.
fn differing(a: &Tensor, b: &Tensor) -> Result<u32> {
    if a.elem_count() == 0 {
        return Ok(0);
    }
    /// Elements at a time: each takes a few more bytes meanwhile.
    const AT_ONCE: usize = 1 << 24;
    let (a, b) = (a.flatten_all()?, b.flatten_all()?);
    if a.elem_count() > AT_ONCE {
        let part = |t: &Tensor, start: usize| t.narrow(0, start, AT_ONCE.min(t.elem_count() - start));
        let counts = (0..a.elem_count()).step_by(AT_ONCE).map(|at| differing(&part(&a, at)?, &part(&b, at)?));
        return Ok(counts.map(|count| count.map(u64::from)).sum::<Result<u64>>()?.min(u32::MAX.into()) as u32);
    }
    let mut same = a.eq(&b)?;
    match a.dtype() {
        DType::F64 | DType::F32 | DType::F16 | DType::BF16 => {
            // Zeros of different signs have different infinities as reciprocals.
            same = (same * a.recip()?.eq(&b.recip()?)?)?;
            same = (same + (a.ne(&a)? * b.ne(&b)?)?)?;
        }
        dtype if dtype.is_int() => {}
        dtype => bail!("zeros of {dtype:?} with different signs are equal to candle's operators"),
    }
    same.eq(0u8)?.to_dtype(DType::U32)?.sum_all()?.to_device(&Device::Cpu)?.to_scalar()
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
    use crate::Error;

    #[test]
    fn candles_operators_see_the_differences_that_bits_show() -> Result<()> {
        let values = [0., -0., f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1., -1., 1e-40, 2e-40, f32::MAX];
        for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16, DType::U8, DType::U32, DType::I64] {
            let one = |value: f32| Tensor::new(&[value], &Device::Cpu)?.to_dtype(dtype);
            for (a, b) in values.iter().flat_map(|a| values.iter().map(move |b| (*a, *b))) {
                let (x, y) = (one(a)?, one(b)?);
                let same = same_bits("test", std::slice::from_ref(&x), std::slice::from_ref(&y)).is_ok();
                assert_eq!(differing(&x, &y)? == 0, same, "{a} and {b} as {dtype:?}");
            }
        }
        let (x, y) =
            (Tensor::new(&[[1f32, 2.], [3., 4.]], &Device::Cpu)?, Tensor::new(&[[1f32, 0.], [0., 4.]], &Device::Cpu)?);
        assert_eq!(differing(&x, &y)?, 2);
        // candle does not compare the signs of these zeros: that is left to the host.
        let zeros = |sign: f32| Tensor::new(&[sign * 0.], &Device::Cpu)?.to_dtype(DType::F8E4M3);
        assert!(differing(&zeros(1.)?, &zeros(-1.)?).is_err());
        Ok(())
    }

    #[test]
    fn nan_equals_nan_and_zeros_differ_by_sign() -> Result<()> {
        let t = |v: &[f32]| Tensor::new(v, &Device::Cpu);
        assert!(same_bits("test", &[t(&[f32::NAN, 1.])?], &[t(&[-f32::NAN, 1.])?]).is_ok());
        let error = same_bits("test", &[t(&[0., 1.])?], &[t(&[-0., 1.])?]).unwrap_err();
        assert!(matches!(error, Error::Mismatch(Mismatch { output: 0, differing: 1, elements: 2, .. })));
        assert!(same_bits("test", &[t(&[0., 1.])?], &[t(&[0.])?]).is_err());
        let error = same_bits("test", &[t(&[0.])?], &[t(&[0.])?, t(&[0., 1.])?]).unwrap_err();
        assert!(matches!(error, Error::Mismatch(Mismatch { output: 1, .. })), "one more output than expected");
        Ok(())
    }
}
