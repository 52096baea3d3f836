//! Launches of `quantized.cuh`.

#![allow(unsafe_code)]

use candle::cuda_backend::WrapErr;
use candle::{bail, CudaDevice, DType, Result};
use cudarc::driver::{CudaSlice, CudaView, DeviceRepr, LaunchConfig, PushKernelArg};
use half::f16;

use super::blocks::Format;
use crate::cuda::driver::kernels::{address, allow_shared, arg_or_null, blocks, expect, function, ptx, Capabilities};
use crate::ops::Activation;

/// `WARPS` and `LOADS` of `quantized.cuh`.
const WARPS: usize = 8;
const LOADS: usize = 4;

/// Blocks that take turns: two for each processor of an H100, as many as have the registers.
const BLOCKS: usize = 2 * 132;

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
        let of = Self { dtype, format, rows, columns, inner, activation };
        let fits = is_some && are_countable && rows <= 8 && inner.is_multiple_of(32);
        (fits && capabilities.has_shared(of.shared() + STATIC)).then_some(of)
    }

    /// Rows of the kernel.
    fn kernel(&self) -> usize {
        self.rows.next_power_of_two()
    }

    /// Elements of a row that a warp takes at a time, 16 bytes of codes a lane.
    fn chunk(&self) -> usize {
        32 * 128 / self.format.bits
    }

    fn chunks(&self) -> usize {
        self.inner.div_ceil(self.chunk())
    }

    /// Sets of rows of the weight that a warp takes at a time.
    fn groups(&self) -> usize {
        self.columns.div_ceil(if self.activation.is_some() { LOADS / 2 } else { LOADS })
    }

    /// Warps that share rows of the weight: as many as have the fewest steps from the first chunk to the last one. It depends on the
    /// weight alone, so that the bits of a row do not depend on how many there are.
    fn splits(&self) -> usize {
        let steps =
            |&splits: &usize| self.groups().div_ceil(BLOCKS * (WARPS / splits)) * self.chunks().div_ceil(splits);
        [1, 2, 4, WARPS].into_iter().min_by_key(steps).unwrap_or(1)
    }

    fn blocks(&self) -> u32 {
        self.groups().div_ceil(WARPS / self.splits()).min(BLOCKS) as u32
    }

    /// Bytes of shared memory that the launch asks for: of each 16 elements of `x` their codes, and two floats.
    fn shared(&self) -> usize {
        self.kernel() * self.chunks() * self.chunk() / 16 * (16 + 8)
    }
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

/// Bytes of shared memory that kernels have besides, at most: sums of warps, and of squares.
const STATIC: usize = 4 * (2 * WARPS * LOADS * 8 + WARPS * 8);

/// Codes and scales of a weight.
#[derive(Clone, Copy)]
pub(super) struct Codes<'a> {
    pub codes: &'a CudaView<'a, u8>,
    pub scales: &'a CudaView<'a, f16>,
}

