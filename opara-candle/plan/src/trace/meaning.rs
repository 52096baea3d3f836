//! The meaning of an op, if it is known: a function of strided views of buffers.
//!
//! Rewriting ([`crate::rewrite`]) reads it. It is derived from a kernel's name and arguments, or from the library call that
//! launched the op. It does not say which algorithm is used, or in which order sums are computed.

use serde::{Deserialize, Serialize};

use super::attending::{Attending, Pages};
use super::block_type::BlockType;
use super::element::Element;
use super::ids::BufferId;
use super::window::Window;

/// A dimension of a [`View`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Dim {
    /// Number of elements.
    pub len: u64,
    /// Distance between neighbours, in elements of the buffer; 0 repeats one element.
    pub stride: u64,
}

/// A strided view of a buffer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    /// The buffer.
    pub buffer: BufferId,
    /// Element type.
    pub element: Element,
    /// The first element, counted from the buffer's start.
    pub first: u64,
    /// The outermost dimension first.
    pub dims: Vec<Dim>,
}

impl View {
    /// A view of `len` contiguous elements.
    pub fn contiguous(buffer: BufferId, element: Element, first: u64, len: u64) -> Self {
        Self { buffer, element, first, dims: vec![Dim { len, stride: 1 }] }
    }

    /// Number of elements; `None` if it exceeds 64 bits.
    pub fn elements(&self) -> Option<u64> {
        self.dims.iter().try_fold(1u64, |len, dim| len.checked_mul(dim.len))
    }

    /// Bytes from the buffer's start to the end of the last element; `None` if that exceeds 64 bits.
    pub fn end(&self) -> Option<u64> {
        let reach = |last: u64, dim: &Dim| last.checked_add(dim.len.saturating_sub(1).checked_mul(dim.stride)?);
        self.dims.iter().try_fold(self.first, reach)?.checked_add(1)?.checked_mul(self.element.bytes())
    }

    /// Is the view contiguous?
    pub fn is_contiguous(&self) -> bool {
        is_contiguous(&self.dims)
    }
}

/// Are these the dimensions of a contiguous view?
pub fn is_contiguous(dims: &[Dim]) -> bool {
    let inner = |inner: Option<u64>, dim: &Dim| {
        let inner = inner?;
        (dim.len == 1 || dim.stride == inner).then_some(inner.checked_mul(dim.len)?)
    };
    dims.iter().rev().fold(Some(1), inner).is_some()
}

