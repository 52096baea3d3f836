//! Launches of `argmax.cu`.

#![allow(unsafe_code)]

use candle::cuda_backend::WrapErr;
use candle::{CudaDevice, DType, Result};
use cudarc::driver::{CudaSlice, CudaView, DeviceRepr, LaunchConfig, PushKernelArg};

use crate::cuda::driver::kernels::{expect, function, ptx, wide};
use crate::cuda::operator::rows::{Rows, MAX_THREADS};

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
    expect("the operand", x.len(), of.elements())?;
    expect("the result", y.len(), of.rows())?;
    if of.elements() == 0 {
        return Ok(());
    }
    let function = function(device, &format!("opara_argmax_{}", dtype.as_str()), ptx::ARGMAX)?;
    let (rows, columns) = (of.rows() as u32, of.columns() as u32);
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&function);
    launch.arg(&rows).arg(&columns).arg(x).arg(y);
    // SAFETY: the arguments match the kernel's parameters. It reads `rows * columns` elements of `x` and writes `rows` elements
    // of `y`. Both lengths were checked above, and `Rows::of` checked that rows and columns fit 31 bits.
    unsafe { launch.launch(block_of_row(of.rows(), of.columns(), wide(dtype))) }.w()?;
    Ok(())
}

/// One block per row, with enough whole warps for the row, up to the limit of a block.
fn block_of_row(rows: usize, columns: usize, wide: usize) -> LaunchConfig {
    let threads = columns.div_ceil(wide).next_multiple_of(32).min(MAX_THREADS);
    LaunchConfig { grid_dim: (rows as u32, 1, 1), block_dim: (threads as u32, 1, 1), shared_mem_bytes: 0 }
}
