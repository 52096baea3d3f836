//! Launches of `double_binary.cu`.

use candle::{bail, CudaDevice, Result};
use cudarc::driver::{CudaSlice, CudaView, DeviceRepr, LaunchConfig};

use super::rows::{Rows, THREADS};
use crate::cuda::driver::kernels::{expect_f64, kernels, ptx, strided};

kernels! {
    /// An operation on two operands, each with strides over three dimensions and a step from one column to the next.
    Binary<T> = "opara_elementwise_double_" {
        outer: host, numel: usize, columns: u32, middle: u32, inner: u32, of_x: usize [3], x_step: u32, of_y: usize [3],
        y_step: u32,
        x: in T [strided([outer, middle, inner, columns], [of_x[0], of_x[1], of_x[2], x_step], 1)],
        y: in T [strided([outer, middle, inner, columns], [of_y[0], of_y[1], of_y[2], y_step], 1)],
        out: out T [numel],
    }
}

/// One of the file's kernels on two operands, into `out`.
///
/// # Errors
/// Elements that are not of f64, rows that cannot be counted, slices that are too short, or a failed launch.
pub(super) fn double_binary<T: DeviceRepr>(
    device: &CudaDevice,
    operation: &str,
    rows: &Rows,
    [x, y]: [&CudaView<T>; 2],
    out: &mut CudaSlice<T>,
) -> Result<()> {
    expect_f64::<T>(operation)?;
    let Some(blocks) = rows.blocks() else { bail!("no kernel for {rows:?}") };
    let Rows { dims: [outer, middle, inner, columns], strides } = *rows;
    let [[of_x @ .., x_step], [of_y @ .., y_step]] = strides;
    let config =
        LaunchConfig { grid_dim: (blocks as u32, 1, 1), block_dim: (THREADS as u32, 1, 1), shared_mem_bytes: 0 };
    let (numel, out) = (rows.elements(), out.as_view_mut());
    Binary { outer, numel, columns, middle, inner, of_x, x_step, of_y, y_step, x, y, out }.launch(
        device,
        &format!("{operation}_f64"),
        ptx::DOUBLE_BINARY,
        config,
    )
}
