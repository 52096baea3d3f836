//! Memory effects of the depthwise convolution kernels.

use crate::cuda::operator::effects::{writes, Effects, Extent::Elements, Factor::Argument};

pub(in crate::ops) const EFFECTS: &[Effects] = &[
    // depthwise.cu: numel, ..., in, weight, bias, out
    writes("opara_depthwise_", 17, Elements(&[Argument(0)])),
];
