//! Launches of `softmax.cu`.

#![allow(unsafe_code)]

use candle::cuda_backend::WrapErr;
use candle::{CudaDevice, DType, Result};
use cudarc::driver::{CudaSlice, CudaView, DeviceRepr, PushKernelArg};

use super::bias::RowStarts;
use crate::cuda::driver::kernels::{arg_or_null, expect, function, ptx, wide};
use crate::cuda::operator::rows::Rows;

/// Softmax of the rows of `x`, plus a bias if there is one, into `y`.
///
/// # Errors
/// Slices that are too short, or a failed launch.
pub(super) fn softmax<T: DeviceRepr>(
    device: &CudaDevice,
    dtype: DType,
    of: Rows,
    x: &CudaView<T>,
    bias: Option<(&CudaView<T>, RowStarts)>,
    y: &mut CudaSlice<T>,
) -> Result<()> {
    expect("the operand", x.len(), of.elements())?;
    expect("the result", y.len(), of.elements())?;
    if of.elements() == 0 {
        return Ok(());
    }
    let RowStarts { dims, strides } = bias.map_or(RowStarts { dims: [1; 3], strides: [0; 3] }, |(_, starts)| starts);
    if let Some((bias, starts)) = bias {
        expect("the bias", bias.len(), starts.needed(of.columns()).unwrap_or(usize::MAX))?;
        expect("the rows of the bias", dims.iter().product(), of.elements() / of.columns())?;
    }
    let config = of.by_warps_or_blocks(dtype);
    let once = config.block_dim.0 as usize * wide(dtype);
    let length = if of.columns() <= once { "short" } else { "long" };
    let name = format!("opara_softmax_{length}_{}", dtype.as_str());
    let function = function(device, &name, ptx::SOFTMAX)?;
    let rows = of.elements() / of.columns();
    let sizes = [of.columns(), dims[1], dims[2], strides[0], strides[1], strides[2]].map(|n| n as u32);
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&function);
    launch.arg(&rows);
    for size in &sizes {
        launch.arg(size);
    }
    launch.arg(x);
    arg_or_null(&mut launch, bias.map(|(bias, _)| bias));
    launch.arg(y);
    // SAFETY: the arguments match the kernel's declaration. It reads `rows * columns` elements of `x`, `columns`
    // elements from each row start of the bias unless that is null, and writes `rows * columns` elements of `y`. The
    // slice lengths were checked above; `Rows::of` checked that rows and columns fit into 31 bits.
    unsafe { launch.launch(config) }.w()?;
    Ok(())
}
