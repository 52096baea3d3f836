//! Launches of `double_conv.cu`.

use candle::{CudaDevice, Result};
use cudarc::driver::LaunchConfig;

use super::sizes::Sizes;
use crate::cuda::driver::kernels::{kernels, ptx, Capabilities};

kernels! {
    /// A convolution. `inner` and `out` are channels of a group.
    DoubleConv<T> = "opara_convolution_double_" for [f64] needs [TensorCores] {
        batch: host, numel: usize, groups: u32, out: u32, inner: u32, from: u32 [2], to: u32 [2], kernel: u32 [2],
        stride: u32 [2], dilation: u32 [2], padding: u32 [2],
        x: in T [batch * groups * inner * from[0] * from[1]],
        weight: in T [kernel[0] * kernel[1] * groups * out * inner],
        y: out T [numel],
    }
}

/// `CHANNELS`, `PIXELS` and `THREADS` of `double_conv.cu`.
const CHANNELS: usize = 64;
const PIXELS: usize = 64;
const THREADS: u32 = 128;

/// Bytes of shared memory: `STAGES` times a `Stage`.
const SHARED: usize = 4 * (64 * (16 + 4) + 16 * (64 + 4)) * size_of::<f64>();

/// Blocks for each group: a tile of channels and pixels each.
fn blocks(of: &Sizes) -> usize {
    (of.batch * of.to.0 * of.to.1).div_ceil(PIXELS) * of.out.div_ceil(CHANNELS)
}

/// Is there a kernel for this convolution that runs on the device?
///
/// # Errors
/// A failed driver call.
pub(super) fn is_known(device: &CudaDevice, of: &Sizes) -> Result<bool> {
    const MAX_GROUPS: usize = 65_535;
    /// What the kernel's indices reach.
    const MOST: usize = i32::MAX as usize;
    let count = |sizes: &[usize]| sizes.iter().try_fold(1, |product: usize, &n| product.checked_mul(n));
    let is_countable = |sizes: &[usize]| count(sizes).is_some_and(|count| count <= MOST);
    let Sizes { batch, groups, out, inner, from, to, kernel, .. } = of;
    let sizes = [&[*batch, to.0, to.1][..], &[from.0, from.1], &[kernel.0, kernel.1, *inner], &[*out, *groups]];
    let are_countable = sizes.into_iter().all(is_countable) && *groups <= MAX_GROUPS && blocks(of) <= MOST;
    let capabilities = Capabilities::of(device, ptx::DOUBLE_CONV)?;
    Ok(are_countable && DoubleConv::<()>::runs_on(&capabilities) && capabilities.has_shared(SHARED))
}

/// The launch shape.
pub(super) fn config(of: &Sizes) -> LaunchConfig {
    let (grid_dim, block_dim) = ((blocks(of) as u32, of.groups as u32, 1), (THREADS, 1, 1));
    LaunchConfig { grid_dim, block_dim, shared_mem_bytes: SHARED as u32 }
}
