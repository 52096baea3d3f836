//! Launches of `pool.cu`.

#![allow(unsafe_code)]

use candle::cuda_backend::WrapErr;
use candle::{bail, CudaDevice, DType, Result};
use cudarc::driver::{CudaSlice, CudaView, DeviceRepr, PushKernelArg};

use super::PoolKind;
use crate::cuda::driver::kernels::{address, blocks, expect, extent, function, ptx};
use crate::cuda::operator::plane::{Plane, H200_THREADS};
use crate::ops::PoolConfig;

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
    expect("the result", y.len(), plane.results())?;
    if plane.results() == 0 {
        return Ok(());
    }
    let (h, w) = plane.from();
    let column = if plane.is_channels_last() { plane.channels() } else { 1 };
    let channel = if plane.is_channels_last() { 1 } else { pitch[1] };
    let sizes = [(plane.batch(), pitch[0]), (plane.channels(), channel), (h, pitch[2]), (w, column)];
    expect("the operand", x.len(), extent(sizes))?;
    if pitch.iter().any(|&pitch| u32::try_from(pitch).is_err()) {
        bail!("strides of {pitch:?} elements do not fit into 32 bits")
    }
    if plane.is_channels_last() && (pitch[0] % plane.channels(), pitch[2] % plane.channels()) != (0, 0) {
        bail!("strides of {pitch:?} elements are no multiples of {} channels", plane.channels())
    }
    let (variant, threads) = variant(plane, windows, dtype.size_in_bytes(), &[address(x, device)]);
    let name = format!("opara_pool_{variant}_{}", dtype.as_str());
    let function = function(device, &name, "pool", ptx::POOL)?;
    let numel = plane.results();
    let sizes = [plane.channels(), h, w, plane.to().0, plane.to().1, windows.kernel, windows.stride].map(|n| n as i32);
    let integers = sizes.into_iter().chain(windows.edges).chain([i32::from(windows.count_padding)]).collect::<Vec<_>>();
    let kind = match windows.kind {
        PoolKind::Max => 0i32,
        PoolKind::Mean => 1,
    };
    let pitch = pitch.map(|pitch| pitch as u32);
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&function);
    launch.arg(&numel).arg(&kind);
    for n in &integers {
        launch.arg(n);
    }
    for n in &pitch {
        launch.arg(n);
    }
    launch.arg(x).arg(y);
    // SAFETY: the arguments match the kernel's declaration. It reads `x` within the extent of its strides, and writes
    // `results()` elements of `y`. Both lengths were checked above. `Plane::new` checked that indices fit into 31 bits,
    // and `variant` takes vectors only where sizes and addresses allow them.
    unsafe { launch.launch(blocks(threads)) }.w()?;
    Ok(())
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
