//! Families of kernels, as reports count them.

use std::fmt;

use self::Family::*;

/// What a kernel computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// Matrix by matrix or vector, and the reductions that belong to them.
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
    /// What no rule knows.
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
