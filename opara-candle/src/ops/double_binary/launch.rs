//! Launches of `double_binary.cu`.

#![allow(unsafe_code)]

use candle::cuda_backend::WrapErr;
use candle::{bail, CudaDevice, Result};
use cudarc::driver::{CudaSlice, CudaView, DeviceRepr, LaunchConfig, PushKernelArg};

use super::rows::{Rows, THREADS};
use crate::cuda::driver::kernels::{expect, expect_f64, function, ptx};

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
    let numel = rows.elements();
    expect("the first operand", x.len(), rows.needed(0))?;
    expect("the second operand", y.len(), rows.needed(1))?;
    expect("the result", out.len(), numel)?;
    let Rows { dims: [_, middle, inner, columns], strides } = *rows;
    let sizes = [columns, middle, inner].map(|n| n as u32);
    let steps = strides.map(|of| of[3] as u32);
    let function = function(device, operation, ptx::DOUBLE_BINARY)?;
    let config =
        LaunchConfig { grid_dim: (blocks as u32, 1, 1), block_dim: (THREADS as u32, 1, 1), shared_mem_bytes: 0 };
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&function);
    launch.arg(&numel);
    for size in &sizes {
        launch.arg(size);
    }
    for (of, step) in strides.iter().zip(&steps) {
        launch.arg(&of[0]).arg(&of[1]).arg(&of[2]).arg(step);
    }
    launch.arg(x).arg(y).arg(out);
    // SAFETY: the arguments match the kernel's declaration. It reads each operand at the places of these rows, of which `expect` checked
    // that the slices reach as far, and writes `numel` elements of `out`, which has as many. `blocks` checked that the kernel's indices of
    // blocks and columns fit into 31 bits.
    unsafe { launch.launch(config) }.w()?;
    Ok(())
}
