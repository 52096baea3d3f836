//! Kernel families, for reports.

use std::fmt;

use self::Family::*;

/// The family of a kernel's computation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// Matmuls, matrix-vector products, and the reductions that belong to them.
    Matmul,
    /// Convolutions of any kind.
    Convolution,
    /// Fused attention.
    Attention,
    /// Stand-alone softmax.
    Softmax,
    /// Layer norm, RMS norm, batch norm.
    Normalisation,
    /// Sums, maxima and other reductions along a dimension.
    Reduction,
    /// Element-wise operations.
    ElementWise,
    /// Copies, fills, concatenations, transposes.
    Layout,
    /// Max and mean pooling.
    Pooling,
    /// Gathers of rows or elements by index.
    Gather,
    /// Not recognised.
    Other,
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Matmul => "matmul",
            Convolution => "convolutions",
            Attention => "attention, fused",
            Softmax => "softmax",
            Normalisation => "normalisation",
            Reduction => "reductions",
            ElementWise => "element-wise",
            Layout => "copies and layout",
            Pooling => "pooling",
            Gather => "gather, embedding",
            Other => "other",
        })
    }
}
