//! Launches of `heads.cu`.

use crate::cuda::driver::kernels::{kernels, strided};
use crate::cuda::operator::rows::Rows;

kernels! {
    /// `(x + bias) * scale`, heads before tokens. `pitch` elements are from one token to the next in `x`.
    SplitHeads<T> = "opara_layout_split_heads_" for [f16 bf16 f32 f64] {
        numel: u32, seq: u32, heads: u32, dim: u32, pitch: u32, scale: f64,
        x: vector in T [strided([numel / (heads * dim)], [pitch], heads * dim)],
        bias: vector opt T [heads * dim],
        y: out T [numel],
    }
}

/// The shape of an attention operand: `heads` heads of `dim` elements for each of `seq` tokens.
#[derive(Debug, Clone, Copy)]
pub(super) struct Heads {
    pub batch: usize,
    pub seq: usize,
    pub heads: usize,
    pub dim: usize,
    /// Elements from one token to the next before the split.
    pub pitch: usize,
}

impl Heads {
    /// Splits `hidden` elements into `heads` heads. `None` if that does not divide evenly, or if an index exceeds 31
    /// bits.
    pub fn new(batch: usize, seq: usize, heads: usize, hidden: usize, pitch: usize) -> Option<Self> {
        let countable = Rows::of(&[batch, seq, hidden.max(pitch)]).is_some_and(|rows| rows.are_countable());
        (countable && heads > 0 && hidden.is_multiple_of(heads)).then(|| Self {
            batch,
            seq,
            heads,
            dim: hidden / heads,
            pitch,
        })
    }

    pub fn elements(&self) -> usize {
        self.batch * self.seq * self.heads * self.dim
    }

    /// The shape before the split, as a matmul gives it.
    pub fn before(&self) -> (usize, usize, usize, usize) {
        (self.batch, self.seq, self.heads, self.dim)
    }

    /// The shape after the split, as attention takes it.
    pub fn after(&self) -> (usize, usize, usize, usize) {
        (self.batch, self.heads, self.seq, self.dim)
    }
}
