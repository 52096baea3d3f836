//! Replay against eager, bit for bit.

use candle::{DType, Device, Result, Tensor};

use crate::Error;

/// Factor between the example's floats and those of the second input: it keeps them finite and exact to scale.
const SCALE: f64 = 0.75;

/// Inputs of the same shapes and dtypes with other values: floats reversed and scaled, integers the lower of what is there
/// and what is there from the end on. So an id stays within the table that it was meant for, also where each place of a
/// row has a table of its own: out of range, it would take a GPU's context down. A single number, say a position, comes
/// nearer to 0. Where these are the same numbers floats rise, and the last integer is 0; integers that are all 0 stay.
///
/// They are made on the host: of a GPU's kernels some take memory when they are first used, which nothing else here needs
/// (of candle's `indexing`, which asserts, 90 MiB on an H200 with driver 580).
pub(crate) fn other_values(inputs: &[Tensor]) -> Result<Vec<Tensor>> {
    let mut differ = inputs.iter().all(|input| input.elem_count() == 0);
    let mut others = Vec::with_capacity(inputs.len());
    for input in inputs {
        let other = other(&input.to_device(&Device::Cpu)?.contiguous()?)?;
        differ |= other.is_some();
        others.push(other.map_or_else(|| Ok(input.clone()), |other| other.to_device(input.device()))?);
    }
    if !differ {
        tracing::warn!("the example's integers are all zero: whether results depend on what they are is not checked");
    }
    Ok(others)
}

/// On the host, of a contiguous tensor there; `None` if there are none.
fn other(input: &Tensor) -> Result<Option<Tensor>> {
    let count = input.elem_count();
    if count == 0 {
        return Ok(None);
    }
    let flat = input.flatten_all()?;
    let reversed = if count == 1 { flat.clone() } else { flat.flip(&[0])? };
    let other = if input.dtype().is_float() {
        let scaled = (reversed * SCALE)?;
        match same(&scaled, &flat)? {
            // The order of zeros, infinities and NaN, and their scale, make no other values.
            true => Tensor::arange(0f32, count as f32, &Device::Cpu)?.affine(1. / count as f64, 0.5 / count as f64)?,
            false => scaled,
        }
    } else {
        let lower = match count {
            // Of a dtype that cannot be divided it stays.
            1 => (&flat / (flat.ones_like()? + flat.ones_like()?)?).unwrap_or_else(|_| flat.clone()),
            _ => flat.minimum(&reversed)?,
        };
        let last = flat.narrow(0, count - 1, 1)?;
        match same(&lower, &flat)? {
            true if same(&last, &last.zeros_like()?)? => return Ok(None),
            true => Tensor::cat(&[flat.narrow(0, 0, count - 1)?, last.zeros_like()?], 0)?,
            false => lower,
        }
    };
    Ok(Some(other.to_dtype(input.dtype())?.reshape(input.shape())?))
}

/// Whether two tensors of one dimension and size have the same bits.
fn same(a: &Tensor, b: &Tensor) -> Result<bool> {
    /// Most tensors that differ do so here.
    const AT_ONCE: usize = 4096;
    for start in (0..a.elem_count()).step_by(AT_ONCE) {
        let some = |t: &Tensor| bits(&t.narrow(0, start, AT_ONCE.min(a.elem_count() - start))?);
        if some(a)? != some(b)? {
            return Ok(false);
        }
    }
    Ok(true)
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

    #[test]
    fn other_values_differ() -> Result<()> {
        let zeros = Tensor::zeros((2, 2), DType::F16, &Device::Cpu)?;
        let mask = Tensor::ones((1, 3), DType::I64, &Device::Cpu)?;
        let column = Tensor::new(&[[1f32, 2.], [3., 4.]], &Device::Cpu)?.narrow(1, 1, 1)?.squeeze(1)?;
        let number = Tensor::new(0f64, &Device::Cpu)?;
        let inputs = [zeros, mask, column, number];
        let other = other_values(&inputs)?;
        for (input, other) in inputs.iter().zip(&other) {
            assert_eq!((input.shape(), input.dtype()), (other.shape(), other.dtype()));
        }
        assert_eq!(other[0].to_dtype(DType::F32)?.to_vec2::<f32>()?, [[0.125, 0.375], [0.625, 0.875]]);
        assert_eq!(other[1].to_vec2::<i64>()?, [[1, 1, 0]]);
        assert_eq!(other[2].to_vec1::<f32>()?, [3., 1.5]);
        assert_eq!(other[3].to_scalar::<f64>()?, 0.5);
        // What there is nothing lower than.
        let ids = Tensor::zeros((1, 3), DType::U32, &Device::Cpu)?;
        assert_eq!(other_values(&[ids])?[0].to_vec2::<u32>()?, [[0, 0, 0]]);
        Ok(())
    }
}
