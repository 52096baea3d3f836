//! Launches of `argmax.cu`.

use candle::{CudaDevice, DType, Result};
use cudarc::driver::{CudaSlice, CudaView, DeviceRepr, LaunchConfig};

use crate::cuda::driver::kernels::{kernels, ptx, wide};
use crate::cuda::operator::rows::{Rows, MAX_THREADS};

kernels! {
    /// The index of the largest element of each row.
    Argmax<T> = "opara_reduction_argmax_" {
        rows: u32, columns: u32,
        x: vector in T [rows * columns],
        y: out u32 [rows],
    }
}

/// The index of the largest element of each row of `x`.
///
/// # Errors
/// Slices that are too short, or a launch that fails.
pub(super) fn argmax<T: DeviceRepr>(
    device: &CudaDevice,
    dtype: DType,
    of: Rows,
    x: &CudaView<T>,
    y: &mut CudaSlice<u32>,
) -> Result<()> {
    let (rows, columns) = (of.rows(), of.columns());
    if of.elements() == 0 {
        return Ok(());
    }
    let config = block_of_row(rows, columns, wide(dtype));
    Argmax { rows, columns, x, y: y.as_view_mut() }.launch(device, dtype.as_str(), ptx::ARGMAX, config)
}

/// One block per row, with enough whole warps for the row, up to the limit of a block.
fn block_of_row(rows: usize, columns: usize, wide: usize) -> LaunchConfig {
    let threads = columns.div_ceil(wide).next_multiple_of(32).min(MAX_THREADS);
    LaunchConfig { grid_dim: (rows as u32, 1, 1), block_dim: (threads as u32, 1, 1), shared_mem_bytes: 0 }
}
