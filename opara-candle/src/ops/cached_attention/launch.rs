//! Launches of `cached_attention.cuh`, and of `cached_attention_tensor.cuh` for query heads of 16 bits that share keys.

use candle::{bail, CudaDevice, DType, Result};
use cudarc::driver::{CudaSlice, CudaView, DeviceRepr, LaunchConfig};

use super::operands::{CachedAttention, PAGE};
use crate::cuda::driver::kernels::{expect, kernels, ptx, Capabilities};
use crate::cuda::operator::places::{Split, THREADS};

kernels! {
    /// One new token a sequence into the cache, and what it sees of that. Heads of the new tokens are queries, keys and values.
    Cached<T> = "opara_attention_cached_" for [f16 bf16 f32] needs [TensorCores] {
        clusters: grid [1], cached: host, table: host, batch: u32, heads: u32, kv_heads: u32, group: u32, dim: u32, pairs: u32, positions: u32,
        capacity: u32, window: u32, distances: u32, scale: f32, eps: f32,
        qkv: wide in T [batch * (heads + 2 * kv_heads) * dim],
        q_norm: wide opt T [dim],
        k_norm: wide guarded T [dim],
        start: early in u32 [batch],
        pages: early guarded u32 [table],
        rotary: wide guarded f32 [positions * 2 * pairs],
        by_distance: early opt f32 [heads * distances],
        cache: early wide cache T [cached],
        y: out T [batch * heads * dim],
    }
}

/// `WARPS` of `places.cuh`, `COLUMNS` of `softmaxes.cuh`, and `PLACES` and `NEW_ROWS` of `cached_attention_tensor.cuh`.
const WARPS: usize = THREADS as usize / 32;
const COLUMNS: usize = 8;
const PLACES: usize = 16;
const NEW_ROWS: usize = 10;
/// `SHARES` of `places.cuh`.
const SHARES: u32 = 8;

/// A kernel of `cached_attention_tensor.cuh`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct OnTensorCores {
    /// Elements of a head that it has: those that are not there are zeros.
    dim: usize,
    /// Whether a warp asks for the keys and values of one tile ahead, not of two, so that a multiprocessor has more blocks.
    is_for_many: bool,
    /// Whether a cluster has as many sequences as blocks, not one.
    has_several: bool,
}

impl OnTensorCores {
    /// Bytes of shared memory that the launch asks for: rows of the new token, sums of the warps, and their rings.
    fn shared(self) -> usize {
        let row = 2 * self.dim;
        let slots = if self.is_for_many { 2 } else { 4 };
        NEW_ROWS * row + WARPS * 32 * self.dim + WARPS * slots * PLACES * row
    }

    /// Bytes of shared memory that the kernel has besides: what belongs to the sums.
    fn fixed_shared(self) -> usize {
        size_of::<f32>() * 2 * COLUMNS * WARPS
    }
}

/// Sizes of a launch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    pub of: CachedAttention,
    pub dtype: DType,
    pub batch: usize,
    /// Places of a sequence in the cache.
    pub capacity: usize,
    /// Elements of the cache, and of a page.
    pub cached: usize,
    pub of_page: usize,
    /// Pairs of elements that turn, and the positions that there are.
    pub pairs: usize,
    pub positions: usize,
    /// Distances of the table that is added to scores, if there is one.
    pub distances: usize,
}

impl Sizes {
    /// The kernel; `None` if there is none for these sizes.
    fn kernel(&self) -> Option<Split> {
        let Self { of, pairs, .. } = self;
        let split = Split::new(of.heads / of.kv_heads, of.head_dim, self.capacity)?;
        let is_there = self.batch > 0 && self.capacity > 0 && self.positions > 0;
        let is_counted = self.batch <= 65_535
            && self.cached <= 1 << 40
            && self.of_page <= u32::MAX as usize
            && self.capacity <= i32::MAX as usize;
        let is_known = Cached::<()>::is_for(self.dtype);
        (pairs.is_multiple_of(8) && is_there && is_counted && is_known).then_some(split)
    }

