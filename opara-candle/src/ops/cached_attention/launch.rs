//! Launches of `cached_attention.cuh`.

#![allow(unsafe_code)]

use candle::cuda_backend::WrapErr;
use candle::{bail, CudaDevice, DType, Result};
use cudarc::driver::{CudaSlice, CudaView, DeviceRepr, LaunchConfig, PushKernelArg};

use super::CachedAttention;
use crate::cuda::driver::kernels::{address, arg_or_null, expect, function, ptx, Capabilities};
use crate::cuda::operator::places::{Split, THREADS};

/// Sizes of a launch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    pub of: CachedAttention,
    pub dtype: DType,
    pub batch: usize,
    /// Places of a sequence in the cache.
    pub capacity: usize,
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
        let is_counted = self.batch <= 65_535 && self.cache() <= 1 << 40 && self.capacity <= i32::MAX as usize;
        let is_known = matches!(self.dtype, DType::F32 | DType::F16 | DType::BF16);
        (pairs.is_multiple_of(8) && is_there && is_counted && is_known).then_some(split)
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
    let Sizes { of, dtype, batch, capacity, pairs, positions, distances } = *sizes;
    let CachedAttention { heads, kv_heads, head_dim, scale, window, eps } = of;
    let Operands { norms, start, rotary, by_distance, cache } = *operands;
    let Some(split) = sizes.kernel() else { bail!("no kernel for {sizes:?}") };
    let numel = batch * heads * head_dim;
    expect("the new tokens", qkv.len(), batch * (heads + 2 * kv_heads) * head_dim)?;
    expect("the positions", start.len(), batch)?;
    expect("the rotary table", rotary.map_or(0, CudaView::len), positions * 2 * pairs)?;
    expect("the table of distances", by_distance.map_or(0, CudaView::len), heads * distances)?;
    expect("the distances", by_distance.map_or(capacity, |_| distances), capacity)?;
    expect("the cache", cache.len(), sizes.cache())?;
    expect("the norms", norms.map_or(head_dim, |(q, k)| q.len().min(k.len())), head_dim)?;
    expect("the result", y.len(), numel)?;
    let elements = [Some(qkv), Some(cache), norms.map(|(q, _)| q), norms.map(|(_, k)| k)];
    let tables = rotary.map(|at| address(at, device));
    let mut addresses = elements.into_iter().flatten().map(|at| address(at, device)).chain(tables);
    if addresses.any(|at| !at.is_multiple_of(16)) {
        bail!("an operand of {sizes:?} does not begin at a multiple of 16 bytes")
    }
    let code = match dtype {
        DType::F16 => ptx::CACHED_ATTENTION_F16,
        DType::BF16 => ptx::CACHED_ATTENTION_BF16,
        _ => ptx::CACHED_ATTENTION_F32,
    };
    let (name, module) = (dtype.as_str(), format!("cached_attention_{}", dtype.as_str()));
    let blocks = split.blocks(Capabilities::of(device, code)?.has_clusters());
    // Two blocks of a multiprocessor where there are more than an H100 has of these.
    let shape = split.name() + if kv_heads * batch * blocks as usize > 132 { "_twice" } else { "" };
    let function = function(device, &format!("opara_cached_attention_{shape}_{name}"), &module, code)?;
    let sizes = [numel, heads, kv_heads, head_dim, pairs, positions, capacity, window.unwrap_or(0), distances];
    let sizes = sizes.map(|n| n as u32);
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
    launch.arg(start);
    arg_or_null(&mut launch, rotary);
    arg_or_null(&mut launch, by_distance);
    launch.arg(cache).arg(y);
    let config = LaunchConfig {
        grid_dim: (kv_heads as u32, batch as u32, blocks),
        block_dim: (THREADS, 1, 1),
        shared_mem_bytes: 0,
    };
    // SAFETY: the arguments are those that the kernel declares. It reads a row of `qkv` and a position a sequence, a row of the
    // table and places of the cache, both below their ends whatever the position is, for each place the number of its distance,
    // which is less than the cache has places, nothing through null, and writes to the cache at one place a sequence and each of
    // `numel` of `y`: all were held against the slices above. Everything that it loads 16 bytes of begins at multiples of 16 bytes,
    // heads too, whose sizes `kernel` saw. Work on the stream is in order, so nobody reads the cache meanwhile.
    unsafe { launch.launch(config) }.w()?;
    Ok(())
}
