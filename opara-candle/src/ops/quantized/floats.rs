//! Launches of `quantized_floats.cuh`: products of a weight of 8-bit floats with one row of 16 bits, on Hopper.

use candle::{CudaDevice, DType, Result};
use cudarc::driver::{CudaSlice, CudaView, DeviceRepr};
use half::f16;

use super::blocks::Format;
use super::launch::{Codes, Operands};
use crate::cuda::driver::kernels::{kernels, ptx, Capabilities};
use crate::ops::gemv::launch::{Epilogue, Sizes};

kernels! {
    /// `activation(norm(x) * weightᵀ + bias) + residual` for one row of `x`.
    Product<T> = "opara_matmul_floats_gemv_" for [f16 bf16] needs [EightBitFloats] {
        of_codes: host, of_scales: host, columns: u32, inner: u32, splits: u32, activation: i32, eps: f32,
        x: wide in T [inner],
        norm: wide opt T [inner],
        codes: early wide in u8 [of_codes],
        scales: early wide in f16 [of_scales],
        bias: early opt T [columns],
        residual: opt T [columns],
        y: out T [columns],
    }

    /// `activation(norm(x) * gateᵀ) * (norm(x) * upᵀ)`, where a weight is `gate` and then `up`.
    GatedProduct<T> = "opara_matmul_floats_gated_gemv_" for [f16 bf16] needs [EightBitFloats] {
        of_codes: host, of_scales: host, columns: u32, inner: u32, splits: u32, activation: i32, eps: f32,
        x: wide in T [inner],
        norm: wide opt T [inner],
        codes: early wide in u8 [of_codes],
        scales: early wide in f16 [of_scales],
        bias: early opt T [2 * columns],
        y: out T [columns],
    }
}

/// A product of these sizes, if there is a kernel for it.
pub(super) fn sizes(
    format: Format,
    dtype: DType,
    [rows, columns, inner]: [usize; 3],
    epilogue: Epilogue,
    capabilities: &Capabilities,
) -> Option<Sizes> {
    let is_known = Product::<()>::is_for(dtype) && Product::<()>::runs_on(capabilities);
    if !is_known || !format.are_floats || rows != 1 {
        return None;
    }
    Sizes::of_floats(dtype, [columns, inner], format.group, epilogue, capabilities)
}

/// Code that says what the kernels were compiled for.
pub(super) const CODE: &str = ptx::QUANTIZED_FLOATS_BF16;

/// The product `of` the operands into `y`.
///
/// # Errors
/// Slices that are too short or begin elsewhere than at multiples of 16 bytes, or a launch that fails.
pub(super) fn product<T: DeviceRepr>(
    device: &CudaDevice,
    of: &Sizes,
    x: &CudaView<T>,
    operands: &Operands<T>,
    y: &mut CudaSlice<T>,
) -> Result<()> {
    let Sizes { dtype, columns, inner, epilogue, .. } = *of;
    let Operands { norm, eps, weight: Codes { codes, scales }, bias, residual } = *operands;
    let (of_codes, of_scales) = Codes::of(Format::FLOATS, epilogue.rows() * columns * inner);
    let ((splits, config), y) = (of.launch(), y.as_view_mut());
    let code = if dtype == DType::F16 { ptx::QUANTIZED_FLOATS_F16 } else { CODE };
    let variant = format!("1_{}", dtype.as_str());
    match epilogue {
        Epilogue::Added(activation) => {
            let activation = activation.code();
            Product {
                of_codes,
                of_scales,
                columns,
                inner,
                splits,
                activation,
                eps,
                x,
                norm,
                codes,
                scales,
                bias,
                residual,
                y,
            }
            .launch(device, &variant, code, config)
        }
        Epilogue::Gated(activation) => {
            let activation = activation.code();
            GatedProduct {
                of_codes,
                of_scales,
                columns,
                inner,
                splits,
                activation,
                eps,
                x,
                norm,
                codes,
                scales,
                bias,
                y,
            }
            .launch(device, &variant, code, config)
        }
    }
}
