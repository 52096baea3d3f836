//! The kinds of pools.

/// The reduction over a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum PoolKind {
    Max,
    Mean,
}
