//! Launches of `cached_attention.cuh`.

#![allow(unsafe_code)]

use candle::cuda_backend::WrapErr;
use candle::{bail, CudaDevice, DType, Result};
use cudarc::driver::{CudaSlice, CudaView, DeviceRepr, LaunchConfig, PushKernelArg};

use super::CachedAttention;
use crate::cuda::driver::kernels::{address, arg_or_null, expect, function, ptx, Capabilities};

/// `THREADS` and `EACH` of `cached_attention.cuh`.
const THREADS: u32 = 256;
const EACH: usize = 8;

/// Sizes of a launch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    pub of: CachedAttention,
    pub dtype: DType,
    pub batch: usize,
    /// Places of a sequence in the cache.
    pub capacity: usize,
    /// Pairs of elements that turn, and the positions of their table.
    pub pairs: usize,
    pub positions: usize,
}

impl Sizes {
    /// The kernel: neighbours that have a head's elements together, and query heads that share keys; `None` if there is none
    /// for these sizes.
    fn kernel(&self) -> Option<(usize, usize)> {
        let Self { of, pairs, .. } = self;
        let lanes = [8, 16, 32].into_iter().find(|lanes| of.head_dim <= lanes * EACH)?;
        let group = of.heads / of.kv_heads;
        let heads = [4, 8].into_iter().find(|heads| group <= *heads)?;
        let is_whole = of.head_dim.is_multiple_of(EACH) && pairs.is_multiple_of(EACH);
        let is_there = self.batch > 0 && self.capacity > 0 && self.positions > 0;
        let is_counted = self.batch <= 65_535 && self.cache() <= 1 << 40 && self.capacity <= i32::MAX as usize;
        let is_known = matches!(self.dtype, DType::F32 | DType::F16 | DType::BF16);
        (is_whole && is_there && is_counted && is_known && lanes * heads <= 128).then_some((lanes, heads))
    }

    /// Elements of the cache.
    fn cache(&self) -> usize {
        2 * self.batch * self.of.kv_heads * self.capacity * self.of.head_dim
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
    pub rotary: &'a CudaView<'a, f32>,
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
    let Sizes { of, dtype, batch, capacity, pairs, positions } = *sizes;
    let CachedAttention { heads, kv_heads, head_dim, scale, window, eps } = of;
    let Operands { norms, start, rotary, cache } = *operands;
    let Some((lanes, group)) = sizes.kernel() else { bail!("no kernel for {sizes:?}") };
    let numel = batch * heads * head_dim;
    expect("the new tokens", qkv.len(), batch * (heads + 2 * kv_heads) * head_dim)?;
    expect("the positions", start.len(), batch)?;
    expect("the rotary table", rotary.len(), positions * 2 * pairs)?;
    expect("the cache", cache.len(), sizes.cache())?;
    expect("the norms", norms.map_or(head_dim, |(q, k)| q.len().min(k.len())), head_dim)?;
    expect("the result", y.len(), numel)?;
    let elements = [Some(qkv), Some(cache), norms.map(|(q, _)| q), norms.map(|(_, k)| k)];
    let mut addresses = elements.into_iter().flatten().map(|at| address(at, device)).chain([address(rotary, device)]);
    if addresses.any(|at| !at.is_multiple_of(16)) {
        bail!("an operand of {sizes:?} does not begin at a multiple of 16 bytes")
    }
    let code = match dtype {
        DType::F16 => ptx::CACHED_ATTENTION_F16,
        DType::BF16 => ptx::CACHED_ATTENTION_BF16,
        _ => ptx::CACHED_ATTENTION_F32,
    };
    let (name, module) = (dtype.as_str(), format!("cached_attention_{}", dtype.as_str()));
    let function = function(device, &format!("opara_cached_attention_{lanes}x{group}_{name}"), &module, code)?;
    // What the kernel's clusters are made of, where the code has any.
    let blocks = if Capabilities::of(device, code)?.has_clusters() { 8 } else { 1 };
    let sizes = [numel, heads, kv_heads, head_dim, pairs, positions, capacity, window.unwrap_or(0)].map(|n| n as u32);
    let numbers = [scale as f32, eps];
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&function);
    for size in &sizes {
        launch.arg(size);
    }
    for number in &numbers {
        launch.arg(number);
    }
    launch.arg(qkv);
    arg_or_null(&mut launch, norms.map(|(q, _)| q));
    arg_or_null(&mut launch, norms.map(|(_, k)| k));
    launch.arg(start).arg(rotary).arg(cache).arg(y);
    let config = LaunchConfig {
        grid_dim: (kv_heads as u32, batch as u32, blocks),
        block_dim: (THREADS, 1, 1),
        shared_mem_bytes: 0,
    };
    // SAFETY: the arguments are those that the kernel declares. It reads a row of `qkv` and a position a sequence, a row of the
    // table and a place of the cache, both below their ends whatever the position is, nothing through null, and writes to the
    // cache at one place a sequence and each of `numel` of `y`: all were held against the slices above. Everything that it loads
    // 16 bytes of begins at multiples of 16 bytes, heads too, whose sizes `kernel` saw. Work on the stream is in order, so nobody
    // reads the cache meanwhile.
    unsafe { launch.launch(config) }.w()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_of_published_models_have_a_kernel() {
        let kernel = |heads, kv_heads, head_dim, pairs| {
            let of = CachedAttention { heads, kv_heads, head_dim, scale: 1., window: None, eps: 1e-6 };
            Sizes { of, dtype: DType::F16, batch: 1, capacity: 64, pairs, positions: 64 }.kernel()
        };
        assert_eq!(kernel(14, 2, 64, 32), Some((8, 8)), "Qwen2.5-0.5B");
        assert_eq!(kernel(32, 8, 128, 64), Some((16, 4)), "Llama 3.1");
        assert_eq!(kernel(32, 32, 96, 48), Some((16, 4)), "Phi-3");
        assert_eq!(kernel(24, 8, 128, 48), Some((16, 4)), "Phi-4-mini");
        assert_eq!(kernel(4, 1, 256, 128), Some((32, 4)), "Gemma 3");
        assert_eq!(kernel(4, 2, 20, 10), None);
        assert_eq!(kernel(16, 1, 64, 32), None);
    }
}
