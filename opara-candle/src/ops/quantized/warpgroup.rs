//! Launches of `quantized_warpgroup.cuh`: products with up to 256 rows of 16 bits on Hopper, whose bits do not depend on how many there are.

use candle::{CudaDevice, DType, Result};
use cudarc::driver::{CudaSlice, CudaView, DeviceRepr};
use half::f16;

use super::blocks::Format;
use super::launch::{name, Codes, Operands};
use crate::cuda::driver::kernels::{kernels, ptx, Capabilities};
use crate::ops::few_rows::FEW;
use crate::ops::gemv::launch::Epilogue;
use crate::ops::gemv::warpgroup::{Family, Sizes, LINE, ROWS};

kernels! {
    /// `activation(x * weightᵀ + bias) + residual` for `rows` rows of `x`.
    Product<T> = "opara_matmul_quantized_rows_" for [f16 bf16] needs [Warpgroups EightBitFloats] {
        of_codes: host, of_scales: host,
        rows: u32, columns: u32, inner: u32, activation: i32,
        x: wide in T [rows * inner],
        codes: early wide in u8 [of_codes],
        scales: early wide in f16 [of_scales],
        bias: opt T [columns],
        residual: opt T [rows * columns],
        y: out T [rows * columns],
    }

    /// `activation(x * gateᵀ) * (x * upᵀ)`, where a weight is `gate` and then `up`.
    GatedProduct<T> = "opara_matmul_quantized_gated_rows_" for [f16 bf16] needs [Warpgroups EightBitFloats] {
        of_codes: host, of_scales: host,
        rows: u32, columns: u32, inner: u32, activation: i32,
        x: wide in T [rows * inner],
        codes: early wide in u8 [of_codes],
        scales: early wide in f16 [of_scales],
        bias: opt T [2 * columns],
        y: out T [rows * columns],
    }
}

/// Rows of `x` of each kernel. Further ones are more blocks, which read the weight again: beyond [`MOST`] it is faster to expand it.
const WIDTHS: &[usize] = &[16, 64];
const MOST: usize = 256;

/// Elements of a row's line, and the lines that a block multiplies at a time (`LINES`).
const OF_LINE: usize = LINE / 2;
const LINES: usize = 2;

/// Long rows are worth more blocks than there are beside one another, since codes take time to become elements.
const SPLITS: &[(usize, usize)] = &[(3, 2), (7, 8)];

/// Where tiles of `x` begin: at multiples of these bytes (`BASE`).
const BASE: usize = 1 << 10;

/// A product of these sizes, if there is a kernel for it. Where there is one for nine rows, there is one for 256.
pub(super) fn sizes(
    format: Format,
    dtype: DType,
    sizes: [usize; 3],
    epilogue: Epilogue,
    capabilities: &Capabilities,
) -> Option<Sizes> {
    // A line has a part of a group at least.
    let of_row = OF_LINE * format.bits / 8 + OF_LINE.div_ceil(format.group) * format.numbers() * 2;
    let of_weight = (ROWS * LINES * of_row).next_multiple_of(BASE);
    // Few rows of codes have kernels that multiply these, which are faster.
    let rows = (if format.are_floats { 1 } else { FEW + 1 }, MOST);
    let family = Family { widths: WIDTHS, rows, lines: LINES, of_weight, splits: SPLITS };
    // What a block copies of a row's codes and scales is whole, and begins where copies do.
    if !sizes[2].is_multiple_of(OF_LINE.max(format.group)) {
        return None;
    }
    Sizes::of(family, dtype, sizes, epilogue, capabilities)
}

/// Code that says what the kernels were compiled for.
pub(super) const CODE: &str = ptx::QUANTIZED_WARPGROUP_4_32_AFFINE_BF16;