impl Codes<'_> {
    /// # Errors
    /// Fewer than of `rows * inner` elements, or an odd address.
    fn expect(&self, device: &CudaDevice, format: Format, rows: usize, inner: usize) -> Result<()> {
        expect("the codes", self.codes.len(), rows * inner * format.bits / 8)?;
        expect("the scales", self.scales.len(), rows * inner / format.group * 2)?;
        if !address(self.codes, device).is_multiple_of(16) || !address(self.scales, device).is_multiple_of(4) {
            bail!("codes do not begin at a multiple of 16 bytes, or scales at one of 4")
        }
        Ok(())
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
    let weights = if activation.is_some() { 2 * columns } else { columns };
    expect("the operand", x.len(), rows * inner)?;
    weight.expect(device, format, weights, inner)?;
    expect("the norm's scale", norm.map_or(inner, CudaView::len), inner)?;
    expect("the bias", bias.map_or(weights, CudaView::len), weights)?;
    expect("the residual", residual.map_or(rows * columns, CudaView::len), rows * columns)?;
    expect("the result", y.len(), rows * columns)?;
    if [Some(x), norm].into_iter().flatten().any(|at| !address(at, device).is_multiple_of(16)) {
        bail!("an operand of {of:?} does not begin at a multiple of 16 bytes")
    }
    let Some(code) = code(of.dtype) else { bail!("no kernels for {of:?}") };
    let kind = if activation.is_some() { "quantized_gated_gemv" } else { "quantized_gemv" };
    let name = format!("opara_{kind}_{}_{}_{}_{}", format.bits, format.group, of.kernel(), of.dtype.as_str());
    let function = function(device, &name, &format!("quantized_{}", of.dtype.as_str()), code)?;
    // What is allowed is the kernel's, not the launch's: a graph may hold launches that ask for more than the latest one.
    allow_shared(&function, Capabilities::of(device, code)?.shared_beside(STATIC))?;
    let sizes = [rows * columns, columns, inner, of.splits()].map(|n| n as u32);
    let activation = activation.map(Activation::code);
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&function);
    for size in &sizes {
        launch.arg(size);
    }
    if let Some(activation) = &activation {
        launch.arg(activation);
    }
    launch.arg(&eps).arg(x);
    arg_or_null(&mut launch, norm);
    launch.arg(weight.codes).arg(weight.scales);
    arg_or_null(&mut launch, bias);
    if activation.is_none() {
        arg_or_null(&mut launch, residual);
    }
    launch.arg(y);
    let config = LaunchConfig {
        grid_dim: (of.blocks(), 1, 1),
        block_dim: (32 * WARPS as u32, 1, 1),
        shared_mem_bytes: of.shared() as u32,
    };
    // SAFETY: the arguments are those that the kernel declares. It reads `rows * inner` elements of `x`, `inner` of a norm's scale,
    // codes and scales of all rows of the weight and a number of the bias for each, a residual for each result, nothing through
    // null, and writes each of `rows * columns` of `y`: all were held against the slices above. What it loads 16 bytes of begins at
    // multiples of 16 bytes, rows too, whose lengths `Gemv::new` saw. Shared memory is as large as the kernel divides it.
    unsafe { launch.launch(config) }.w()?;
    Ok(())
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
    weight.expect(device, format, rows, columns)?;
    let Some(code) = code(dtype) else { bail!("no kernels for {dtype:?}") };
    let name = format!("opara_dequantize_{}_{}_{}", format.bits, format.group, dtype.as_str());
    let function = function(device, &name, &format!("quantized_{}", dtype.as_str()), code)?;
    let [numel, columns, rows] = [elements, columns, rows].map(|n| n as u32);
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&function);
    launch.arg(&numel).arg(&columns).arg(&rows);
    arg_or_null(&mut launch, ids);
    launch.arg(weight.codes).arg(weight.scales).arg(y);
    // SAFETY: the arguments are those that the kernel declares. It reads an id for each row of `y`, or none through null, codes and
    // scales of rows below `rows` (it asserts that), 16 bytes of codes at multiples of 16 bytes, and writes each element of `y`, which
    // is a whole allocation: all were held against the slices above.
    unsafe { launch.launch(blocks(elements / (128 / format.bits))) }.w()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::driver::kernels::capabilities::tests::capabilities;

    #[test]
    fn kernels_take_up_to_eight_rows_that_fit_into_shared_memory() {
        let hopper = capabilities("sm_90a", 90, 227 << 10);
        let new =
            |rows, columns, inner, gate| Gemv::new(DType::F16, Format::FOUR, [rows, columns, inner], gate, &hopper);
        for rows in 1..=8 {
            let of = new(rows, 896, 4864, None).expect("it fits");
            assert_eq!((of.splits(), of.blocks()), (8, 224), "{rows} rows");
        }
        let gated = new(1, 4864, 896, Some(Activation::Silu)).expect("it fits");
        assert_eq!((gated.splits(), gated.shared()), (1, 64 * 24));
        assert_eq!(new(9, 64, 64, None), None, "more rows than kernels take");
        assert_eq!(new(1, 64, 100, None), None, "rows that 32 does not divide");
        assert!(new(8, 64, 14_336, None).is_some());
        assert_eq!(new(8, 64, 65_536, None), None, "more than shared memory holds");
    }
}
