//! The kinds of pools.

/// The reduction over a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum PoolKind {
    Max,
    Mean,
}

#[cfg(feature = "cuda")]
impl PoolKind {
    /// Its number in kernels.
    pub fn code(self) -> i32 {
        match self {
            Self::Max => 0,
            Self::Mean => 1,
        }
    }
}
