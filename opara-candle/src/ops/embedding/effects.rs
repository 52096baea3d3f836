//! Memory effects of the embedding kernels.

use crate::cuda::operator::effects::{writes, Effects, Extent::Elements, Factor::Argument};

pub(in crate::ops) const EFFECTS: &[Effects] = &[
    // embedding.cu: numel, columns, rows of the table, ids, table, out
    writes("opara_embedding_", 5, Elements(&[Argument(0)])),
];
