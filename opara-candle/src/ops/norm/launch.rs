//! Launches of `norm.cu`: layer norm and RMS norm of rows.

use candle::{CudaDevice, DType};
use cudarc::driver::{CudaView, DeviceRepr};

use crate::cuda::driver::kernels::{address, kernels, wide};
use crate::cuda::operator::rows::{Rows, MAX_THREADS};

kernels! {
    /// Layer norm of the rows of `x + bias + residual`.
    LayerNorm<T> = "opara_norm_layer_" for [f16 bf16 f32 f64] {
        rows: usize, columns: u32, eps: f32,
        x: vector in T [rows * columns],
        bias: vector opt T [columns],
        residual: vector opt T [rows * columns],
        scale: vector in T [columns],
        shift: vector in T [columns],
        y: out T [rows * columns],
    }

    /// RMS norm of the rows of `x`.
    RmsNorm<T> = "opara_norm_rms_" for [f16 bf16 f32 f64] {
        rows: usize, columns: u32, eps: f32,
        x: vector in T [rows * columns],
        scale: vector in T [columns],
        y: out T [rows * columns],
    }

    /// The rows of `x + residual`, and then their RMS norm.
    AddRmsNorm<T> = "opara_norm_add_rms_" for [f16 bf16 f32 f64] {
        rows: usize, columns: u32, eps: f32,
        x: vector in T [rows * columns],
        residual: tested vector in T [rows * columns],
        scale: vector in T [columns],
        y: out T [2 * rows * columns],
    }
}

/// The variant of a kernel. `short` applies if each thread takes at most one 16-byte vector of a row and all operands are aligned.
pub(super) fn variant<T: DeviceRepr>(
    of: Rows,
    device: &CudaDevice,
    dtype: DType,
    operands: &[Option<&CudaView<T>>],
) -> String {
    let wide = wide(dtype);
    let is_short = of.columns().is_multiple_of(wide) && of.columns() <= MAX_THREADS * wide;
    let are_aligned = operands.iter().flatten().all(|operand| address(operand, device).is_multiple_of(16));
    format!("{}{}", if is_short && are_aligned { "short_" } else { "" }, dtype.as_str())
}
