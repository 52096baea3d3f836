//! What an op computes, where that is known: an operator on strided views of buffers.
//!
//! Rewriting reads it ([`crate::rewrite`]). A kernel's name and arguments tell it, or the call of a library that launched the
//! op. It says nothing about algorithms or the order of sums.

use serde::{Deserialize, Serialize};

use super::BufferId;

/// The type of elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Element {
    /// Bytes, of which only the number counts.
    Byte,
    /// 16 bits, 11 of them digits.
    F16,
    /// 16 bits, 8 of them digits.
    Bf16,
    /// 32 bits.
    F32,
    /// Unsigned integers of 8 bits: conditions, which hold where they are not 0.
    U8,
    /// Unsigned integers of 32 bits.
    U32,
    /// Signed integers of 64 bits.
    I64,
}

impl Element {
    /// Bytes of one.
    pub fn bytes(self) -> u64 {
        match self {
            Element::Byte | Element::U8 => 1,
            Element::F16 | Element::Bf16 => 2,
            Element::F32 | Element::U32 => 4,
            Element::I64 => 8,
        }
    }

    /// Whether it is a floating-point number.
    pub fn is_float(self) -> bool {
        matches!(self, Element::F16 | Element::Bf16 | Element::F32)
    }
}

/// A dimension of a [`View`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Dim {
    /// How many elements.
    pub len: u64,
    /// Elements of the buffer from one to the next; 0 where one is repeated.
    pub stride: u64,
}

/// Elements of a buffer, in an order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    /// The buffer.
    pub buffer: BufferId,
    /// Type of its elements.
    pub element: Element,
    /// The first element, counted from the buffer's start.
    pub first: u64,
    /// From the outermost dimension on.
    pub dims: Vec<Dim>,
}

impl View {
    /// So many elements one after the other.
    pub fn contiguous(buffer: BufferId, element: Element, first: u64, len: u64) -> Self {
        Self { buffer, element, first, dims: vec![Dim { len, stride: 1 }] }
    }

    /// How many elements it has; `None` beyond 64 bits.
    pub fn elements(&self) -> Option<u64> {
        self.dims.iter().try_fold(1u64, |len, dim| len.checked_mul(dim.len))
    }

    /// Bytes from the buffer's start to the end of the last element; `None` beyond 64 bits.
    pub fn end(&self) -> Option<u64> {
        let reach = |last: u64, dim: &Dim| last.checked_add(dim.len.saturating_sub(1).checked_mul(dim.stride)?);
        self.dims.iter().try_fold(self.first, reach)?.checked_add(1)?.checked_mul(self.element.bytes())
    }

    /// Whether its elements lie one after the other.
    pub fn is_contiguous(&self) -> bool {
        is_contiguous(&self.dims)
    }
}

/// Whether elements of these dimensions lie one after the other.
pub fn is_contiguous(dims: &[Dim]) -> bool {
    let inner = |inner: Option<u64>, dim: &Dim| {
        let inner = inner?;
        (dim.len == 1 || dim.stride == inner).then_some(inner.checked_mul(dim.len)?)
    };
    dims.iter().rev().fold(Some(1), inner).is_some()
}

/// How a convolution or a pool moves over `(batch, channels, h, w)`. Pairs are rows and columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Window {
    /// Elements of a window; of a convolution those of the weight.
    pub kernel: [u64; 2],
    /// Rows and columns of zeros at opposite edges.
    pub padding: [u64; 2],
    /// Elements from one window to the next.
    pub stride: [u64; 2],
    /// Elements from one of a window to the next.
    pub dilation: [u64; 2],
    /// Parts that the channels fall into.
    pub groups: u64,
}

/// What is computed of the operands, `a`, `b`, ... The result has the operands' dimensions unless said otherwise.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Function {
    /// Zeros, in bytes.
    Zeros,
    /// Bytes from the host.
    Upload,
    /// `a`, in the result's type.
    Copy,
    /// A function of `a` that the catalogue of kernels names.
    Unary(String),
    /// A function of `a` and `b` that the catalogue of kernels names.
    Binary(String),
    /// `a` times the first plus the second.
    Affine(f32, f32),
    /// The sum of so many neighbours.
    RowSum(u64),
    /// The greatest of so many neighbours.
    RowMax(u64),
    /// The least of so many neighbours.
    RowMin(u64),
    /// Softmax of so many neighbours.
    Softmax(u64),
    /// Layer norm of so many neighbours, with this epsilon; `b` and `c` are weight and bias.
    LayerNorm(u64, f32),
    /// RMS norm of so many neighbours, with this epsilon; `b` is the weight.
    RmsNorm(u64, f32),
    /// `a`, `(batch, rows, inner)`, times `b`, `(batch, inner, columns)`: `(batch, rows, columns)`.
    Matmul,
    /// Of `a`, `(batch, channels, h, w)`, with the weight `b`, `(out, channels / groups, kh, kw)`.
    Convolution(Window),
    /// The maximum of each window of `a`, `(batch, channels, h, w)`.
    MaxPool(Window),
    /// The mean of each window of `a`, `(batch, channels, h, w)`.
    MeanPool(Window),
    /// A part of a library's call, whose meaning stands at its last launch.
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

/// What an op computes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Meaning {
    /// Of which operands what is computed.
    pub function: Function,
    /// The operands.
    pub reads: Vec<View>,
    /// Where the result goes; none for a part of a call.
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
