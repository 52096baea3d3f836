//! The computation of a node.

use super::at_position::AtPosition;
use super::scores::Scores;
use crate::trace::{BlockType, Function, Window};

/// How a value is computed.
#[derive(Debug, Clone, PartialEq)]
pub enum Compute {
    /// As recorded.
    Recorded(Function),
    /// A concatenation along an inner dimension: `rows` blocks, each with `widths[i]` elements of operand i.
    Concat {
        /// Number of blocks.
        rows: u64,
        /// Elements of each operand in a block.
        widths: Vec<u64>,
    },
    /// `max(x, 0)` of a concatenation, as [`Compute::Concat`], of which parts may be sums. Operands: of each part one, or two that are
    /// added.
    ConcatRelu {
        /// Number of blocks.
        rows: u64,
        /// Elements of each part in a block.
        widths: Vec<u64>,
        /// Is each part a sum?
        are_sums: Vec<bool>,
    },
    /// A convolution with its epilogue in one call. Operands: `x`, the weight, a vector for each step, then the residual.
    FusedConvolution(Convolution),
    /// A transposed convolution by an ordinary one. Operands: `x`, the weight, `(channels, out, kh, kw)`, and a vector of one element a
    /// channel of the result that is added to it, if there is one.
    TransposedConvolution {
        /// How the windows lie in the result.
        window: Window,
        /// Rows and columns more at the end.
        output_padding: [u64; 2],
    },
    /// More rows and columns, each pixel a copy of the nearest one before it. Operand: `x`, `(batch, channels, h, w)`.
    UpsampleNearest([u64; 2]),
    /// A pool with padding. Operand: `x`, `(batch, channels, h, w)`.
    Pool {
        /// How the windows lie; its padding is that above and to the left.
        window: Window,
        /// Rows of padding below, and columns to the right.
        end: [u64; 2],
        /// Whether it is of maxima, which the padding never is, and not of means, which count it as zeros.
        is_max: bool,
    },
    /// A launch of which is known what it reads and which memory its result fills: that of this number. Operands: what its pointers point
    /// to, from there on, and the position, if something of the launch follows from it.
    Opaque(u64),
    /// Attention of heads. Operands: `q`, `k` and `v`, `(heads, tokens, size)`, or all three `(batch, heads, tokens, size)`, then those of the
    /// scores. `k` and `v` may have a fraction of the heads, each for as many consecutive ones of `q`.
    Attention(Scores),
    /// A product, a bias and an activation. Operands: `x`, `(rows, inner)`, the weight, `(columns, inner)`, and the bias, if it has one.
    Linear {
        /// The activation's name in the catalogue.
        activation: Option<String>,
    },
    /// A product of the activation of rows, and a bias. Operands: as of [`Compute::Linear`]; the rows are before their activation.
    ActivatedProduct {
        /// The activation's name in the catalogue.
        activation: String,
    },
    /// A product times a factor, and a bias and a summand, which it does not multiply. Operands: as of [`Compute::Linear`], then the summand,
    /// all `(rows, columns)` of a value.
    ProductSum {
        /// The factor of the product.
        factor: f32,
    },
    /// Products of one operand, with their columns beside each other. Operands: `x`, `(rows, inner)`, then for each product its
    /// weight, `(columns, inner)`, and its bias.
    ProductConcat {
        /// Does each have a bias?
        have_bias: Vec<bool>,
    },
    /// A product, and beside it other products of the same operand. Operands: as of [`Compute::ProductConcat`], itself first.
    ProductsOfOne {
        /// The nodes that the others are.
        others: Vec<usize>,
        /// Does each have a bias?
        have_bias: Vec<bool>,
        /// Rows of an item of the batch.
        tokens: u64,
        /// Columns of a head, which divide those of each product.
        size: u64,
    },
    /// An activation of a product, times another product of the same operand. Operands: `x`, `(rows, inner)`, then for each product
    /// its weight, `(columns, inner)`, and its bias.
    Gated {
        /// The activation's name in the catalogue.
        activation: String,
        /// Do both have a bias?
        has_bias: bool,
    },
    /// A product of few rows with a weight of GGUF's blocks, or with several. Operands: `x`, `(rows, inner)`, the weight of the norm, if
    /// there is one, then each weight, `(columns, bytes of a row)`, and the summand, if there is one.
    QuantizedProduct {
        /// The type of the blocks.
        blocks: BlockType,
        /// Epsilon of the RMS norm that rows of `x` are given first.
        norm: Option<f32>,
        /// What follows.
        end: ProductEnd,
    },
    /// The logarithm of the softmax of each row at the row's own class. Operands: the rows, and a class for each.
    LogSoftmaxAt {
        /// Elements of a row.
        columns: u64,
    },
    /// Sums of rows, times a factor. Operand: the rows.
    RowMean {
        /// Elements of a row.
        columns: u64,
        /// The factor of the sums.
        factor: f32,
    },
    /// A norm of rows, which was several launches. Operands: the rows, the weight, one element a column, and the bias of a
    /// layer norm, if it has one.
    RowNorm {
        /// Elements of a row.
        columns: u64,
        /// Epsilon, added to the mean square or to the variance.
        epsilon: f32,
        /// Is it an RMS norm? Else it is a layer norm.
        is_rms: bool,
    },
    /// A norm of groups of neighbouring channels. Operands: `x`, `(images, channels, pixels)`, and weight and bias, one number a channel.
    GroupNorm {
        /// Groups of an image.
        groups: u64,
        /// Epsilon, added to the variance.
        epsilon: f32,
        /// Does `x * sigmoid(x)` follow?
        silu: bool,
    },
    /// A norm of images by the moments of each channel. Operands: `x`, `(images, channels, pixels)`, its means and variances, and weight and
    /// bias, if it has them; all but `x` have one number a channel. Results are `(channels, images, pixels)`.
    BatchNorm {
        /// Epsilon, added to the variance.
        epsilon: f32,
    },
    /// The activation of such a norm. Operands: as of [`Compute::BatchNorm`]. Results are `(images, channels, pixels)`.
    ActivatedBatchNorm {
        /// Epsilon, added to the variance.
        epsilon: f32,
        /// The activation's name in the catalogue.
        activation: String,
    },
    /// The mean of each channel, with its variance beside it, or the variance alone. Operand: `x`, `(images, channels, pixels)`.
    BatchMoments {
        /// The node that the variance is, if this is the mean.
        variance: Option<usize>,
    },
    /// A norm of rows of a sum. Operands: both summands, the weight, and the bias of a layer norm.
    NormOfSum {
        /// Elements of a row.
        columns: u64,
        /// Epsilon, added to the mean square or to the variance.
        epsilon: f32,
        /// Is it an RMS norm? Else it is a layer norm.
        is_rms: bool,
    },
    /// A sum, and beside it the RMS norm of its rows. Operands: both summands, and the norm's weight.
    SumBesideNorm {
        /// The node that the norm is.
        norm: usize,
        /// Elements of a row.
        columns: u64,
        /// Epsilon, added to the mean square.
        epsilon: f32,
    },
    /// Attention of a token, or several, over a cache of keys and values, to which their own are appended at the position. Operands: `q`,
    /// keys and values, of each token by heads, the cache, `(1, 2, heads, capacity, size)`, and the position.
    CachedAttention {
        /// Heads of keys, and of values.
        heads: u64,
        /// Elements of a head.
        size: u64,
        /// The factor of the scores before the softmax.
        scale: f32,
        /// How many of the latest tokens are seen, the new one included, if not all.
        window: Option<u64>,
    },
    /// A new token appended to earlier ones, in place, at the position. Operands: the token, `(rows, 1, step)`, the earlier ones,
    /// `(rows, room, step)`, and the position. Of several tokens, one behind the other, the last operand is the index of the last one:
    /// zeros stand for those behind it.
    Appended {
        /// Rows of the token.
        rows: u64,
        /// Elements of the token in each row.
        step: u64,
    },
    /// An operand times a factor plus a summand, which depend on the position. Operands: `x`, without which all elements are the summand, and
    /// the position. There may be a position for each of several tokens, which are the first dimension of `x`.
    AffineAtPosition {
        /// The factor.
        factor: AtPosition,
        /// The summand.
        summand: AtPosition,
    },
    /// What is computed of operands that depend on the position, which is the last operand. If that is several positions, they are those
    /// of as many tokens, which are the first dimension of the operands.
    AtPosition {
        /// How.
        compute: Box<Compute>,
        /// How the operands of these indices depend on it.
        operands: Vec<(usize, ByPosition)>,
    },
}