    /// The kernel on tensor cores, if there is one: each key is read once for all heads that share it. A text has the same bits, whichever
    /// it is. While a multiprocessor has one block at most that reads, a block asks for more ahead. While all blocks of clusters that have one
    /// sequence each have room at once, two a multiprocessor, a long sequence does not wait for another one.
    fn on_tensor_cores(&self, blocks: u32, capabilities: &Capabilities) -> Option<OnTensorCores> {
        let CachedAttention { heads, kv_heads, head_dim, .. } = self.of;
        let dim = [64, 128].into_iter().find(|&dim| head_dim <= dim)?;
        let is_known = matches!(self.dtype, DType::F16 | DType::BF16) && self.distances == 0;
        // Few places of a head of its own take one block.
        let is_divided = blocks == if capabilities.has_clusters() { SHARES } else { 1 };
        let fits_columns = heads / kv_heads <= COLUMNS;
        let reading = kv_heads * self.batch;
        let of = OnTensorCores {
            dim,
            is_for_many: reading > capabilities.processors(),
            has_several: blocks > 1 && reading * blocks as usize > 2 * capabilities.processors(),
        };
        let fits = |of: OnTensorCores| capabilities.has_shared(of.shared() + of.fixed_shared());
        let of = [of, OnTensorCores { is_for_many: true, ..of }].into_iter().find(|&of| fits(of))?;
        (is_known && is_divided && fits_columns && capabilities.has_tensor_cores()).then_some(of)
    }

    /// Whether there is a kernel.
    pub fn is_known(&self) -> bool {
        self.kernel().is_some()
    }
}

/// The operands of a launch besides the new tokens' queries, keys and values.
pub(super) struct Operands<'a, T> {
    /// Scales of the norms of queries and of keys.
    pub norms: Option<(&'a CudaView<'a, T>, &'a CudaView<'a, T>)>,
    pub start: &'a CudaView<'a, u32>,
    /// The pages that each sequence has; without them the cache has one for each.
    pub pages: Option<&'a CudaView<'a, u32>>,
    pub rotary: Option<&'a CudaView<'a, f32>>,
    /// What is added to scores, by query head and distance.
    pub by_distance: Option<&'a CudaView<'a, f32>>,
    /// Is written to.
    pub cache: &'a CudaView<'a, T>,
}

