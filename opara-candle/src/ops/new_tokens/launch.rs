//! Launches of `new_tokens.cu`.

use candle::{bail, CudaDevice, DType, Result};
use cudarc::driver::{CudaSlice, CudaView, DeviceRepr, LaunchConfig};

use crate::cuda::driver::kernels::{kernels, ptx};
use crate::cuda::operator::places::{lanes, EACH, THREADS};
use crate::ops::PAGE;

kernels! {
    /// Keys and values of the new tokens into the cache, and their queries apart.
    New<T> = "opara_elementwise_new_tokens_" for [f16 bf16 f32] {
        batch: host, cached: host, table: host, numel: u32, tokens: u32, heads: u32, kv_heads: u32, dim: u32, pairs: u32, positions: u32, capacity: u32,
        eps: f32,
        qkv: wide in T [batch * tokens * (heads + 2 * kv_heads) * dim],
        q_norm: wide opt T [dim],
        k_norm: wide guarded T [dim],
        start: early in u32 [batch],
        counts: early opt u32 [batch],
        pages: early opt u32 [table],
        rotary: early wide guarded f32 [positions * 2 * pairs],
        cache: wide cache T [cached],
        y: out T [numel],
    }
}

/// Sizes of a launch.
#[derive(Debug, Clone, Copy)]
pub(in crate::ops) struct Sizes {
    pub dtype: DType,
    pub batch: usize,
    /// New tokens of a sequence.
    pub tokens: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    /// Pairs of elements that turn, and the positions that there are.
    pub pairs: usize,
    pub positions: usize,
    /// Places of a sequence in the cache.
    pub capacity: usize,
    /// Elements of the cache, and of a page.
    pub cached: usize,
    pub of_page: usize,
    /// Epsilon, added to the mean square where heads are normalised.
    pub eps: f32,
}

impl Sizes {
    /// Neighbours that have a head's elements together; `None` if there is no kernel for these sizes.
    fn lanes(&self) -> Option<usize> {
        let Self { dtype, batch, tokens, heads, kv_heads, head_dim, pairs, positions, capacity, .. } = *self;
        let lanes = lanes(head_dim)?;
        let are_there = ![batch, tokens, heads, kv_heads, head_dim, positions, capacity].contains(&0);
        let are_counted = self.cached <= 1 << 40
            && self.of_page <= u32::MAX as usize
            && self.read().max(capacity).max(positions) <= i32::MAX as usize;
        let is_known = New::<()>::is_for(dtype);
        (are_there && pairs.is_multiple_of(EACH) && are_counted && is_known).then_some(lanes)
    }

    /// Elements of the new tokens' queries, keys and values.
    fn read(&self) -> usize {
        self.batch * self.tokens * (self.heads + 2 * self.kv_heads) * self.head_dim
    }

    /// Whether there is a kernel.
    pub fn is_known(&self) -> bool {
        self.lanes().is_some()
    }
}

/// The operands of a launch besides the new tokens' queries, keys and values.
pub(super) struct Operands<'a, T> {
    /// Scales of the norms of queries and of keys.
    pub norms: Option<(&'a CudaView<'a, T>, &'a CudaView<'a, T>)>,
    pub start: &'a CudaView<'a, u32>,
    /// How many of its new tokens are each sequence's own.
    pub counts: Option<&'a CudaView<'a, u32>>,
    /// The pages that each sequence has; without them the cache has one for each.
    pub pages: Option<&'a CudaView<'a, u32>>,
    pub rotary: Option<&'a CudaView<'a, f32>>,
    /// Is written to.
    pub cache: &'a CudaView<'a, T>,
}

/// Keys and values of the new tokens into the cache, and their queries into `y`.
///
/// # Errors
/// Sizes without a kernel, slices that are too short or begin elsewhere than at multiples of 16 bytes, or a launch that fails.
pub(super) fn new_tokens<T: DeviceRepr>(
    device: &CudaDevice,
    sizes: &Sizes,
    qkv: &CudaView<T>,
    operands: &Operands<T>,
    y: &mut CudaSlice<T>,
) -> Result<()> {
    let Sizes { dtype, batch, tokens, heads, kv_heads, head_dim, pairs, positions, capacity, cached, eps, .. } = *sizes;
    let Operands { norms, start, counts, pages, rotary, cache } = *operands;
    let Some(lanes) = sizes.lanes() else { bail!("no kernel for {sizes:?}") };
    let rows = batch * tokens * (heads + 2 * kv_heads);
    let config = LaunchConfig {
        grid_dim: (rows.div_ceil(THREADS as usize / lanes) as u32, 1, 1),
        block_dim: (THREADS, 1, 1),
        shared_mem_bytes: 0,
    };
    New {
        batch,
        cached,
        table: batch * (capacity / PAGE),
        numel: batch * tokens * heads * head_dim,
        tokens,
        heads,
        kv_heads,
        dim: head_dim,
        pairs,
        positions,
        capacity,
        eps,
        qkv,
        q_norm: norms.map(|(q, _)| q),
        k_norm: norms.map(|(_, k)| k),
        start,
        counts,
        pages,
        rotary,
        cache,
        y: y.as_view_mut(),
    }
    .launch(device, &format!("{lanes}_{}", dtype.as_str()), ptx::NEW_TOKENS, config)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LLAMA: Sizes = Sizes {
        dtype: DType::BF16,
        batch: 1,
        tokens: 128,
        heads: 32,
        kv_heads: 8,
        head_dim: 64,
        pairs: 32,
        positions: 4096,
        capacity: 4096,
        cached: 2 * 8 * 4096 * 64,
        of_page: 2 * 8 * 4096 * 64,
        eps: 0.,
    };

    #[test]
    fn heads_of_published_models_have_a_kernel() {
        let lanes = |head_dim, pairs| Sizes { head_dim, pairs, ..LLAMA }.lanes();
        assert_eq!(LLAMA.lanes(), Some(8), "Llama 3.2 1B");
        assert_eq!(lanes(128, 48), Some(16), "Phi-4-mini");
        assert_eq!(lanes(256, 128), Some(32), "Gemma 3");
        assert_eq!(lanes(64, 0), Some(8), "nothing turns");
        assert_eq!([lanes(20, 10), lanes(64, 12), lanes(512, 256)], [None; 3]);
        assert_eq!(Sizes { dtype: DType::F64, ..LLAMA }.lanes(), None);
    }

    #[test]
    fn more_elements_than_the_kernel_counts_have_none() {
        assert!(Sizes { cached: 1 << 40, ..LLAMA }.is_known());
        let others = [
            Sizes { batch: 1 << 14, ..LLAMA },
            Sizes { cached: (1 << 40) + 1, ..LLAMA },
            Sizes { of_page: 1 << 32, ..LLAMA },
            Sizes { capacity: 1 << 31, ..LLAMA },
            Sizes { batch: 0, ..LLAMA },
            Sizes { tokens: 0, ..LLAMA },
        ];
        assert!(others.iter().all(|of| !of.is_known()));
    }
}
