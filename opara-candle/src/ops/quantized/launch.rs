//! Launches of `quantized.cuh`, and of `quantized_tensor.cuh` where there are tensor cores.

use candle::{bail, CudaDevice, DType, Result};
use cudarc::driver::{CudaSlice, CudaView, DeviceRepr, LaunchConfig};
use half::f16;

use super::blocks::Format;
use crate::cuda::driver::kernels::{address, blocks, kernels, ptx, Capabilities};
use crate::ops::few_rows::FEW;
use crate::ops::Activation;

kernels! {
    /// `norm(x) * weightᵀ + bias + residual` for `of_x` elements of `x`. A weight has `bits` a code, and `numbers` scales a group.
    QuantizedGemv<T> = "opara_matmul_quantized_gemv_" for [f16 bf16 f32] needs [TensorCores] {
        of_x: host, of_codes: host, of_scales: host, numel: u32, columns: u32, inner: u32, splits: u32, eps: f32,
        x: wide in T [of_x],
        norm: wide opt T [inner],
        codes: early wide in u8 [of_codes],
        scales: early wide in f16 [of_scales],
        bias: opt T [columns],
        residual: opt T [numel],
        y: out T [numel],
    }

    /// `activation(norm(x) * gateᵀ) * (norm(x) * upᵀ)`.
    QuantizedGatedGemv<T> = "opara_matmul_quantized_gated_gemv_" for [f16 bf16 f32] needs [TensorCores] {
        of_x: host, of_codes: host, of_scales: host, numel: u32, columns: u32, inner: u32, splits: u32, activation: i32,
        eps: f32,
        x: wide in T [of_x],
        norm: wide opt T [inner],
        codes: early wide in u8 [of_codes],
        scales: early wide in f16 [of_scales],
        bias: opt T [2 * columns],
        y: out T [numel],
    }

    /// Elements of a weight's rows at `ids`, or of all.
    Dequantize<T> = "opara_dequantize_" for [f16 bf16 f32] {
        of_codes: host, of_scales: host, numel: u32, columns: u32, rows: u32,
        ids: opt u32 [numel / columns],
        codes: wide in u8 [of_codes],
        scales: vector in f16 [of_scales],
        y: out T [numel],
    }
}

/// What a kernel divides a weight into.
struct Division {
    /// `WARPS` of the header.
    warps: usize,
    /// Rows of the weight that a warp takes at a time.
    rows: usize,
    /// Bytes of codes of a row that a warp takes at a time.
    chunk: usize,
    /// Blocks of a multiprocessor, which take turns.
    blocks: usize,
}

/// Of `quantized.cuh`: 16 bytes of a row for each lane.
const INTEGERS: Division = Division { warps: 8, rows: 4, chunk: 32 * 16, blocks: 2 };

/// Of `quantized_tensor.cuh`: one block of a multiprocessor, so that `x` is staged once there.
const TENSOR: Division = Division { warps: 16, rows: 16, chunk: 128, blocks: 1 };

/// Multiprocessors that a weight is split for: an H100's on every device, since splits decide bits.
const PROCESSORS: usize = 132;

/// Chunks of its rows that a warp of `quantized_tensor.cuh` asks for ahead at most.
const MOST_STEPS: usize = 8;

/// `PIECE` and `APART` of `quantized_tensor.cuh`.
const PIECE: usize = 256;
const APART: usize = 16;

/// Sizes of a product with few rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Gemv {
    dtype: DType,
    format: Format,
    /// Rows of `x`.
    rows: usize,
    /// Results of each.
    columns: usize,
    /// Elements of a row.
    inner: usize,
    /// Two rows of the weight make a result: a gate, and what it lets through.
    activation: Option<Activation>,
    /// Chunks of its rows that a warp asks for ahead, on tensor cores.
    ahead: Option<usize>,
    /// Multiprocessors of the device.
    processors: usize,
}

