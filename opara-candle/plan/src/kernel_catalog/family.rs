//! Kernel families, by which reports group kernels.

use std::fmt;

use self::Family::*;

/// The kind of operation of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// Matrix products with matrices or vectors, and their split-K reductions.
    Matmul,
    /// Convolutions in any form.
    Convolution,
    /// Attention in one kernel.
    Attention,
    /// Softmax on its own.
    Softmax,
    /// Layer norm, RMS norm, batch norm.
    Normalisation,
    /// Sums, maxima and the like along a dimension.
    Reduction,
    /// One element of the result from one of each operand.
    ElementWise,
    /// Copies, fills, concatenations, transposes.
    Layout,
    /// Maxima and means over windows.
    Pooling,
    /// Rows or elements by their indices.
    Gather,
    /// Everything else.
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
