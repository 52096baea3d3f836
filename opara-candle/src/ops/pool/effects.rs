//! Memory effects of the pooling kernels.

use crate::cuda::operator::effects::{writes, Effects, Extent::Elements, Factor::Argument};

pub(in crate::ops) const EFFECTS: &[Effects] = &[
    // pool.cu: numel, ..., in, out
    writes("opara_pool_", 18, Elements(&[Argument(0)])),
    // plane_sums.cu: numel, pixels, channels, factor, in, out
    writes("opara_plane_sums_", 5, Elements(&[Argument(0)])),
];
