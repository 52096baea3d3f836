//! Launches of `pool.cu`, `pool_gradient.cu` and `plane_sums.cu`.

use candle::{bail, CudaDevice, DType, Result};
use cudarc::driver::{CudaSlice, CudaView, DeviceRepr, LaunchConfig};

use super::kind::PoolKind;
use crate::cuda::driver::kernels::{address, blocks, extent, kernels, ptx};
use crate::cuda::operator::plane::{Plane, H200_THREADS};
use crate::ops::PoolConfig;

kernels! {
    /// A pool. `pitch` are elements from one image, plane and row to the next; `edges` is the padding.
    Pool<T> = "opara_pooling_windows_" for [f16 bf16 f32 f64] {
        reached: host, numel: usize, kind: i32, channels: u32, from: u32 [2], to: u32 [2], kernel: u32, stride: u32,
        edges: i32 [4], count_padding: i32, pitch: u32 [3],
        x: vector in T [reached],
        y: out T [numel],
    }

    /// The gradient of a pool's operand `x` by its result `y`.
    PoolGradient<T> = "opara_pooling_gradient_" for [f16 bf16 f32] {
        numel: usize, results: host, kind: i32, channels: u32, from: u32 [2], to: u32 [2], kernel: u32 [2], stride: u32 [2],
        is_last: i32,
        x: in T [numel],
        y: in T [results],
        gradient: in T [results],
        dx: out T [numel],
    }

    /// Sums of planes, times a factor.
    PlaneSums<T> = "opara_pooling_planes_" for [f16 bf16 f32 f64] {
        numel: usize, pixels: u32, channels: u32, factor: f64,
        x: vector in T [numel * pixels],
        y: out T [numel],
    }
}

/// Threads of `plane_sums.cu` that take neighbouring channels: 32 bytes where each takes 8.
const LANES: usize = 4;

/// The kind of a pool, and its windows.
#[derive(Debug, Clone, Copy)]
pub(super) struct Windows {
    pub kind: PoolKind,
    /// Rows and columns of a window.
    pub kernel: usize,
    /// Rows and columns from one window to the next.
    pub stride: usize,
    /// Padding above, to the left, below and to the right. Negative if the first window begins inside the image.
    pub edges: [i32; 4],
    /// Does a mean divide by the padding too?
    pub count_padding: bool,
}

impl Windows {
    /// The windows of a pool operator.
    pub fn new(kind: PoolKind, config: &PoolConfig) -> Self {
        let PoolConfig { kernel, stride, padding: p, count_padding, .. } = *config;
        let edges = [p.top, p.left, p.bottom, p.right].map(|n| n as i32);
        Self { kind, kernel, stride, edges, count_padding }
    }
}

/// Pools `x`, with strides `pitch` of image, plane and row in elements, into `y`, in the layout of `plane`. The
/// channels of a pixel, or the pixels of a row, of `x` are contiguous as in that layout.
///
/// # Errors
/// Slices that are too short, or a failed launch.
pub(super) fn pool<T: DeviceRepr>(
    device: &CudaDevice,
    dtype: DType,
    plane: &Plane,
    windows: &Windows,
    pitch: [usize; 3],
    x: &CudaView<T>,
    y: &mut CudaSlice<T>,
) -> Result<()> {
    if plane.results() == 0 {
        return Ok(());
    }
    let (h, w) = plane.from();
    let column = if plane.is_channels_last() { plane.channels() } else { 1 };
    let channel = if plane.is_channels_last() { 1 } else { pitch[1] };
    let sizes = [(plane.batch(), pitch[0]), (plane.channels(), channel), (h, pitch[2]), (w, column)];
    if plane.is_channels_last() && (pitch[0] % plane.channels(), pitch[2] % plane.channels()) != (0, 0) {
        bail!("strides of {pitch:?} elements are no multiples of {} channels", plane.channels())
    }
    let (variant, threads) = variant(plane, windows, dtype.size_in_bytes(), &[address(x, device)]);
    let kind = windows.kind.code();
    let Windows { kernel, stride, edges, count_padding, .. } = *windows;
    let (numel, channels, from, to) = (plane.results(), plane.channels(), [h, w], plane.to().into());
    let (reached, count_padding, y) = (extent(sizes), count_padding.into(), y.as_view_mut());
    Pool { reached, numel, kind, channels, from, to, kernel, stride, edges, count_padding, pitch, x, y }.launch(
        device,
        &format!("{variant}_{}", dtype.as_str()),
        ptx::POOL,
        blocks(threads),
    )
}

