//! Memory effects of the space-to-depth kernels.

use crate::cuda::kernels::effects::{writes, Effects, Extent::Elements, Factor::Argument};

pub(in crate::ops) const EFFECTS: &[Effects] = &[
    // space_to_depth.cu: numel of the output, its sizes, those of the input and its strides, in, out
    writes("opara_space_to_depth_", 15, Elements(&[Argument(0)])),
];
