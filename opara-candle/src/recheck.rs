//! Re-checks in production: compares every n-th replay with eager execution.

use std::sync::atomic::{AtomicU64, Ordering};

use candle::Tensor;

use crate::{verify, Error, Result};

/// The interval of an executor's re-checks, and their results so far.
pub(crate) struct Rechecks {
    /// Every n-th call of each shape is compared; 0 for none.
    pub every: u64,
    done: AtomicU64,
    mismatches: AtomicU64,
}

impl Rechecks {
    pub fn new(every: u64) -> Self {
        Self { every, done: AtomicU64::new(0), mismatches: AtomicU64::new(0) }
    }

    /// Compares a replay's outputs with the module's, bit for bit.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if they differ, or an error of the comparison itself.
    pub fn compare(&self, expected: &[Tensor], got: &[Tensor]) -> Result<()> {
        let result = verify::same_bits_by_device("replay", expected, got);
        match &result {
            Ok(()) => _ = self.done.fetch_add(1, Ordering::Relaxed),
            Err(error @ Error::Mismatch(_)) => {
                self.done.fetch_add(1, Ordering::Relaxed);
                self.mismatches.fetch_add(1, Ordering::Relaxed);
                tracing::error!(%error, "a re-check failed: the module's own answer is returned, and its shapes run eagerly");
            }
            Err(error) => tracing::warn!(%error, "a re-check could not compare: the module's own answer is returned"),
        }
        result
    }

    /// The number of re-checks, and of differences found.
    pub fn counts(&self) -> (u64, u64) {
        (self.done.load(Ordering::Relaxed), self.mismatches.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use candle::Device;

    use super::*;
    use crate::Mismatch;

    #[test]
    fn comparisons_are_counted() -> anyhow::Result<()> {
        let rechecks = Rechecks::new(1);
        let x = [Tensor::new(&[1f32, 2.], &Device::Cpu)?];
        let y = [Tensor::new(&[1f32, 3.], &Device::Cpu)?];
        rechecks.compare(&x, &x)?;
        assert!(matches!(rechecks.compare(&x, &y), Err(Error::Mismatch(Mismatch { differing: 1, .. }))));
        assert!(matches!(rechecks.compare(&x, &[]), Err(Error::Mismatch(_))));
        assert_eq!(rechecks.counts(), (3, 2));
        Ok(())
    }
}