/// One new token a sequence into the cache, and what it sees of that into `y`.
///
/// # Errors
/// Sizes without a kernel, slices that are too short or begin elsewhere than at multiples of 16 bytes, or a launch that fails.
pub(super) fn cached_attention<T: DeviceRepr>(
    device: &CudaDevice,
    sizes: &Sizes,
    qkv: &CudaView<T>,
    operands: &Operands<T>,
    y: &mut CudaSlice<T>,
) -> Result<()> {
    let Sizes { of, dtype, batch, capacity, cached, pairs, positions, distances, .. } = *sizes;
    let CachedAttention { heads, kv_heads, head_dim, scale, window, eps } = of;
    let Operands { norms, start, pages, rotary, by_distance, cache } = *operands;
    let Some(split) = sizes.kernel() else { bail!("no kernel for {sizes:?}") };
    expect("the distances", by_distance.map_or(capacity, |_| distances), capacity)?;
    let plain = match dtype {
        DType::F16 => ptx::CACHED_ATTENTION_F16,
        DType::BF16 => ptx::CACHED_ATTENTION_BF16,
        _ => ptx::CACHED_ATTENTION_F32,
    };
    let capabilities = Capabilities::of(device, plain)?;
    let blocks = split.blocks(capabilities.has_clusters());
    let tensor = sizes.on_tensor_cores(blocks, &capabilities);
    let code = match (tensor, dtype) {
        (Some(_), DType::F16) => ptx::CACHED_ATTENTION_TENSOR_F16,
        (Some(_), _) => ptx::CACHED_ATTENTION_TENSOR_BF16,
        (None, _) => plain,
    };
    let shape = match tensor {
        Some(of) => {
            let many = if of.is_for_many { "_many" } else { "" };
            format!("tensor_{}{}{many}", of.dim, if pages.is_some() { "_pages" } else { "" })
        }
        // Two blocks of a multiprocessor where there are more blocks than it has of these.
        None => {
            let are_many = kv_heads * batch * blocks as usize > capabilities.processors();
            split.name() + if are_many { "_twice" } else { "" }
        }
    };
    let clusters = if tensor.is_some_and(|of| of.has_several) { batch.div_ceil(blocks as usize) } else { batch };
    let config = LaunchConfig {
        grid_dim: (kv_heads as u32, clusters as u32, blocks),
        block_dim: (THREADS, 1, 1),
        shared_mem_bytes: tensor.map_or(0, OnTensorCores::shared) as u32,
    };
    Cached {
        clusters,
        cached,
        table: batch * (capacity / PAGE),
        batch,
        heads,
        kv_heads,
        group: heads / kv_heads,
        dim: head_dim,
        pairs,
        positions,
        capacity,
        window: window.unwrap_or(0),
        distances,
        scale: scale as f32,
        eps,
        qkv,
        q_norm: norms.map(|(q, _)| q),
        k_norm: norms.map(|(_, k)| k),
        start,
        pages,
        rotary,
        by_distance,
        cache,
        y: y.as_view_mut(),
    }
    .launch(device, &format!("{shape}_{}", dtype.as_str()), code, config)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::driver::kernels::capabilities::tests::capabilities;

    #[test]
    fn heads_of_16_bits_that_share_keys_are_on_tensor_cores() {
        let hopper = capabilities("sm_90a", 90, 227 << 10);
        let sizes = |dtype, heads, head_dim, capacity| Sizes {
            of: CachedAttention { heads, kv_heads: 2, head_dim, scale: 1., window: None, eps: 0. },
            dtype,
            batch: 1,
            capacity,
            cached: 2 * 2 * capacity * head_dim,
            of_page: 2 * 2 * capacity * head_dim,
            pairs: 0,
            positions: capacity,
            distances: 0,
        };
        let of = |sizes: Sizes, on, blocks| {
            sizes.on_tensor_cores(blocks, on).map(|of| (of.dim, of.is_for_many, of.has_several))
        };
        let kernel = |head_dim, batch| of(Sizes { batch, ..sizes(DType::BF16, 14, head_dim, 1024) }, &hopper, 8);
        assert_eq!([kernel(64, 1), kernel(72, 1)], [Some((64, false, false)), Some((128, false, false))]);
        // Two heads of keys: 132 multiprocessors have two blocks each of 16 clusters of 8, and one block that reads of 66 sequences.
        let batches = [16, 17, 66, 67].map(|batch| kernel(64, batch).unwrap());
        assert_eq!(batches, [(64, false, false), (64, false, true), (64, false, true), (64, true, true)]);
        assert_eq!(kernel(256, 1), None, "wider heads than the kernels have");
        assert_eq!(of(sizes(DType::F32, 14, 64, 1024), &hopper, 8), None);
        assert_eq!(
            of(sizes(DType::F16, 2, 64, 8192), &hopper, 8),
            Some((64, false, false)),
            "keys of a head of its own"
        );
        assert_eq!(of(sizes(DType::F16, 2, 64, 64), &hopper, 1), None, "few of these");
        assert_eq!(of(sizes(DType::F16, 18, 64, 1024), &hopper, 8), None, "more heads than columns");
        let by_distance = Sizes { distances: 1024, ..sizes(DType::F16, 14, 64, 1024) };
        assert_eq!(of(by_distance, &hopper, 8), None);
        let small = capabilities("sm_86", 86, 99 << 10);
        assert_eq!(of(sizes(DType::F16, 14, 64, 8192), &small, 1), Some((64, false, false)));
        assert_eq!(
            of(sizes(DType::F16, 14, 128, 8192), &small, 1),
            Some((128, true, false)),
            "no room for two tiles ahead"
        );
        let turing = capabilities("sm_75", 75, 64 << 10);
        assert_eq!(of(sizes(DType::F16, 14, 64, 1024), &turing, 1), None);
        // Blocks of a multiprocessor, whose shared memory a block takes another KiB of.
        for (dim, is_for_many, blocks) in [(64, false, 2), (64, true, 3), (128, false, 1), (128, true, 2)] {
            let of = OnTensorCores { dim, is_for_many, has_several: false };
            assert!(blocks * (of.shared() + of.fixed_shared() + 1024) <= 228 << 10, "{of:?}");
        }
    }
}
