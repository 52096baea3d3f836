//! The meaning of an op, if it is known: a function of strided views of buffers.
//!
//! Rewriting ([`crate::rewrite`]) reads it. It is derived from a kernel's name and arguments, or from the library call that
//! launched the op. It does not say which algorithm is used, or in which order sums are computed.

use serde::{Deserialize, Serialize};

use super::block_type::BlockType;
use super::ids::BufferId;

/// The type of elements. The order is the encoding in trace files: add types at the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Element {
    /// Bytes without a type.
    Byte,
    /// 16 bits with an 11-bit significand.
    F16,
    /// 16 bits with an 8-bit significand.
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
    /// Bytes of one element.
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

    /// The floating-point number that these bits are; `None` for other types.
    pub fn number(self, bits: u64) -> Option<f64> {
        match self {
            Element::F16 => {
                let (sign, exponent, fraction) = (bits >> 15 & 1, bits >> 10 & 0x1f, (bits & 0x3ff) as f64);
                let size = match exponent {
                    0 => fraction * 2f64.powi(-24),
                    0x1f if fraction == 0. => f64::INFINITY,
                    0x1f => f64::NAN,
                    _ => (1024. + fraction) * 2f64.powi(exponent as i32 - 25),
                };
                Some(if sign == 1 { -size } else { size })
            }
            Element::Bf16 => Some(f32::from_bits((bits as u32) << 16).into()),
            Element::F32 => Some(f32::from_bits(bits as u32).into()),
            Element::Byte | Element::U8 | Element::U32 | Element::I64 => None,
        }
    }

    /// The bits of the smallest finite floating-point number; `None` for other types.
    pub fn lowest(self) -> Option<u64> {
        match self {
            Element::F16 => Some(0xfbff),
            Element::Bf16 => Some(0xff7f),
            Element::F32 => Some(f32::MIN.to_bits().into()),
            Element::Byte | Element::U8 | Element::U32 | Element::I64 => None,
        }
    }
}

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

/// How a convolution or a pool moves over `(batch, channels, h, w)`. Pairs are rows and columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Window {
    /// Size of a window; for a convolution, of the weight.
    pub kernel: [u64; 2],
    /// Rows and columns of zeros at opposite edges.
    pub padding: [u64; 2],
    /// Elements from one window to the next.
    pub stride: [u64; 2],
    /// Distance between neighbouring elements of a window.
    pub dilation: [u64; 2],
    /// Groups of channels.
    pub groups: u64,
}

impl Window {
    /// The same over planes of this size with one stride and one dilation for rows and columns, if there is such a window: where a window
    /// has one element its dilation is of no account, and where there is room for one window, its stride.
    pub fn square(self, plane: [u64; 2]) -> Option<Self> {
        let mut square = self;
        for (axis, other) in [(0, 1), (1, 0)] {
            if self.kernel[axis] == 1 {
                square.dilation[axis] = self.dilation[other];
            }
            let padded = self.padding[axis].checked_mul(2)?.checked_add(plane[axis])?;
            let reach = self.kernel[axis].checked_sub(1)?.checked_mul(self.dilation[axis])?;
            if padded == reach.checked_add(1)? {
                square.stride[axis] = self.stride[other];
            }
        }
        let is_square = |pair: [u64; 2]| pair[0] == pair[1];
        (is_square(square.stride) && is_square(square.dilation)).then_some(square)
    }

    /// Rows and columns of the result of a transposed convolution of a plane of this size, if it has any; `None` also if they exceed
    /// 64 bits.
    pub fn transposed(&self, plane: [u64; 2], output_padding: [u64; 2]) -> Option<[u64; 2]> {
        let along = |axis: usize| {
            let last = plane[axis].checked_sub(1)?.checked_mul(self.stride[axis])?;
            let reach = self.kernel[axis].checked_sub(1)?.checked_mul(self.dilation[axis])?;
            let all = last.checked_add(reach)?.checked_add(1)?.checked_add(output_padding[axis])?;
            all.checked_sub(self.padding[axis].checked_mul(2)?).filter(|&len| len > 0)
        };
        Some([along(0)?, along(1)?])
    }
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

