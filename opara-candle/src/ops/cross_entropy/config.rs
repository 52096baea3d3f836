//! Which rows count, and how.

/// The rows that a [`cross_entropy`](super::cross_entropy) leaves out, and its smoothing.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct CrossEntropy {
    /// The target of rows that do not count.
    pub ignored: Option<i64>,
    /// The part of a row's weight that all classes share (Szegedy et al., "Rethinking the Inception architecture", 2016).
    pub smoothing: f32,
}

impl CrossEntropy {
    /// The target of rows that do not count, or one that none has.
    #[cfg(feature = "cuda")]
    pub(super) fn ignored(self) -> i64 {
        self.ignored.unwrap_or(i64::MIN)
    }
}
