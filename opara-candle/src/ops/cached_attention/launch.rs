//! Launches of `cached_attention.cuh`, and of `cached_attention_tensor.cuh` for query heads of 16 bits that share keys.

use candle::{bail, CudaDevice, DType, Result};
use cudarc::driver::{CudaSlice, CudaView, DeviceRepr, LaunchConfig};

use super::operands::{CachedAttention, PAGE};
use crate::cuda::driver::kernels::{expect, kernels, ptx, Capabilities};
use crate::cuda::operator::places::{Split, THREADS};

kernels! {
    /// One new token a sequence into the cache, and what it sees of that. Heads of the new tokens are queries, keys and values.
    Cached<T> = "opara_attention_cached_" for [f16 bf16 f32] needs [TensorCores] {
        batch: grid [1], cached: host, table: host, numel: u32, heads: u32, kv_heads: u32, dim: u32, pairs: u32, positions: u32, capacity: u32,
        window: u32, distances: u32, scale: f32, eps: f32,
        qkv: wide in T [batch * (heads + 2 * kv_heads) * dim],
        q_norm: wide opt T [dim],
        k_norm: wide guarded T [dim],
        start: early in u32 [batch],
        pages: early guarded u32 [table],
        rotary: early wide guarded f32 [positions * 2 * pairs],
        by_distance: early opt f32 [heads * distances],
        cache: early wide cache T [cached],
        y: out T [numel],
    }
}

/// `WARPS` of `places.cuh`, and `COLUMNS`, `PLACES` and `NEW_ROWS` of `cached_attention_tensor.cuh`.
const WARPS: usize = THREADS as usize / 32;
const COLUMNS: usize = 8;
const PLACES: usize = 16;
/// `SHARES` of `places.cuh`.
const SHARES: u32 = 8;
const NEW_ROWS: usize = 10;

/// A kernel of `cached_attention_tensor.cuh`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct OnTensorCores {
    /// Elements of a head that it has: those that are not there are zeros.
    dim: usize,
    /// Slots of a warp, each with the keys or the values of its places.
    slots: usize,
}

impl OnTensorCores {
    /// Bytes of shared memory that the launch asks for.
    fn shared(self) -> usize {
        NEW_ROWS * 2 * (self.dim + 8) + self.slots * Self::shared_of_slots(self.dim)
    }

    /// Of a slot of each warp.
    fn shared_of_slots(dim: usize) -> usize {
        WARPS * PLACES * 2 * dim
    }

    /// Bytes of shared memory that the kernel has besides: sums of the block, and what belongs to them, of blocks and of warps.
    fn fixed_shared(self) -> usize {
        size_of::<f32>() * COLUMNS * (self.dim + 4 + 2 * WARPS)
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

    /// The kernel on tensor cores, if there is one: each key is read once for all heads that share it. It has as many slots as let a
    /// multiprocessor have four blocks of 64 elements, or two of 128, and no more than a warp has keys and values for.
    fn on_tensor_cores(&self, blocks: u32, capabilities: &Capabilities) -> Option<OnTensorCores> {
        let CachedAttention { heads, kv_heads, head_dim, window, .. } = self.of;
        let dim = [64, 128].into_iter().find(|&dim| head_dim <= dim)?;
        let is_known = matches!(self.dtype, DType::F16 | DType::BF16) && self.distances == 0;
        // Few places of a head of its own take one block.
        let is_divided = blocks == if capabilities.has_clusters() { SHARES } else { 1 };
        let fits_columns = heads / kv_heads <= COLUMNS;
        let seen = window.map_or(self.capacity, |window| window.min(self.capacity));
        let of = OnTensorCores { dim, slots: if seen > blocks as usize * WARPS * PLACES { 3 } else { 2 } };
        let fits = |of: OnTensorCores| capabilities.has_shared(of.shared() + of.fixed_shared());
        let of = [of, OnTensorCores { slots: 2, ..of }].into_iter().find(|&of| fits(of))?;
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
    let numel = batch * heads * head_dim;
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
        Some(of) => format!("tensor_{}{}", of.dim, if pages.is_some() { "_pages" } else { "" }),
        // Two blocks of a multiprocessor where there are more blocks than it has of these.
        None => {
            let are_many = kv_heads * batch * blocks as usize > capabilities.processors();
            split.name() + if are_many { "_twice" } else { "" }
        }
    };
    let config = LaunchConfig {
        grid_dim: (kv_heads as u32, batch as u32, blocks),
        block_dim: (THREADS, 1, 1),
        shared_mem_bytes: tensor.map_or(0, OnTensorCores::shared) as u32,
    };
    Cached {
        batch,
        cached,
        table: batch * (capacity / PAGE),
        numel,
        heads,
        kv_heads,
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
        let of = |sizes: Sizes, on, blocks| sizes.on_tensor_cores(blocks, on).map(|of| (of.dim, of.slots));
        let slots = |head_dim, capacity| of(sizes(DType::BF16, 14, head_dim, capacity), &hopper, 8);
        assert_eq!([slots(64, 1024), slots(64, 1025)], [Some((64, 2)), Some((64, 3))]);
        assert_eq!([slots(72, 1024), slots(128, 8192)], [Some((128, 2)), Some((128, 3))]);
        assert_eq!(slots(256, 1024), None, "wider heads than the kernels have");
        assert_eq!(of(sizes(DType::F32, 14, 64, 1024), &hopper, 8), None);
        assert_eq!(of(sizes(DType::F16, 2, 64, 8192), &hopper, 8), Some((64, 3)), "keys of a head of its own");
        assert_eq!(of(sizes(DType::F16, 2, 64, 64), &hopper, 1), None, "few of these");
        assert_eq!(of(sizes(DType::F16, 18, 64, 1024), &hopper, 8), None, "more heads than columns");
        let by_distance = Sizes { distances: 1024, ..sizes(DType::F16, 14, 64, 1024) };
        assert_eq!(of(by_distance, &hopper, 8), None);
        let small = capabilities("sm_86", 86, 99 << 10);
        assert_eq!(of(sizes(DType::F16, 14, 128, 8192), &small, 1), Some((128, 2)));
        let turing = capabilities("sm_75", 75, 64 << 10);
        assert_eq!(of(sizes(DType::F16, 14, 64, 1024), &turing, 1), None);
        // Blocks of a multiprocessor, whose shared memory a block takes another KiB of.
        for (of, blocks) in [(OnTensorCores { dim: 64, slots: 3 }, 4), (OnTensorCores { dim: 128, slots: 3 }, 2)] {
            assert!(blocks * (of.shared() + of.fixed_shared() + 1024) <= 228 << 10, "{of:?}");
        }
    }
}