/// A function of the operands `a`, `b`, ... The result has the operands' dimensions unless stated otherwise.
///
/// The order of variants and fields is the encoding in trace files: add variants at the end.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Function {
    /// Zeros, in bytes.
    Zeros,
    /// Bytes from the host.
    Upload,
    /// `a`, converted to the result's type.
    Copy,
    /// A function of `a` that the catalogue of kernels names.
    Unary(String),
    /// A function of `a` and `b` that the catalogue of kernels names: of comparisons, integers of 8 bits.
    Binary(String),
    /// `a` times the first plus the second.
    Affine(f32, f32),
    /// The sum of each row of this many elements.
    RowSum(u64),
    /// The maximum of each row of this many elements.
    RowMax(u64),
    /// The minimum of each row of this many elements.
    RowMin(u64),
    /// Softmax over rows of this many elements.
    Softmax(u64),
    /// Layer norm over rows of this many elements, with this epsilon; `b` and `c` are weight and bias.
    LayerNorm(u64, f32),
    /// RMS norm over rows of this many elements, with this epsilon; `b` is the weight.
    RmsNorm(u64, f32),
    /// `a`, `(batch, rows, inner)`, times `b`, `(batch, inner, columns)`: `(batch, rows, columns)`.
    Matmul,
    /// The convolution of `a`, `(batch, channels, h, w)`, with the weight `b`, `(out, channels / groups, kh, kw)`.
    Convolution(Window),
    /// The maximum of each window of `a`, `(batch, channels, h, w)`.
    MaxPool(Window),
    /// The mean of each window of `a`, `(batch, channels, h, w)`.
    MeanPool(Window),
    /// A part of a library call. The call's last launch has its meaning.
    Part,
    /// Of `a`, `(left, from, right)`, those of the middle dimension that the integers `b` name: `(left, integers, right)`.
    IndexSelect {
        /// Elements of the outer dimension.
        left: u64,
        /// Those of the middle one.
        from: u64,
        /// Those of the inner one.
        right: u64,
    },
    /// `b` where the integer `a` is not 0, else `c`.
    Where,
    /// Rotary embedding of `a` by the cosines `b` and the sines `c`.
    Rotary(Rotary),
    /// The transposed convolution of `a`, `(batch, channels, h, w)`, with the weight `b`, `(channels, out / groups, kh, kw)`: each
    /// element of `a` adds its multiple of the weight to a window of the result. The padding is taken away from all edges.
    TransposedConvolution {
        /// How the windows lie in the result.
        window: Window,
        /// Rows and columns more at the end.
        output_padding: [u64; 2],
    },
    /// `a`, `(batch, channels, h, w)`, with so many rows and columns. Row `r` of the result is row `floor(r * (h / rows))` of `a`,
    /// where the quotient and the product are rounded to f64, or the last one if that is beyond it; columns are alike.
    UpsampleNearest([u64; 2]),
    /// Elements of these bits, those of the lower address the lower ones.
    Fill(u64),
    /// An element of these bits where the integer `a` is not 0, else `b`.
    MaskedFill(u64),
    /// `a`, `(rows, inner)`, times the transposed matrix `b`, `(columns, bytes of a row)`, whose rows are GGUF's blocks of this type:
    /// `(rows, columns)`.
    QuantizedProduct(BlockType),
    /// Of `a`, `(left, from, right)`, along the middle dimension those that the integers `b`, `(left, to, right)`, name.
    Gather(Indexed),
    /// `a`, `(left, to, right)`, with `c`, `(left, from, right)`, added to the elements of the middle dimension that the integers `b` name.
    IndexAdd(Indexed),
    /// The same with integers for each element of `c`, `(left, from, right)`.
    ScatterAdd(Indexed),
    /// The same, but elements of `c` take the place of those of `a`.
    Scatter(Indexed),
    /// The order of each row of this many elements, as integers.
    ArgSort(u64, Order),
    /// The place of the first largest element of each row of this many.
    ArgMax(u64),
    /// The place of the first smallest element of each row of this many.
    ArgMin(u64),
    /// `a` times the first plus the second, in f64, f8 or integers.
    AffineWide(f64, f64),
    /// `a` to this power.
    Power(f64),
    /// `a` where that is above 0, else this number times `exp(a) - 1`.
    Elu(f64),
    /// The windows of `a`, `(batch, channels, h, w)`: `(batch, rows, columns, channels, kh, kw)`. Elements of the padding are 0.
    Unfold(Window),
    /// The windows `a`, `(batch, rows, columns, channels, kh, kw)`, added up where they lie: `(batch, channels, h, w)`.
    Fold(Window),
    /// `a`, `(batch, channels, h, w)`, with other rows and columns, between those nearest.
    UpsampleBilinear(Bilinear),
    /// The elements of GGUF's blocks `a`, which are of this type.
    Dequantized(BlockType),
    /// The elements of the rows that the integers `b` name, of `a`, `(rows, bytes of a row)`, GGUF's blocks of this type.
    QuantizedRows(BlockType),
    /// Rows of `a`, each times the transposed one of the matrices `b`: that of its expert.
    ExpertProduct(Experts),
    /// `a`, each element with as many added as there are integers `b` that name it.
    Count,
    /// 0, and the sum of the first element of `a`, of the first two, up to all.
    Bounds,
    /// Attention of the queries `a`, `(texts, queries, heads, size)`, over the keys `b` and the values `c`, `(texts, keys, heads, size)`.
    /// Then come the slopes, and where the queries and the keys of each text begin, and of the last one end.
    Attention(Attending),
    /// The same of packed queries, whose keys and values are `(pages, keys of a page, heads, size)`. Behind all other operands are the
    /// pages of each text as integers, `(texts, pages of a text)`, in the order of its keys.
    PagedAttention(Attending, Pages),
}