/// How an operand depends on the position.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ByPosition {
    /// Its first element is `first` at position 0, and `step` elements farther with each token.
    Moves {
        /// The first element at position 0.
        first: i64,
        /// Elements from one position to the next.
        step: i64,
    },
    /// Elements of places behind the new token count as this number.
    EndsAs {
        /// The dimension of places.
        dim: usize,
        /// The number.
        number: f32,
    },
}

/// What follows a product with quantised weights.
#[derive(Debug, Clone, PartialEq)]
pub enum ProductEnd {
    /// Nothing: there is one weight.
    Nothing,
    /// Something of its shape is added.
    Sum,
    /// The activation of this name in the catalogue, times the product with the second one of two weights.
    Gate(String),
    /// The products with further weights are these nodes.
    Others(Vec<usize>),
}

/// A convolution, and what is done to its operand and its result.
#[derive(Debug, Clone, PartialEq)]
pub struct Convolution {
    /// Whether `max(x, 0)` of the operand is what is convolved.
    pub of_relu: bool,
    /// How the windows lie; its padding is that above and to the left.
    pub window: Window,
    /// Rows of zeros below, and columns to the right.
    pub end: [u64; 2],
    /// Operations on each channel of the result, each with a vector of one element a channel.
    pub steps: Vec<Step>,
    /// Whether something of the result's shape is added then.
    pub residual: bool,
    /// The name of what follows in the catalogue.
    pub activation: Option<String>,
}

impl Convolution {
    /// One that nothing precedes or follows.
    pub fn new(window: Window) -> Self {
        Self { of_relu: false, window, end: window.padding, steps: Vec::new(), residual: false, activation: None }
    }
}

/// An operation on each channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Its number is added.
    Add,
    /// Its number is taken away.
    Sub,
    /// It is multiplied by its number.
    Mul,
    /// It is divided by its number.
    Div,
}

impl Step {
    /// The step of a function of this name in the catalogue.
    pub fn of(name: &str) -> Option<Self> {
        match name {
            "add" => Some(Step::Add),
            "sub" => Some(Step::Sub),
            "mul" => Some(Step::Mul),
            "div" => Some(Step::Div),
            _ => None,
        }
    }
}