/// The module that has the kernels of a format.
fn module(format: Format, dtype: DType) -> &'static str {
    let [f16, bf16] = match (format.bits, format.group, format.has_minimum) {
        _ if format.are_floats => {
            [ptx::QUANTIZED_WARPGROUP_8_128_FLOATS_F16, ptx::QUANTIZED_WARPGROUP_8_128_FLOATS_BF16]
        }
        (4, ..) => [ptx::QUANTIZED_WARPGROUP_4_32_AFFINE_F16, ptx::QUANTIZED_WARPGROUP_4_32_AFFINE_BF16],
        (_, 32, true) => [ptx::QUANTIZED_WARPGROUP_8_32_AFFINE_F16, ptx::QUANTIZED_WARPGROUP_8_32_AFFINE_BF16],
        (_, 32, false) => [ptx::QUANTIZED_WARPGROUP_8_32_SYMMETRIC_F16, ptx::QUANTIZED_WARPGROUP_8_32_SYMMETRIC_BF16],
        (_, _, true) => [ptx::QUANTIZED_WARPGROUP_8_16_AFFINE_F16, ptx::QUANTIZED_WARPGROUP_8_16_AFFINE_BF16],
        (_, _, false) => [ptx::QUANTIZED_WARPGROUP_8_16_SYMMETRIC_F16, ptx::QUANTIZED_WARPGROUP_8_16_SYMMETRIC_BF16],
    };
    if dtype == DType::F16 {
        f16
    } else {
        bf16
    }
}

/// The product `of` the operands into `y`. A norm is a launch before it.
///
/// # Errors
/// Slices that are too short or begin elsewhere than at multiples of 16 bytes, or a launch that fails.
pub(super) fn product<T: DeviceRepr>(
    device: &CudaDevice,
    of: &Sizes,
    format: Format,
    x: &CudaView<T>,
    operands: &Operands<T>,
    y: &mut CudaSlice<T>,
) -> Result<()> {
    let Sizes { dtype, rows, columns, inner, epilogue, .. } = *of;
    let Operands { weight: Codes { codes, scales }, bias, residual, .. } = *operands;
    let (of_codes, of_scales) = Codes::of(format, epilogue.rows() * columns * inner);
    let ((variant, config), code, y) = (of.launch(), module(format, dtype), y.as_view_mut());
    let variant = format!("{}_{variant}", name(format));
    match epilogue {
        Epilogue::Added(activation) => {
            let activation = activation.code();
            Product { of_codes, of_scales, rows, columns, inner, activation, x, codes, scales, bias, residual, y }
                .launch(device, &variant, code, config)
        }
        Epilogue::Gated(activation) => {
            let activation = activation.code();
            GatedProduct { of_codes, of_scales, rows, columns, inner, activation, x, codes, scales, bias, y }
                .launch(device, &variant, code, config)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::driver::kernels::capabilities::tests::capabilities;
    use crate::ops::Activation;

    const FORMATS: [Format; 6] = [
        Format::FOUR_AFFINE,
        Format::EIGHT,
        Format::EIGHT_AFFINE,
        Format::SMALL_GROUPS,
        Format::SMALL_AFFINE,
        Format::FLOATS,
    ];

    #[test]
    fn all_up_to_256_rows_have_a_kernel_and_share_their_splits() {
        let hopper = capabilities("sm_90a", 90, 227 << 10);
        for (format, dtype) in FORMATS.iter().flat_map(|&format| [(format, DType::F16), (format, DType::BF16)]) {
            for (columns, inner, gate, splits) in
                [(6144, 4096, false, 4), (14_336, 4096, true, 2), (4096, 14_336, false, 8), (8, 128, false, 1)]
            {
                let activation = Activation::Silu;
                let epilogue = if gate { Epilogue::Gated(activation) } else { Epilogue::Added(activation) };
                let least = if format.are_floats { 1 } else { FEW + 1 };
                for rows in least..=256 {
                    let of = sizes(format, dtype, [rows, columns, inner], epilogue, &hopper).expect("it fits");
                    let (variant, config) = of.launch();
                    let of_groups = LINES * (OF_LINE / format.group).max(1) * format.numbers() * 2 * ROWS;
                    let bytes = (ROWS * LINES * OF_LINE * format.bits / 8 + of_groups).next_multiple_of(BASE);
                    assert_eq!(of.of_weight(), bytes, "`BYTES` of the header");
                    let width = if rows <= 16 { 16 } else { 64 };
                    assert_eq!(variant, format!("{width}_by{splits}_{}", dtype.as_str()), "{of:?}");
                    assert_eq!(config.grid_dim.1 as usize, rows.div_ceil(width), "{of:?}");
                    let name = format!("opara_matmul_quantized_rows_{}_{variant}", name(format));
                    assert!(module(format, dtype).is_empty() || module(format, dtype).contains(&name), "{name}");
                }
            }
            for (rows, inner) in [(if format.are_floats { 0 } else { FEW }, 128), (257, 128), (9, 96)] {
                let epilogue = Epilogue::Added(Activation::None);
                assert_eq!(sizes(format, dtype, [rows, 64, inner], epilogue, &hopper), None, "{rows} of {inner}");
            }
        }
    }
}