/// Rows and columns between those of an image.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Bilinear {
    /// Rows and columns of the result.
    pub size: [u64; 2],
    /// Rows of the operand from one row of the result to the next, and columns.
    pub step: [f64; 2],
    /// Whether row `r` of the result is at row `r * step` of the operand. Else it is at `(r + 0.5) * step - 0.5`, or at 0 if that is below.
    pub is_aligned: bool,
}

/// A product of rows, each with the matrix of its expert.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Experts {
    /// Matrices, `(columns, inner)` each.
    pub experts: u64,
    /// Rows of the result.
    pub rows: u64,
    /// Rows of the result for each row of `a`, one after another.
    pub shared: u64,
    /// Elements of a row of `a`.
    pub inner: u64,
    /// Elements of a row of the result.
    pub columns: u64,
    /// The type of the matrices' blocks, if they are GGUF's.
    pub blocks: Option<BlockType>,
    /// How operands name the expert of a row.
    pub named: Named,
    /// Whether the last operand has a factor for each row of the result.
    pub has_factors: bool,
}

/// How operands name the expert of each row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Named {
    /// `c` are the experts of all rows.
    ByRow,
    /// `c` are rows in some order, and `d` their experts. Rows that `c` does not name are 0.
    InOrder,
    /// `c` are rows in the order of their experts, and those of expert `e` begin at element `d[e]`.
    ByBounds,
}

/// Three dimensions, of the middle one of which elements are named by integers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Indexed {
    /// Elements of the outer dimension.
    pub left: u64,
    /// Those of the middle one in what is read.
    pub from: u64,
    /// Those of the middle one in what is written.
    pub to: u64,
    /// Those of the inner one.
    pub right: u64,
}

/// An order of numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Order {
    /// The smallest comes first.
    Ascending,
    /// The largest comes first.
    Descending,
}

/// A rotary embedding: pairs of elements are rotated by angles that tokens and pairs have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Rotary {
    /// Sequences, with the heads if those are outside the tokens.
    pub outer: u64,
    /// Tokens of each.
    pub tokens: u64,
    /// Heads of each token, if they are inside; else 1.
    pub heads: u64,
    /// Elements of a head.
    pub size: u64,
    /// Whether a pair are neighbours; else they are half a head apart.
    pub is_of_neighbours: bool,
    /// How many of `outer` have angles of their own, one after another; 0 if all have the same.
    pub angles: u64,
}

/// An op as a function of views.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Meaning {
    /// The function.
    pub function: Function,
    /// The operands.
    pub reads: Vec<View>,
    /// The result; `None` for a part of a call.
    pub writes: Option<View>,
}

impl Meaning {
    /// A part of a call.
    pub fn part() -> Self {
        Self { function: Function::Part, reads: Vec::new(), writes: None }
    }

    /// All views.
    pub fn views(&self) -> impl Iterator<Item = &View> {
        self.reads.iter().chain(&self.writes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(first: u64, dims: &[(u64, u64)]) -> View {
        let dims = dims.iter().map(|&(len, stride)| Dim { len, stride }).collect();
        View { buffer: 0, element: Element::F16, first, dims }
    }

    #[test]
    fn a_view_ends_behind_its_last_element() {
        assert_eq!(view(3, &[(2, 8), (4, 1)]).end(), Some((3 + 8 + 3 + 1) * 2));
        assert_eq!(view(0, &[(1 << 40, 1 << 40)]).end(), None, "beyond 64 bits");
        assert_eq!(view(0, &[(2, 8), (4, 1)]).elements(), Some(8));
    }

    #[test]
    fn rows_that_touch_are_contiguous() {
        assert!(view(5, &[(2, 4), (1, 9), (4, 1)]).is_contiguous());
        assert!(!view(0, &[(2, 5), (4, 1)]).is_contiguous());
        assert!(!view(0, &[(2, 0), (4, 1)]).is_contiguous());
        assert!(view(0, &[]).is_contiguous(), "one element");
    }
}
