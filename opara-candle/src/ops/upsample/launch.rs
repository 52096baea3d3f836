//! Launches of `upsample.cu`.

use candle::{bail, CudaDevice, DType, Result};
use cudarc::driver::{CudaSlice, CudaView, DeviceRepr};

use crate::cuda::driver::kernels::{address, blocks, kernels, ptx};
use crate::cuda::operator::plane::Plane;

kernels! {
    /// The pixels of a larger plane. `down` and `right` are pixels of `x` from one of `y` to the next.
    Upsample<T> = "opara_upsample_" {
        batch: host, numel: usize, channels: u32, h: u32, w: u32, rows: u32, columns: u32, down: f64, right: f64,
        x: vector in T [batch * channels * h * w],
        y: out T [numel],
    }
}

/// Copies the pixels of `x` to the larger plane of `y`. Channels are innermost in both.
///
/// # Errors
/// Another layout, slices that are too short, a plane without elements, or a failed launch.
pub(super) fn upsample<T: DeviceRepr>(
    device: &CudaDevice,
    dtype: DType,
    plane: &Plane,
    x: &CudaView<T>,
    y: &mut CudaSlice<T>,
) -> Result<()> {
    let ((h, w), (rows, columns), numel) = (plane.from(), plane.to(), plane.results());
    if !plane.is_channels_last() || numel == 0 || plane.elements() == 0 {
        bail!("{plane:?} has no elements, or channels that are not innermost")
    }
    let fits = |&n: &usize| plane.is_aligned(n, dtype.size_in_bytes(), &[address(x, device)]);
    let (variant, threads) = plane.variant([8, 4, 2].into_iter().find(fits));
    let (batch, channels, y) = (plane.batch(), plane.channels(), y.as_view_mut());
    let [down, right] = [(h, rows), (w, columns)].map(|(from, to)| from as f64 / to as f64);
    Upsample { batch, numel, channels, h, w, rows, columns, down, right, x, y }.launch(
        device,
        &format!("{variant}_{}", dtype.as_str()),
        ptx::UPSAMPLE,
        blocks(threads),
    )
}
