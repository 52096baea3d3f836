//! Launches of `embedding.cu`.

use candle::{bail, CudaDevice, DType, Result, WithDType};
use cudarc::driver::{CudaSlice, CudaView, DeviceRepr};

use crate::cuda::driver::kernels::{kernels, ptx, wide_blocks};
use crate::cuda::operator::rows::Rows;

kernels! {
    /// The rows of a table at each id.
    Embedding<T, I> = "opara_gather_embedding_" {
        numel: u32, columns: u32, rows: usize,
        ids: in I [numel / columns],
        table: tested vector in T [rows.saturating_mul(columns)],
        y: out T [numel],
    }
}

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
    let (numel, columns) = (of.elements(), of.columns());
    if numel == 0 {
        return Ok(());
    }
    let variant = format!("{}_{}", I::DTYPE.as_str(), dtype.as_str());
    Embedding { numel, columns, rows, ids, table, y: y.as_view_mut() }.launch(
        device,
        &variant,
        ptx::EMBEDDING,
        wide_blocks(numel, dtype),
    )
}
