//! Launches of `pool.cu`.

#![allow(unsafe_code)]

use candle::cuda_backend::WrapErr;
use candle::{bail, CudaDevice, DType, Result};
use cudarc::driver::{CudaSlice, CudaView, DeviceRepr, PushKernelArg};

use super::PoolKind;
use crate::cuda::driver::kernels::{address, blocks, expect, extent, function, ptx};
use crate::cuda::operator::plane::{Plane, H200_THREADS};
use crate::ops::PoolConfig;

/// What a pool makes of which windows.
#[derive(Debug, Clone, Copy)]
pub(super) struct Windows {
    pub kind: PoolKind,
    /// Elements of a window, both ways.
    pub kernel: usize,
    /// Elements from one window to the next, both ways.
    pub stride: usize,
    /// Padding above, to the left, below and to the right; less than none where the first window begins inside.
    pub edges: [i32; 4],
    /// Whether a mean counts the padding.
    pub count_padding: bool,
}

impl Windows {
    /// Those of a pool.
    pub fn new(kind: PoolKind, config: &PoolConfig) -> Self {
        let PoolConfig { kernel, stride, padding: p, count_padding, .. } = *config;
        let edges = [p.top, p.left, p.bottom, p.right].map(|n| n as i32);
        Self { kind, kernel, stride, edges, count_padding }
    }
}

/// A pool of `x`, of which an image, a plane and a row begin `pitch` elements after the one before, into `y`, laid out as
/// `plane` says. The channels of a pixel and the pixels of a row of `x` lie as there.
///
/// # Errors
/// Slices that are too short, or a launch that fails.
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
        bail!("rows {pitch:?} elements apart are further than the kernels count")
    }
    if plane.is_channels_last() && (pitch[0] % plane.channels(), pitch[2] % plane.channels()) != (0, 0) {
        bail!("rows {pitch:?} elements apart, which is no whole number of {} channels", plane.channels())
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
    // SAFETY: the arguments are those that the kernel declares. It reads `x` from its first to its last element as the
    // pitches place them and writes each of `results()` of `y`: both were held against the slices above. `Plane::new` saw that
    // 31 bits count the elements, and `variant` takes no more neighbours at once than sizes and addresses allow.
    unsafe { launch.launch(blocks(threads)) }.w()?;
    Ok(())
}

/// The kernel's variant for a pool, and how many threads it takes. Each takes as many neighbouring channels, of so many
/// bytes each, as 16 bytes hold and channels and addresses allow: that was the fastest on an H200 for every size. Of windows
/// of 3 by 3 next to each other they take three where that leaves an eighth of the threads that it runs at once.
fn variant(plane: &Plane, windows: &Windows, bytes: usize, addresses: &[u64]) -> (String, usize) {
    const PIXELS: usize = 3;
    let channels = [8, 4, 2].into_iter().find(|&n| plane.is_aligned(n, bytes, addresses));
    let (variant, threads) = plane.taking(channels);
    let has_strips = matches!((channels, bytes), (Some(8), 2) | (Some(4), 4));
    let strips = threads / plane.to().1 * plane.to().1.div_ceil(PIXELS);
    match has_strips && (windows.kernel, windows.stride) == (3, 1) && strips >= H200_THREADS / 8 {
        true => (format!("{variant}x{PIXELS}_3s1"), strips),
        false => (variant, threads),
    }
}