/// The kernel variant and its number of threads. A thread takes as many neighbouring channels, of `bytes` bytes each,
/// as 16 bytes hold and as channel count and addresses allow: that was the fastest for every size on an H200. For 3 x 3
/// windows with stride 1 it also takes three neighbouring pixels, if at least an eighth of the threads that an H200
/// runs at once remain.
fn variant(plane: &Plane, windows: &Windows, bytes: usize, addresses: &[u64]) -> (String, usize) {
    const PIXELS: usize = 3;
    let channels = [8, 4, 2].into_iter().find(|&n| plane.is_aligned(n, bytes, addresses));
    let (variant, threads) = plane.variant(channels);
    let has_strips = matches!((channels, bytes), (Some(8), 2) | (Some(4), 4));
    let strips = threads / plane.to().1 * plane.to().1.div_ceil(PIXELS);
    match has_strips && (windows.kernel, windows.stride) == (3, 1) && strips >= H200_THREADS / 8 {
        true => (format!("{variant}x{PIXELS}_3s1"), strips),
        false => (variant, threads),
    }
}

/// Images whose planes are summed.
pub(super) struct Sums {
    pub images: usize,
    pub channels: usize,
    /// Elements of a plane.
    pub pixels: usize,
    pub is_channels_last: bool,
}

/// Sums of the planes of contiguous images, times a factor. `y` has one element a plane.
///
/// # Errors
/// Slices that are too short, 2^31 elements or more, or a failed launch.
pub(super) fn plane_sums<T: DeviceRepr>(
    device: &CudaDevice,
    dtype: DType,
    of: &Sums,
    factor: f64,
    x: &CudaView<T>,
    y: &mut CudaSlice<T>,
) -> Result<()> {
    let Sums { images, channels, pixels, is_channels_last } = *of;
    let (planes, bytes) = (images * channels, dtype.size_in_bytes());
    if planes * pixels > i32::MAX as usize {
        bail!("{planes} planes of {pixels} elements are too large: the kernel indexes with 31 bits")
    }
    if planes * pixels == 0 {
        return Ok(());
    }
    // Channels of a thread and threads beside each other; a plane by itself is an image of one channel.
    let wide = 8 / bytes;
    let is_wide = channels.is_multiple_of(wide) && address(x, device).is_multiple_of(8);
    let (variant, images, channels, of_thread, lanes) = match (is_channels_last, is_wide) {
        (false, _) => ("rows", planes, 1, 1, 1),
        (true, true) if wide > 1 => ("wide", images, channels, wide, LANES),
        (true, _) => ("channels", images, channels, 1, LANES),
    };
    // A thread sums some pixels, so that it can have their loads under way together.
    let threads = (lanes * (pixels / 8).max(1).next_power_of_two()).clamp(32, 1024) as u32;
    let blocks = (images * channels.div_ceil(of_thread * lanes)) as u32;
    let config = LaunchConfig { grid_dim: (blocks, 1, 1), block_dim: (threads, 1, 1), shared_mem_bytes: 0 };
    PlaneSums { numel: planes, pixels, channels, factor, x, y: y.as_view_mut() }.launch(
        device,
        &format!("{variant}_{}", dtype.as_str()),
        ptx::PLANE_SUMS,
        config,
    )
}
