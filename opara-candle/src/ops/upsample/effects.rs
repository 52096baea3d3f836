//! Memory effects of the upsampling kernels.

use crate::cuda::operator::effects::{writes, Effects, Extent::Elements, Factor::Argument};

pub(in crate::ops) const EFFECTS: &[Effects] = &[
    // upsample.cu: numel, channels, sizes of both planes, scales, in, out
    writes("opara_upsample_", 9, Elements(&[Argument(0)])),
];
