//! Launches of `softmax.cu`.

use candle::{CudaDevice, DType, Result};
use cudarc::driver::{CudaSlice, CudaView, DeviceRepr};

use super::bias::RowStarts;
use crate::cuda::driver::kernels::{expect, kernels, ptx, wide};
use crate::cuda::operator::rows::Rows;

kernels! {
    /// Softmax of rows plus a bias, whose rows begin at strides over three dimensions; the kernel takes the inner two `dims`.
    Softmax<T> = "opara_softmax_" {
        of_bias: host, rows: usize, columns: u32, dims: u32 [2], strides: u32 [3],
        x: vector in T [rows * columns],
        bias: vector opt T [of_bias],
        y: out T [rows * columns],
    }
}

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
    if of.elements() == 0 {
        return Ok(());
    }
    let RowStarts { dims, strides } = bias.map_or(RowStarts { dims: [1; 3], strides: [0; 3] }, |(_, starts)| starts);
    if bias.is_some() {
        expect("the rows of the bias", dims.iter().product(), of.elements() / of.columns())?;
    }
    let config = of.by_warps_or_blocks(dtype);
    let once = config.block_dim.0 as usize * wide(dtype);
    let length = if of.columns() <= once { "short" } else { "long" };
    Softmax {
        of_bias: bias.map_or(0, |(_, starts)| starts.needed(of.columns()).unwrap_or(usize::MAX)),
        rows: of.rows(),
        columns: of.columns(),
        dims: [dims[1], dims[2]],
        strides,
        x,
        bias: bias.map(|(bias, _)| bias),
        y: y.as_view_mut(),
    }
    .launch(device, &format!("{length}_{}", dtype.as_str()), ptx::SOFTMAX, config)
}
