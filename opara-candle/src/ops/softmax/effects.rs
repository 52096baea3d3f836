//! Memory effects of the softmax kernels.

use crate::cuda::operator::effects::{writes, Effects, Extent::Elements, Factor::Argument};

pub(in crate::ops) const EFFECTS: &[Effects] = &[
    // softmax.cu: rows, columns, sizes and strides of the bias, in, bias, out; the bias may be null
    writes("opara_softmax_", 9, Elements(&[Argument(0), Argument(1)])).reads(&[7]),
];
