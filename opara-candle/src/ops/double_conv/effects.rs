//! Memory effects of the convolution in f64.

use crate::cuda::operator::effects::{writes, Effects, Extent::Elements, Factor::Argument};

pub(in crate::ops) const EFFECTS: &[Effects] = &[
    // double_conv.cu: numel, sizes, strides, dilations, padding, in, weight, out
    writes("opara_double_conv_", 18, Elements(&[Argument(0)])),
];
