//! Launches of `causal_attention.cuh`.

use candle::{bail, CudaDevice, DType, Result};
use cudarc::driver::{CudaSlice, CudaView, DeviceRepr, LaunchConfig};

use crate::cuda::driver::kernels::{kernels, ptx, Capabilities};
use crate::ops::PAGE;

kernels! {
    /// What the queries of new tokens see of the cache; queries of `sharing` heads share keys and values.
    Causal<T> = "opara_attention_causal_" for [f16 bf16] needs [TensorCores] {
        batch: grid [1], cached: host, table: host, numel: u32, tokens: u32, heads: u32, sharing: u32, capacity: u32, end: u32, window: u32,
        scale: f32,
        q: wide in T [numel],
        cache: wide in T [cached],
        start: early in u32 [batch],
        pages: opt u32 [table],
        y: out T [numel],
    }
}

/// `THREADS` and `ROWS` of `causal_attention.cuh`: rows of a block are queries of one head each.
const THREADS: u32 = 128;
const ROWS: usize = 64;
/// `SHARES` of `causal_attention.cuh`: blocks of a cluster, which share a sequence's places.
const SHARES: u32 = 4;
/// Blocks that fill an H100, and places that are worth a cluster.
const BLOCKS: usize = 264;
const MANY_PLACES: usize = 2048;

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
    /// Places of a sequence in the cache, and those of them that tokens may stand at: the first ones.
    pub capacity: usize,
    pub end: usize,
    /// Elements of the cache, and of a page.
    pub cached: usize,
    pub of_page: usize,
    /// How many places a token sees, its own included; all, if not given.
    pub window: Option<usize>,
    /// What scores are multiplied by.
    pub scale: f32,
}

impl Sizes {
    /// Is there a kernel for these sizes?
    fn are_known(&self) -> bool {
        let Self { dtype, batch, tokens, heads, kv_heads, head_dim, capacity, end, cached, of_page, window, scale } =
            *self;
        let is_size = matches!(head_dim, 32 | 40 | 64 | 80 | 96 | 128 | 160);
        let are_there = ![batch, tokens, heads, kv_heads, end].contains(&0) && window != Some(0);
        let are_shared = kv_heads > 0 && heads.is_multiple_of(kv_heads);
        let are_counted =
            batch <= 65_535 && self.numel() <= i32::MAX as usize && cached <= 1 << 40 && of_page <= u32::MAX as usize;
        let are_places = end <= capacity && capacity.max(window.unwrap_or(0)) <= i32::MAX as usize;
        let is_known = Causal::<()>::is_for(dtype);
        // The kernel scales scores after it has found the largest one.
        let is_scale = scale.is_normal() && scale > 0.;
        is_size && are_there && are_shared && are_counted && are_places && is_known && is_scale
    }

    /// Blocks of a sequence that have different rows.
    fn blocks(&self) -> usize {
        (self.tokens * self.heads / self.kv_heads).div_ceil(ROWS) * self.kv_heads
    }

    /// Do the blocks of a cluster share the places that a sequence has? Its bits depend on that, so the batch does not count.
    fn is_split(&self) -> bool {
        let seen = self.window.map_or(self.end, |window| self.end.min(window + self.tokens));
        seen >= MANY_PLACES && self.blocks() < BLOCKS
    }

    fn numel(&self) -> usize {
        self.batch * self.tokens * self.heads * self.head_dim
    }
}

fn code(dtype: DType) -> &'static str {
    match dtype {
        DType::F16 => ptx::CAUSAL_ATTENTION_F16,
        _ => ptx::CAUSAL_ATTENTION_BF16,
    }
}

/// Is there a kernel for these sizes that runs on the device?
///
/// # Errors
/// A failed driver call.
pub(super) fn attends(device: &CudaDevice, sizes: &Sizes) -> Result<bool> {
    Ok(sizes.are_known() && Causal::<()>::runs_on(&Capabilities::of(device, code(sizes.dtype))?))
}

/// What the queries see of the cache, into `y` as `(batch, tokens, heads, head_dim)`, like `q`.
///
/// # Errors
/// Sizes without a kernel, slices that are too short or begin elsewhere than at multiples of 16 bytes, or a launch that fails.
pub(super) fn causal_attention<T: DeviceRepr>(
    device: &CudaDevice,
    sizes: &Sizes,
    q: &CudaView<T>,
    cache: &CudaView<T>,
    (start, pages): (&CudaView<u32>, Option<&CudaView<u32>>),
    y: &mut CudaSlice<T>,
) -> Result<()> {
    let Sizes { dtype, batch, tokens, heads, kv_heads, head_dim, capacity, end, cached, window, scale, .. } = *sizes;
    if !sizes.are_known() {
        bail!("no kernel for {sizes:?}")
    }
    let code = code(dtype);
    let is_split = sizes.is_split() && Capabilities::of(device, code)?.has_clusters();
    let (shape, blocks) = if is_split { ("_split", SHARES) } else { ("", 1) };
    let config = LaunchConfig {
        grid_dim: (sizes.blocks() as u32, batch as u32, blocks),
        block_dim: (THREADS, 1, 1),
        shared_mem_bytes: 0,
    };
    let (numel, table, sharing) = (sizes.numel(), batch * (capacity / PAGE), heads / kv_heads);
    let (window, y) = (window.unwrap_or(0), y.as_view_mut());
    let variant = format!("{head_dim}{shape}_{}", dtype.as_str());
    let launch = Causal {
        batch,
        cached,
        table,
        numel,
        tokens,
        heads,
        sharing,
        capacity,
        end,
        window,
        scale,
        q,
        cache,
        start,
        pages,
        y,
    };
    launch.launch(device, &variant, code, config)
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
        capacity: 8192,
        end: 8192,
        cached: 2 * 8 * 8192 * 64,
        of_page: 2 * 8 * 8192 * 64,
        window: None,
        scale: 0.125,
    };

    #[test]
    fn heads_of_16_bits_have_a_kernel() {
        assert!(LLAMA.are_known());
        assert!(Sizes { dtype: DType::F16, head_dim: 128, ..LLAMA }.are_known());
        assert!(Sizes { kv_heads: 2, tokens: 1, ..LLAMA }.are_known());
        let others = [
            Sizes { dtype: DType::F32, ..LLAMA },
            Sizes { head_dim: 256, ..LLAMA },
            Sizes { kv_heads: 5, ..LLAMA },
            Sizes { scale: 0., ..LLAMA },
            Sizes { scale: -1., ..LLAMA },
            Sizes { end: 8193, ..LLAMA },
            Sizes { window: Some(0), ..LLAMA },
            Sizes { batch: 1 << 16, ..LLAMA },
        ];
        assert!(others.iter().all(|of| !of.are_known()));
    }

    #[test]
    fn clusters_share_many_places_of_few_rows() {
        assert!(LLAMA.is_split() && Sizes { batch: 64, ..LLAMA }.is_split(), "whatever the batch is");
        assert!(!Sizes { end: 2000, ..LLAMA }.is_split(), "few places");
        assert!(!Sizes { window: Some(512), ..LLAMA }.is_split(), "few of them are seen");
        assert!(!Sizes { tokens: 1024, ..LLAMA }.is_split(), "many rows");
    }
}
