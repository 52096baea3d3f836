//! The computation of a kernel. The order of its arguments follows from it.

/// The computation of one of candle's kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Means {
    /// Conversion to another type.
    Cast,
    /// A copy, possibly of a strided view.
    Copy,
    /// A copy of rows.
    CopyRows,
    /// One number in all elements.
    Fill,
    /// One number in the elements of a view.
    FillView,
    /// The function of this name, of one operand: if fused, its name in `chain.cuh`.
    Unary(&'static str),
    /// The function of this name, of two operands: if fused, its name in `chain.cuh`.
    Binary(&'static str),
    /// A comparison of this name.
    Comparison(&'static str),
    /// x * factor + summand, with constants.
    Affine,
    /// x to a constant power.
    Power,
    /// x, or a constant times exp(x) - 1.
    Elu,
    /// One of two elements.
    Where,
    /// The sum of each row.
    RowSum,
    /// The sum of each row of few elements.
    FewSum,
    /// The maximum of each row.
    RowMax,
    /// The minimum of each row.
    RowMin,
    /// The place of the first maximum of each row.
    ArgMax,
    /// The place of the first minimum of each row.
    ArgMin,
    /// The order of each row, the smallest first.
    SortUp,
    /// The order of each row, the largest first.
    SortDown,
    /// Softmax of each row.
    Softmax,
    /// Layer norm of each row.
    LayerNorm,
    /// RMS norm of each row.
    RmsNorm,
    /// A rotary embedding with heads outside tokens.
    Rotary,
    /// The same of neighbours.
    RotaryOfNeighbours,
    /// A rotary embedding with tokens outside heads.
    RotaryByTokens,
    /// Slices that integers name.
    IndexSelect,
    /// Elements that integers name.
    Gather,
    /// Slices added to those that integers name.
    IndexAdd,
    /// Elements added to those that integers name.
    ScatterAdd,
    /// Elements in the place of those that integers name.
    Scatter,
    /// A convolution over this number of dimensions.
    Convolution(usize),
    /// A transposed convolution over this number of dimensions.
    TransposedConvolution(usize),
    /// Windows over this number of dimensions, one after another.
    Unfold(usize),
    /// Windows added up.
    Fold,
    /// The maximum of each window.
    MaxPool,
    /// The mean of each window.
    MeanPool,
    /// Rows and columns that are copies of the nearest.
    UpsampleNearest,
    /// Rows and columns between the nearest.
    UpsampleBilinear,
    /// The elements of GGUF's blocks.
    Dequantize,
    /// Rows of a table, also of GGUF's blocks, that integers name.
    TableRows,
    /// One row times a weight of GGUF's blocks.
    BlockVector,
    /// Rows rounded to 8 bits, for the product behind it.
    Rounding,
    /// A few rounded rows times a weight of GGUF's blocks.
    BlockRows,
    /// Rounded rows times a weight of GGUF's blocks.
    BlockMatrix,
    /// Rounded rows, each times the weight of its expert.
    BlockExperts,
    /// The same by kernels in C++: rows rounded to 8 bits, for a product of few rows.
    LinkedRounding,
    /// A few rounded rows times a weight.
    LinkedRows,
    /// Rows rounded to 8 bits, in another order.
    LinkedRoundingOfMany,
    /// Rounded rows times a weight.
    LinkedMatrix,
    /// What a product has left of its last tiles.
    LinkedRest,
    /// Rounded rows, each times the weight of its expert.
    LinkedExperts,
    /// Rows, each times the weight of its expert.
    LinkedExpertRows,
    /// Rows, each times the weight of its expert, which is of GGUF's blocks.
    LinkedExpertBlocks,
    /// How often integers name each number.
    Count,
    /// Sums of all numbers before.
    Bounds,
    /// Attention.
    Attention,
    /// Nothing: candle launches it nowhere.
    Unused,
}
