//! Memory effects of the space-to-depth kernels.

use crate::cuda::operator::effects::{writes, Effects, Extent::Elements, Factor::Argument};

pub(in crate::ops) const EFFECTS: &[Effects] = &[
    // space_to_depth.cu: numel of the output, its sizes, the sizes and strides of the input, in, out
    writes("opara_space_to_depth_", 15, Elements(&[Argument(0)])),
];
