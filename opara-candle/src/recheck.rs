//! Re-checks in production: replays compared with eager execution, now and then.

use std::sync::atomic::{AtomicU64, Ordering};

use candle::{DType, Device, Tensor};

use crate::{verify, Error, Result};

/// How often an executor compares, and what it found.
pub(crate) struct Rechecks {
    /// One call in so many, of each shape; 0 for none.
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
    /// [`Error::Mismatch`] if they differ, and what stood in the way of comparing.
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

    /// Re-checks made, and how many of them found a difference.
    pub fn counts(&self) -> (u64, u64) {
        (self.done.load(Ordering::Relaxed), self.mismatches.load(Ordering::Relaxed))
    }
}

/// Whether a device other than the host finds all elements equal, without reading them back. If it does not, or cannot
/// say, they are to be compared on the host.
fn same_on_device(expected: &[Tensor], got: &[Tensor]) -> bool {
    let on_device = |(a, b): (&Tensor, &Tensor)| {
        !a.device().is_cpu()
            && a.shape() == b.shape()
            && a.dtype() == b.dtype()
            && differing(a, b).is_ok_and(|differing| differing == 0)
    };
    expected.len() == got.len() && expected.iter().zip(got).all(on_device)
}

/// How many elements differ, by operators of candle: every NaN is the same, and zeros differ by sign.
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