impl Gemv {
    /// Of these sizes, if there is a kernel for them; `activation` for one that is gated.
    pub fn new(
        dtype: DType,
        format: Format,
        [rows, columns, inner]: [usize; 3],
        activation: Option<Activation>,
        capabilities: &Capabilities,
    ) -> Option<Self> {
        let is_some = code(dtype).is_some() && rows > 0 && columns > 0 && inner > 0;
        let are_countable = columns.max(inner) <= 1 << 28;
        if !is_some || !are_countable || rows > FEW || !inner.is_multiple_of(32) || format.are_floats {
            return None;
        }
        // What eight rows have no room for, fewer do not do either: the bits of a row do not depend on how many there are from two on.
        if (2..FEW).contains(&rows) {
            Self::new(dtype, format, [FEW, columns, inner], activation, capabilities)?;
        }
        let processors = capabilities.processors();
        let mut of = Self { dtype, format, rows, columns, inner, activation, ahead: None, processors };
        // Groups whose numbers are copied at once: of 16 bytes, or all of a chunk. One row alone is faster without tensor cores.
        let copied = (8 / format.numbers()).min(TENSOR.chunk * 8 / format.bits / format.group);
        let is_whole = inner.is_multiple_of(copied * format.group);
        if rows > 1 && capabilities.has_tensor_cores() && is_whole && of.room_ahead(FEW, capabilities) > 0 {
            of.ahead = Some(0); // The sizes below are those of its kernel from here on.
            of.ahead = Some(of.steps(of.splits()).min(of.room_ahead(rows, capabilities)));
        }
        capabilities.has_shared(of.shared() + of.fixed_shared()).then_some(of)
    }

    fn division(&self) -> Division {
        if self.ahead.is_some() {
            TENSOR
        } else {
            INTEGERS
        }
    }

    /// The variant of the kernel.
    fn variant(&self) -> String {
        let rows = if self.ahead.is_some() { "tensor".into() } else { self.rows.next_power_of_two().to_string() };
        format!("{}_{rows}_{}", name(self.format), self.dtype.as_str())
    }

    /// The module that has the kernel.
    fn module(&self) -> Option<&'static str> {
        match (self.ahead, self.dtype) {
            (None, dtype) => code(dtype),
            (Some(_), DType::F16) => Some(ptx::QUANTIZED_TENSOR_F16),
            (Some(_), DType::BF16) => Some(ptx::QUANTIZED_TENSOR_BF16),
            (Some(_), _) => Some(ptx::QUANTIZED_TENSOR_F32),
        }
    }

    /// Elements of a row that a warp takes at a time.
    fn chunk(&self) -> usize {
        self.division().chunk * 8 / self.format.bits
    }

    fn chunks(&self) -> usize {
        self.inner.div_ceil(self.chunk())
    }

    /// Sets of rows of the weight that a warp takes at a time.
    fn groups(&self) -> usize {
        let rows = self.division().rows;
        self.columns.div_ceil(if self.activation.is_some() { rows / 2 } else { rows })
    }

    /// Steps of a warp from the first chunk to the last one, where so many warps share rows of the weight.
    fn steps(&self, splits: usize) -> usize {
        let Division { warps, blocks, .. } = self.division();
        self.groups().div_ceil(PROCESSORS * blocks * (warps / splits)) * self.chunks().div_ceil(splits)
    }

    /// Warps that share rows of the weight: as many as have the fewest steps. It depends on the weight alone, so that the bits of a row
    /// do not depend on how many there are.
    fn splits(&self) -> usize {
        let warps = self.division().warps;
        [1, 2, 4, 8, 16]
            .into_iter()
            .filter(|&splits| splits <= warps)
            .min_by_key(|&splits| self.steps(splits))
            .unwrap_or(1)
    }

    fn blocks(&self) -> u32 {
        let Division { warps, blocks, .. } = self.division();
        self.groups().div_ceil(warps / self.splits()).min(self.processors * blocks) as u32
    }

    /// Bytes of shared memory that the launch asks for: `x`, and what the warps ask for ahead.
    fn shared(&self) -> usize {
        match self.ahead {
            Some(ahead) => self.shared_on_tensor_cores(self.rows) + ahead * self.shared_of_chunks(),
            // Of each 16 elements of `x` their codes, and two floats.
            None => self.rows.next_power_of_two() * self.chunks() * self.chunk() / 16 * (16 + 8),
        }
    }

    /// For so many rows of `x` in `quantized_tensor.cuh`: codes, two floats for each group of a pair of rows, and sums of squares.
    fn shared_on_tensor_cores(&self, rows: usize) -> usize {
        let padded = self.inner.next_multiple_of(PIECE);
        let scales = padded / self.format.group * rows.div_ceil(2) * 16;
        rows * (padded + APART) + scales + (rows * padded / PIECE).next_multiple_of(4) * 4
    }

    /// Of codes and scales of a chunk of each row of each warp.
    fn shared_of_chunks(&self) -> usize {
        TENSOR.warps * TENSOR.rows * self.format.bytes(TENSOR.chunk * 8 / self.format.bits)
    }

    /// Chunks that there is room for beside so many rows of `x`.
    fn room_ahead(&self, rows: usize, capabilities: &Capabilities) -> usize {
        let others = TENSOR_STATIC + self.shared_on_tensor_cores(rows);
        (capabilities.shared_beside(0).saturating_sub(others) / self.shared_of_chunks()).min(MOST_STEPS)
    }

    /// Bytes of shared memory that the kernel has besides.
    fn fixed_shared(&self) -> usize {
        if self.ahead.is_some() {
            TENSOR_STATIC
        } else {
            STATIC
        }
    }
}

