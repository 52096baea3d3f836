//! How the meaning of an op is written. As in `record`, the order of fields and variants is the format.

use serde::{Deserialize, Serialize};

use crate::trace::{self, Dim, Function};

/// The meaning of one op.
#[derive(Serialize, Deserialize)]
pub(super) struct Meaning {
    /// Ops without a meaning between the one before and this one.
    pub(super) skipped: u64,
    #[serde(with = "FunctionVariants")]
    function: Function,
    reads: Vec<View>,
    writes: Option<View>,
}

#[derive(Serialize, Deserialize)]
struct View {
    buffer: usize,
    #[serde(with = "ElementVariants")]
    element: trace::Element,
    first: u64,
    /// Length and stride of each.
    dims: Vec<(u64, u64)>,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "trace::Element")]
enum ElementVariants {
    Byte,
    F16,
    Bf16,
    F32,
    U8,
    U32,
    I64,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "trace::Window")]
struct WindowFields {
    kernel: [u64; 2],
    padding: [u64; 2],
    stride: [u64; 2],
    dilation: [u64; 2],
    groups: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Function")]
enum FunctionVariants {
    Zeros,
    Upload,
    Copy,
    Unary(String),
    Binary(String),
    Affine(f32, f32),
    RowSum(u64),
    RowMax(u64),
    RowMin(u64),
    Softmax(u64),
    LayerNorm(u64, f32),
    RmsNorm(u64, f32),
    Matmul,
    Convolution(#[serde(with = "WindowFields")] trace::Window),
    MaxPool(#[serde(with = "WindowFields")] trace::Window),
    MeanPool(#[serde(with = "WindowFields")] trace::Window),
    Part,
    IndexSelect { left: u64, from: u64, right: u64 },
    Where,
    Rotary(#[serde(with = "RotaryFields")] trace::Rotary),
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "trace::Rotary")]
struct RotaryFields {
    outer: u64,
    tokens: u64,
    heads: u64,
    size: u64,
    is_of_neighbours: bool,
    angles: u64,
}

impl Meaning {
    pub(super) fn new(skipped: u64, trace::Meaning { function, reads, writes }: trace::Meaning) -> Self {
        let reads = reads.into_iter().map(View::from).collect();
        Self { skipped, function, reads, writes: writes.map(View::from) }
    }
}

impl From<Meaning> for trace::Meaning {
    fn from(Meaning { function, reads, writes, .. }: Meaning) -> Self {
        let reads = reads.into_iter().map(trace::View::from).collect();
        Self { function, reads, writes: writes.map(trace::View::from) }
    }
}

impl From<trace::View> for View {
    fn from(trace::View { buffer, element, first, dims }: trace::View) -> Self {
        let dims = dims.into_iter().map(|Dim { len, stride }| (len, stride)).collect();
        Self { buffer, element, first, dims }
    }
}

impl From<View> for trace::View {
    fn from(View { buffer, element, first, dims }: View) -> Self {
        let dims = dims.into_iter().map(|(len, stride)| Dim { len, stride }).collect();
        Self { buffer, element, first, dims }
    }
}
