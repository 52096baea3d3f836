//! What attention over a cache is given.

use candle::{Result, Tensor};

/// The sizes of attention over a cache, which are the same at every call.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CachedAttention {
    /// Heads of the queries.
    pub heads: usize,
    /// Heads of keys and values: a number that divides `heads`.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// What scores are multiplied by.
    pub scale: f64,
    /// How many tokens a token sees, itself included; all, if not given.
    pub window: Option<usize>,
    /// Epsilon, added to the mean square where queries and keys are normalised.
    pub eps: f32,
}

/// Places of a page of a cache that has [pages](NewTokens::pages).
pub const PAGE: usize = 64;

/// What attention over a cache takes besides its cache.
#[derive(Debug, Clone, Copy)]
pub struct NewTokens<'a> {
    /// Queries, keys and values of the new tokens in this order: `(batch, tokens, (heads + 2 * kv_heads) * head_dim)`.
    pub qkv: &'a Tensor,
    /// Where each sequence's first new token stands, as u32: `(batch)`.
    pub start: &'a Tensor,
    /// How many of its new tokens are each sequence's own, as u32: `(batch)`; all, if not given. Those behind them fill up the batch: their
    /// queries, keys and values count as zeros, whatever they are.
    pub counts: Option<&'a Tensor>,
    /// The pages that each sequence's places are in, in this order, as u32: `(batch, pages)`. Sequences may share pages that none of them
    /// writes to. On a GPU the caller sees to it that the cache has them: others are read and written outside of it.
    pub pages: Option<&'a Tensor>,
    /// Cosines and, behind them, sines by position, in f32: `(positions, 2 * pairs)`. Elements `i` and `i + pairs` of a head turn
    /// together; what is behind `2 * pairs` stays.
    pub rotary: Option<&'a Tensor>,
    /// Scales `(head_dim)` of the root-mean-square norms of each head of queries and of keys.
    pub norms: Option<(&'a Tensor, &'a Tensor)>,
    /// What is added to the score of a token and a place that is so many tokens before it, in f32: `(heads, distances)`, with at least
    /// as many distances as the cache has places.
    pub by_distance: Option<&'a Tensor>,
}

impl NewTokens<'_> {
    /// Places of a sequence.
    pub(super) fn capacity(&self, cache: &Tensor) -> Result<usize> {
        self.pages.map_or_else(|| cache.dim(3), |pages| Ok(pages.dim(1)? * PAGE))
    }
}