/// A format's name in the names of kernels.
pub(super) fn name(format: Format) -> String {
    let kind = match (format.are_floats, format.has_minimum) {
        (true, _) => "floats",
        (false, true) => "affine",
        (false, false) => "symmetric",
    };
    format!("{}_{}_{kind}", format.bits, format.group)
}

/// The module for a type, if there is one.
pub(super) fn code(dtype: DType) -> Option<&'static str> {
    match dtype {
        DType::F16 => Some(ptx::QUANTIZED_F16),
        DType::BF16 => Some(ptx::QUANTIZED_BF16),
        DType::F32 => Some(ptx::QUANTIZED_F32),
        _ => None,
    }
}

/// Bytes of shared memory that kernels of `quantized.cuh` have besides, at most: sums of warps, and of squares.
const STATIC: usize = 4 * INTEGERS.warps * (2 * INTEGERS.rows + 1) * 8;

/// Of `quantized_tensor.cuh`: sums of warps, and the norm's factors.
const TENSOR_STATIC: usize = 4 * (2 * TENSOR.warps * TENSOR.rows + 1) * 8;

/// Codes and scales of a weight.
#[derive(Clone, Copy)]
pub(super) struct Codes<'a> {
    pub codes: &'a CudaView<'a, u8>,
    pub scales: &'a CudaView<'a, f16>,
}

impl Codes<'_> {
    /// Codes and scales of so many elements.
    pub fn of(format: Format, elements: usize) -> (usize, usize) {
        (elements * format.bits / 8, elements / format.group * format.numbers())
    }
}

/// The operands of a launch besides `x`.
pub(super) struct Operands<'a, T> {
    pub norm: Option<&'a CudaView<'a, T>>,
    pub eps: f32,
    pub weight: Codes<'a>,
    pub bias: Option<&'a CudaView<'a, T>>,
    pub residual: Option<&'a CudaView<'a, T>>,
}

