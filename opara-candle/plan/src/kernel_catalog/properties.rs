//! What kernels have in common.

use serde::{Deserialize, Serialize};

/// The resource that limits an op.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// Arithmetic: matmuls and convolutions.
    Compute,
    /// Memory: everything else.
    #[default]
    Memory,
}

/// The precision of a matmul.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precision {
    /// Single precision.
    Single,
    /// Single precision rounded to TF32 for tensor cores.
    Tensor,
    /// Half precision, f16 or bf16.
    Half,
}

impl Precision {
    /// Bytes per element.
    pub fn bytes(self) -> f64 {
        if self == Precision::Half {
            2.
        } else {
            4.
        }
    }
}

/// The memory that a kernel moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Traffic {
    /// All regions that its accesses name.
    Accesses,
    /// As many elements of a table as it writes, anywhere in the table.
    Gather,
    /// The partial results of a K-split, which it sums.
    SplitReduction,
}