    #[test]
    fn windows_along_one_axis_have_one_stride_and_one_dilation() {
        let of = |kernel, padding, stride, dilation| Window { kernel, padding, stride, dilation, groups: 1 };
        let along_rows = of([7, 1], [9, 0], [1, 1], [3, 1]);
        assert_eq!(along_rows.square([688, 1]), Some(Window { dilation: [3, 3], ..along_rows }));
        let strided = of([3, 1], [1, 0], [2, 1], [1, 1]);
        assert_eq!(strided.square([100, 1]), Some(Window { stride: [2, 2], ..strided }));
        // There is another window beside it, and an element whose distance counts.
        assert_eq!(strided.square([100, 2]), None);
        assert_eq!(of([3, 3], [1, 1], [1, 1], [2, 1]).square([100, 100]), None);
        let even = of([3, 3], [1, 1], [2, 2], [1, 1]);
        assert_eq!(even.square([100, 100]), Some(even));
    }

    fn view(first: u64, dims: &[(u64, u64)]) -> View {
        let dims = dims.iter().map(|&(len, stride)| Dim { len, stride }).collect();
        View { buffer: 0, element: Element::F16, first, dims }
    }

    #[test]
    fn bits_are_numbers() {
        let halves = [(0, 0.), (1, 2f64.powi(-24)), (0x3c00, 1.), (0xc100, -2.5), (0x7bff, 65504.)];
        for (bits, number) in halves.into_iter().chain([(0xfbff, -65504.), (0xfc00, f64::NEG_INFINITY)]) {
            assert_eq!(Element::F16.number(bits), Some(number));
        }
        assert!(Element::F16.number(0x7e00).is_some_and(f64::is_nan));
        assert_eq!(Element::Bf16.number(0xc020), Some(-2.5));
        assert_eq!(Element::F32.number(f32::MIN.to_bits().into()), Some(f32::MIN.into()));
        for element in [Element::F16, Element::Bf16, Element::F32] {
            let number = |bits| element.number(bits).unwrap();
            let lowest = element.lowest().unwrap();
            assert!(number(lowest).is_finite() && number(lowest + 1) == f64::NEG_INFINITY, "{element:?}");
        }
        assert_eq!((Element::I64.number(1), Element::Byte.lowest()), (None, None));
    }

    #[test]
    fn a_view_ends_behind_its_last_element() {
        assert_eq!(view(3, &[(2, 8), (4, 1)]).end(), Some((3 + 8 + 3 + 1) * 2));
        assert_eq!(view(0, &[(1 << 40, 1 << 40)]).end(), None, "beyond 64 bits");
        assert_eq!(view(0, &[(2, 8), (4, 1)]).elements(), Some(8));
    }

    #[test]
    fn a_transposed_convolution_spreads_windows() {
        let window = |kernel, padding, stride, dilation| Window {
            kernel: [kernel, 1],
            padding: [padding, 0],
            stride: [stride, 1],
            dilation: [dilation, 1],
            groups: 1,
        };
        assert_eq!(window(4, 1, 2, 1).transposed([5, 1], [0, 0]), Some([10, 1]));
        assert_eq!(window(3, 0, 2, 2).transposed([5, 1], [1, 0]), Some([14, 1]));
        assert_eq!(window(2, 1, 1, 1).transposed([1, 1], [0, 0]), None, "nothing is left");
        assert_eq!(window(2, 0, 1 << 60, 1).transposed([1 << 10, 1], [0, 0]), None, "beyond 64 bits");
    }

    #[test]
    fn rows_that_touch_are_contiguous() {
        assert!(view(5, &[(2, 4), (1, 9), (4, 1)]).is_contiguous());
        assert!(!view(0, &[(2, 5), (4, 1)]).is_contiguous());
        assert!(!view(0, &[(2, 0), (4, 1)]).is_contiguous());
        assert!(view(0, &[]).is_contiguous(), "one element");
    }
}
