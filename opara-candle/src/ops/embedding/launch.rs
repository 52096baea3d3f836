//! Launches of `embedding.cu`.

#![allow(unsafe_code)]

use candle::cuda_backend::WrapErr;
use candle::{bail, CudaDevice, DType, Result, WithDType};
use cudarc::driver::{CudaSlice, CudaView, DeviceRepr, PushKernelArg};

use crate::cuda::driver::kernels::{expect, function, ptx, wide_blocks};
use crate::cuda::operator::rows::Rows;

/// Copies the row of `table` at each id to a row of `y`. `table` has `rows` rows. The largest value of `I` gives a row
/// of zeros.
///
/// # Errors
/// Slices that are too short, 2^31 elements or more, or a failed launch. An id beyond the table fails on the GPU, as
/// with candle: after that the process cannot use the GPU any more.
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
        bail!("{of:?}: the kernel indexes with 31 bits")
    }
    expect("the result", y.len(), of.elements())?;
    if of.elements() == 0 {
        return Ok(());
    }
    expect("the ids", ids.len(), of.elements() / of.columns())?;
    expect("the table", table.len(), rows.saturating_mul(of.columns()))?;
    let name = format!("opara_embedding_{}_{}", I::DTYPE.as_str(), dtype.as_str());
    let function = function(device, &name, ptx::EMBEDDING)?;
    let (numel, columns) = (of.elements() as u32, of.columns() as u32);
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&function);
    launch.arg(&numel).arg(&columns).arg(&rows).arg(ids).arg(table).arg(y);
    // SAFETY: the arguments match the kernel's declaration. It reads one id per `columns` elements of `numel`, reads
    // only rows of the table below `rows` (it asserts that), and writes `numel` elements of `y`. The slice lengths were
    // checked above, and `numel` fits into 31 bits.
    unsafe { launch.launch(wide_blocks(of.elements(), dtype)) }.w()?;
    Ok(())
}
