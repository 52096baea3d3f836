//! Launches of `embedding.cu`.

#![allow(unsafe_code)]

use candle::cuda_backend::WrapErr;
use candle::{bail, CudaDevice, DType, Result, WithDType};
use cudarc::driver::{CudaSlice, CudaView, DeviceRepr, PushKernelArg};

use crate::cuda::driver::kernels::{expect, function, ptx, wide_blocks};
use crate::cuda::operator::rows::Rows;

/// The row of `table`, which has `rows`, that each of `ids` names into the rows of `y`; of the largest number of `I`, zeros.
///
/// # Errors
/// Slices that are too short, more elements than 32 bits count, or a launch that fails. An id beyond the table fails
/// when the launch runs, as candle's does: the GPU then refuses all further work of the process.
pub(super) fn embedding<T: DeviceRepr, I: DeviceRepr + WithDType>(
    device: &CudaDevice,
    dtype: DType,
    of: Rows,
    ids: &CudaView<I>,
    rows: usize,
    table: &CudaView<T>,
    y: &mut CudaSlice<T>,
) -> Result<()> {
    if !of.are_countable() {
        bail!("{of:?} have more elements than the kernel counts")
    }
    expect("the result", y.len(), of.elements())?;
    if of.elements() == 0 {
        return Ok(());
    }
    expect("the ids", ids.len(), of.elements() / of.columns())?;
    expect("the table", table.len(), rows.saturating_mul(of.columns()))?;
    let name = format!("opara_embedding_{}_{}", I::DTYPE.as_str(), dtype.as_str());
    let function = function(device, &name, "embedding", ptx::EMBEDDING)?;
    let (numel, columns) = (of.elements() as u32, of.columns() as u32);
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&function);
    launch.arg(&numel).arg(&columns).arg(&rows).arg(ids).arg(table).arg(y);
    // SAFETY: the arguments are those that the kernel declares. It reads an id for each `columns` of `numel` elements, of
    // the table only what lies within its `rows`, which it asserts, and writes each of `numel` of `y`: all were held against
    // the slices above, and 31 bits count them.
    unsafe { launch.launch(wide_blocks(of.elements(), dtype)) }.w()?;
    Ok(())
}