/// The product `of` the operands into `y`.
///
/// # Errors
/// Slices that are too short or begin at odd addresses, or a launch that fails.
pub(super) fn gemv<T: DeviceRepr>(
    device: &CudaDevice,
    of: &Gemv,
    x: &CudaView<T>,
    operands: &Operands<T>,
    y: &mut CudaSlice<T>,
) -> Result<()> {
    let Gemv { rows, columns, inner, format, activation, .. } = *of;
    let Operands { norm, eps, weight, bias, residual } = *operands;
    let Codes { codes, scales } = weight;
    let weights = if activation.is_some() { 2 * columns } else { columns };
    let (of_codes, of_scales) = Codes::of(format, weights * inner);
    let Some(code) = of.module() else { bail!("no kernels for {of:?}") };
    let config = LaunchConfig {
        grid_dim: (of.blocks(), 1, 1),
        block_dim: (32 * of.division().warps as u32, 1, 1),
        shared_mem_bytes: of.shared() as u32,
    };
    let (of_x, numel, splits, y) = (rows * inner, rows * columns, of.splits(), y.as_view_mut());
    let variant = of.variant();
    if let Some(activation) = activation.map(Activation::code) {
        return QuantizedGatedGemv {
            of_x,
            of_codes,
            of_scales,
            numel,
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
        .launch(device, &variant, code, config);
    }
    QuantizedGemv {
        of_x,
        of_codes,
        of_scales,
        numel,
        columns,
        inner,
        splits,
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

/// Elements of the weight's rows at `ids`, or of all `rows`, into `y`, whose rows have `columns` elements.
///
/// # Errors
/// Slices that are too short or begin at odd addresses, rows of a length that 32 does not divide, 2^32 elements or more, or a launch
/// that fails. An id out of range is an assertion failure on the GPU.
pub(super) fn dequantize<T: DeviceRepr>(
    device: &CudaDevice,
    dtype: DType,
    format: Format,
    [rows, columns]: [usize; 2],
    weight: Codes,
    ids: Option<&CudaView<u32>>,
    y: &mut CudaSlice<T>,
) -> Result<()> {
    let elements = y.len();
    if elements == 0 {
        return Ok(());
    }
    let of_result = ids.map_or(rows, CudaView::len);
    if u32::try_from(elements).is_err() || !columns.is_multiple_of(32) || elements != of_result * columns {
        bail!("{elements} elements are not {of_result} rows of {columns}, or the kernel does not count so many")
    }
    if !address(weight.scales, device).is_multiple_of(4) {
        bail!("scales do not begin at a multiple of 4 bytes")
    }
    let (of_codes, of_scales) = Codes::of(format, rows * columns);
    let Some(code) = code(dtype) else { bail!("no kernels for {dtype:?}") };
    let variant = format!("{}_{}", name(format), dtype.as_str());
    let (Codes { codes, scales }, y) = (weight, y.as_view_mut());
    Dequantize { of_codes, of_scales, numel: elements, columns, rows, ids, codes, scales, y }.launch(
        device,
        &variant,
        code,
        blocks(elements / (128 / format.bits)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::driver::kernels::capabilities::tests::capabilities;

    #[test]
    fn kernels_take_up_to_eight_rows_that_fit_into_shared_memory() {
        let turing = capabilities("sm_75", 75, 64 << 10);
        let new = |rows, columns, inner, gate| {
            Gemv::new(DType::F16, Format::FOUR_AFFINE, [rows, columns, inner], gate, &turing)
        };
        for rows in 1..=4 {
            let of = new(rows, 896, 4864, None).expect("it fits");
            assert_eq!((of.splits(), of.blocks(), of.ahead), (8, 224, None), "{rows} rows");
        }
        let gated = new(1, 4864, 896, Some(Activation::Silu)).expect("it fits");
        assert_eq!((gated.splits(), gated.shared()), (1, 64 * 24));
        assert_eq!(new(9, 64, 64, None), None, "more rows than kernels take");
        assert_eq!(new(1, 64, 100, None), None, "rows that 32 does not divide");
        assert_eq!(new(8, 64, 14_336, None), None, "more than shared memory holds");
    }

    #[test]
    fn the_weight_decides_what_is_on_tensor_cores_and_how_sums_are_split() {
        let hopper = capabilities("sm_90a", 90, 227 << 10);
        let new = |format, rows, columns, inner| Gemv::new(DType::F16, format, [rows, columns, inner], None, &hopper);
        let both = Format::FOUR_AFFINE.with(Format::SMALL_GROUPS);
        for format in [Format::FOUR_AFFINE, Format::EIGHT, Format::EIGHT_AFFINE, Format::SMALL_GROUPS, both] {
            let small = if format == Format::FOUR_AFFINE { (8, 64) } else { (16, 128) };
            for (columns, inner, expected) in [(4096, 14_336, (8, 128)), (6144, 4096, (16, 132)), (2048, 2048, small)] {
                for rows in 2..=8 {
                    let of = new(format, rows, columns, inner).expect("it fits");
                    assert_eq!((of.splits(), of.blocks()), expected, "{rows} rows of {columns} x {inner}, {format:?}");
                    assert!(of.ahead.is_some_and(|ahead| ahead > 0), "{of:?}");
                    assert!(of.shared() + TENSOR_STATIC <= 227 << 10, "{of:?}");
                }
                assert_eq!(new(format, 1, columns, inner).expect("it fits").ahead, None, "one row");
            }
            let of = |rows, inner| new(format, rows, 64, inner).map(|of| of.ahead.is_some());
            let (odd, long) = (32 * 31, 17_920);
            assert_eq!((of(1, odd), of(8, odd)), (Some(false), Some(false)), "scales that cannot be copied together");
            assert_eq!(of(2, long), of(8, long), "{format:?}");
            assert_eq!(of(8, 65_536), None, "more than shared memory holds");
        }
        let of = new(Format::FOUR_AFFINE, 8, 4096, 14_336).expect("it fits");
        assert_eq!((of.ahead, of.shared()), (Some(1), 8 * (14_336 + 16) + 448 * 64 + 8 * 56 * 4 + 16 * 16 * 160));
    }
}
