//! Re-checks in production: compares every n-th replay with eager execution.

use std::sync::atomic::{AtomicU64, Ordering};

use candle::{DType, Device, Tensor};

use crate::{verify, Error, Result};

/// The interval of an executor's re-checks, and their results so far.
pub(crate) struct Rechecks {
    /// Of each shape, one call of this many is compared; 0 for none.
    pub every: u64,
    done: AtomicU64,
    mismatches: AtomicU64,
}

impl Rechecks {
    pub fn new(every: u64) -> Self {
        Self { every, done: AtomicU64::new(0), mismatches: AtomicU64::new(0) }
    }

    /// Compares a replay's outputs with those of the module, bit for bit.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if they differ, or an error of the comparison itself.
    pub fn compare(&self, expected: &[Tensor], got: &[Tensor]) -> Result<()> {
        let result = if same_on_device(expected, got) { Ok(()) } else { verify::same_bits("replay", expected, got) };
        match &result {
            Ok(()) => _ = self.done.fetch_add(1, Ordering::Relaxed),
            Err(error @ Error::Mismatch { .. }) => {
                self.done.fetch_add(1, Ordering::Relaxed);
                self.mismatches.fetch_add(1, Ordering::Relaxed);
                tracing::error!(%error, "a re-check failed: the module's own answer is returned, and its shapes run eagerly");
            }
            Err(error) => tracing::warn!(%error, "a re-check could not compare: the module's own answer is returned"),
        }
        result
    }

    /// The number of re-checks, and of those that found a difference.
    pub fn counts(&self) -> (u64, u64) {
        (self.done.load(Ordering::Relaxed), self.mismatches.load(Ordering::Relaxed))
    }
}

/// Are all elements equal, as compared on the device, without copying them to the host? If not, or if the device cannot compare
/// them, the caller compares them on the host.
fn same_on_device(expected: &[Tensor], got: &[Tensor]) -> bool {
    let on_device = |(a, b): (&Tensor, &Tensor)| {
        !a.device().is_cpu()
            && a.shape() == b.shape()
            && a.dtype() == b.dtype()
            && differing(a, b).is_ok_and(|differing| differing == 0)
    };
    expected.len() == got.len() && expected.iter().zip(got).all(on_device)
}

/// The number of elements that differ, computed with candle's operators. All NaN count as equal; zeros differ by sign.
fn differing(a: &Tensor, b: &Tensor) -> candle::Result<u32> {
    if a.elem_count() == 0 {
        return Ok(0);
    }
    let (a, b) = (a.flatten_all()?, b.flatten_all()?);
    let mut same = a.eq(&b)?;
    if matches!(a.dtype(), DType::F64 | DType::F32 | DType::F16 | DType::BF16) {
        // Of two zeros of different signs the reciprocals are different infinities.
        same = (same * a.recip()?.eq(&b.recip()?)?)?;
        same = (same + (a.ne(&a)? * b.ne(&b)?)?)?;
    }
    same.eq(0u8)?.to_dtype(DType::U32)?.sum_all()?.to_device(&Device::Cpu)?.to_scalar()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn candles_operators_see_the_differences_that_bits_show() -> anyhow::Result<()> {
        let values = [0., -0., f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1., -1., 1e-40, 2e-40, f32::MAX];
        for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16, DType::U8, DType::U32, DType::I64] {
            let one = |value: f32| Tensor::new(&[value], &Device::Cpu)?.to_dtype(dtype);
            for (a, b) in values.iter().flat_map(|a| values.iter().map(move |b| (*a, *b))) {
                let (x, y) = (one(a)?, one(b)?);
                let same = verify::same_bits("test", std::slice::from_ref(&x), std::slice::from_ref(&y)).is_ok();
                assert_eq!(differing(&x, &y)? == 0, same, "{a} and {b} as {dtype:?}");
            }
        }
        let (x, y) =
            (Tensor::new(&[[1f32, 2.], [3., 4.]], &Device::Cpu)?, Tensor::new(&[[1f32, 0.], [0., 4.]], &Device::Cpu)?);
        assert_eq!(differing(&x, &y)?, 2);
        Ok(())
    }

    #[test]
    fn comparisons_are_counted() -> anyhow::Result<()> {
        let rechecks = Rechecks::new(1);
        let x = [Tensor::new(&[1f32, 2.], &Device::Cpu)?];
        let y = [Tensor::new(&[1f32, 3.], &Device::Cpu)?];
        rechecks.compare(&x, &x)?;
        assert!(matches!(rechecks.compare(&x, &y), Err(Error::Mismatch { differing: 1, .. })));
        assert!(matches!(rechecks.compare(&x, &[]), Err(Error::Mismatch { .. })));
        assert_eq!(rechecks.counts(), (3, 2));
        Ok(())
    }
}
