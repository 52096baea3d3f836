//! Launches of `activation.cu`.

use candle::{bail, CudaDevice, DType, Result};
use cudarc::driver::{CudaSlice, CudaView, DeviceRepr};

use super::Activation;
use crate::cuda::driver::kernels::{kernels, ptx, wide_blocks};
use crate::cuda::operator::rows::Rows;

kernels! {
    /// `activation(x + bias)`.
    BiasAct<T> = "opara_elementwise_bias_act_" {
        numel: u32, columns: u32, activation: i32,
        x: vector in T [numel],
        bias: vector opt T [columns],
        y: out T [numel],
    }
}

/// Writes `activation(x + bias)` to `y`. The bias has one element per column.
///
/// # Errors
/// Slices that are too short, 2^31 elements or more, or a failed launch.
pub(super) fn bias_act<T: DeviceRepr>(
    device: &CudaDevice,
    dtype: DType,
    of: Rows,
    activation: Activation,
    x: &CudaView<T>,
    bias: Option<&CudaView<T>>,
    y: &mut CudaSlice<T>,
) -> Result<()> {
    if !of.are_countable() {
        bail!("{of:?}: the kernel indexes with 31 bits")
    }
    let (numel, columns) = (of.elements(), of.columns());
    if numel == 0 {
        return Ok(());
    }
    BiasAct { numel, columns, activation: activation.code(), x, bias, y: y.as_view_mut() }.launch(
        device,
        dtype.as_str(),
        ptx::ACTIVATION,
        wide_blocks(numel, dtype),
    )
}
