//! Launches of `gemv.cuh`.

#![allow(unsafe_code)]

use candle::cuda_backend::WrapErr;
use candle::{bail, CudaDevice, DType, Result};
use cudarc::driver::{CudaSlice, CudaView, DeviceRepr, LaunchConfig, PushKernelArg};

use crate::cuda::driver::kernels::{address, allow_shared, arg_or_null, expect, function, ptx, wide, Capabilities};
use crate::ops::Activation;

/// `WARPS` of `gemv.cuh`.
const WARPS: usize = 8;

/// Warps of a GPU that have enough loads in flight: 16 on each of an H100's processors.
const ENOUGH_WARPS: usize = 132 * 16;

/// Sizes of a product with few rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Gemv {
    dtype: DType,
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
        [rows, columns, inner]: [usize; 3],
        activation: Option<Activation>,
        capabilities: &Capabilities,
    ) -> Option<Self> {
        let is_known = matches!(dtype, DType::F32 | DType::F16 | DType::BF16);
        let is_some = is_known && rows > 0 && columns > 0 && inner > 0;
        let are_countable = 2 * columns.max(inner) <= i32::MAX as usize;
        let of = Self { dtype, rows, columns, inner, activation };
        let fits = is_some && are_countable && rows <= 8 && inner.is_multiple_of(wide(dtype));
        (fits && capabilities.has_shared(of.shared() + STATIC)).then_some(of)
    }

    /// Rows of the kernel, and the rows of the weight that a warp takes.
    fn kernel(&self) -> (usize, usize) {
        match self.rows {
            1 => (1, 2),
            2 => (2, 2),
            3 | 4 => (4, 4),
            _ => (8, 4),
        }
    }

    /// Elements that a warp takes at a time.
    fn chunk(&self) -> usize {
        32 * wide(self.dtype)
    }

    /// Bytes of shared memory that the launch asks for: `x` in f32.
    fn shared(&self) -> usize {
        4 * self.kernel().0 * self.inner.next_multiple_of(self.chunk())
    }

    /// Warps that share rows of the weight: it depends on the weight alone, so that the bits of a row do not depend on how many
    /// there are.
    fn splits(&self) -> usize {
        let groups = self.columns.div_ceil(if self.activation.is_some() { 1 } else { 2 });
        let chunks = self.inner.div_ceil(self.chunk());
        let enough = |splits: &usize| groups * splits >= ENOUGH_WARPS || splits * 2 > chunks;
        [1, 2, 4].into_iter().find(enough).unwrap_or(WARPS)
    }

    fn blocks(&self) -> u32 {
        let (_, loads) = self.kernel();
        let results = if self.activation.is_some() { loads / 2 } else { loads };
        self.columns.div_ceil(results * WARPS / self.splits()) as u32
    }

    fn has_gate(&self) -> bool {
        self.activation.is_some()
    }
}

/// The module for a type.
pub(super) fn code(dtype: DType) -> &'static str {
    match dtype {
        DType::F16 => ptx::GEMV_F16,
        DType::BF16 => ptx::GEMV_BF16,
        _ => ptx::GEMV_F32,
    }
}

/// Bytes of shared memory that kernels have besides: sums of warps.
const STATIC: usize = 4 * (WARPS * 32 + WARPS);

/// The operands of a launch besides `x`.
pub(super) struct Operands<'a, T> {
    pub scale: Option<&'a CudaView<'a, T>>,
    pub eps: f32,
    pub weight: &'a CudaView<'a, T>,
    pub bias: Option<&'a CudaView<'a, T>>,
    pub residual: Option<&'a CudaView<'a, T>>,
}

/// The product `of` the operands into `y`.
///
/// # Errors
/// Slices that are too short or begin elsewhere than at multiples of 16 bytes, or a launch that fails.
pub(super) fn gemv<T: DeviceRepr>(
    device: &CudaDevice,
    of: &Gemv,
    x: &CudaView<T>,
    operands: &Operands<T>,
    y: &mut CudaSlice<T>,
) -> Result<()> {
    let Gemv { rows, columns, inner, .. } = *of;
    let Operands { scale, eps, weight, bias, residual } = *operands;
    let weights = if of.has_gate() { 2 * columns } else { columns };
    expect("the operand", x.len(), rows * inner)?;
    expect("the weight", weight.len(), weights * inner)?;
    expect("the scale", scale.map_or(inner, CudaView::len), inner)?;
    expect("the bias", bias.map_or(weights, CudaView::len), weights)?;
    expect("the residual", residual.map_or(rows * columns, CudaView::len), rows * columns)?;
    expect("the result", y.len(), rows * columns)?;
    if [Some(x), Some(weight), scale].into_iter().flatten().any(|at| !address(at, device).is_multiple_of(16)) {
        bail!("an operand of {of:?} does not begin at a multiple of 16 bytes")
    }
    let (kind, rows, name) = (if of.has_gate() { "gated_gemv" } else { "gemv" }, of.kernel().0, of.dtype.as_str());
    let function = function(device, &format!("opara_{kind}_{rows}_{name}"), &format!("gemv_{name}"), code(of.dtype))?;
    // What is allowed is the kernel's, not the launch's: a graph may hold launches that ask for more than the latest one.
    allow_shared(&function, Capabilities::of(device, code(of.dtype))?.shared_beside(STATIC))?;
    let sizes = [of.rows * columns, columns, inner, of.splits()].map(|n| n as u32);
    let activation = of.activation.map(Activation::code);
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&function);
    for size in &sizes {
        launch.arg(size);
    }
    if let Some(activation) = &activation {
        launch.arg(activation);
    }
    launch.arg(&eps).arg(x);
    arg_or_null(&mut launch, scale);
    launch.arg(weight);
    arg_or_null(&mut launch, bias);
    if !of.has_gate() {
        arg_or_null(&mut launch, residual);
    }
    launch.arg(y);
    let config = LaunchConfig {
        grid_dim: (of.blocks(), 1, 1),
        block_dim: (32 * WARPS as u32, 1, 1),
        shared_mem_bytes: of.shared() as u32,
    };
    // SAFETY: the arguments are those that the kernel declares. It reads `rows * inner` elements of `x`, `inner` of a scale, all
    // rows of the weight and a number of the bias for each, a residual for each result, nothing through null, and writes each of
    // `rows * columns` of `y`: all were held against the slices above. What it loads 16 bytes of begins at multiples of 16 bytes,
    // rows too, whose lengths `Gemv::new` saw. Shared memory is as large as the kernel divides it.
    unsafe { launch.launch(config) }.w()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::driver::kernels::capabilities::tests::capabilities;

    #[test]
    fn splits_depend_on_the_weight_alone_and_give_every_warp_something() {
        let hopper = capabilities("sm_90a", 90, 227 << 10);
        let of = |rows, columns, inner| Gemv::new(DType::F16, [rows, columns, inner], None, &hopper).expect("it fits");
        for (columns, inner, splits) in [(1152, 896, 4), (896, 4864, 8), (151_936, 896, 1), (4864, 896, 1), (8, 64, 1)]
        {
            for rows in 1..=8 {
                assert_eq!(of(rows, columns, inner).splits(), splits, "{rows} rows of {columns} x {inner}");
            }
        }
        assert_eq!(Gemv::new(DType::F16, [9, 64, 64], None, &hopper), None, "more rows than kernels take");
        assert_eq!(Gemv::new(DType::F16, [1, 64, 100], None, &hopper), None, "rows that 16 bytes do not divide");
        assert_eq!(Gemv::new(DType::F16, [8, 64, 14_336], None, &hopper), None, "more than shared memory holds");
    }
}
