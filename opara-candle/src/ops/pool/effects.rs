//! Memory effects of the pooling kernels.

use crate::cuda::kernels::effects::{writes, Effects, Extent::Elements, Factor::Argument};

pub(in crate::ops) const EFFECTS: &[Effects] = &[
    // pool.cu: numel, ..., in, out
    writes("opara_pool_", 18, Elements(&[Argument(0)])),
];
