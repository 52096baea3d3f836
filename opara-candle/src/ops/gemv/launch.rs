//! Launches of `gemv.cuh`.

#![allow(unsafe_code)]

use candle::cuda_backend::WrapErr;
use candle::{bail, CudaDevice, DType, Result};
use cudarc::driver::{CudaSlice, CudaView, DeviceRepr, LaunchConfig, PushKernelArg};

use crate::cuda::driver::kernels::{address, allow_shared, arg_or_null, expect, function, ptx, wide, Capabilities};
use crate::ops::Activation;

/// `WARPS` and `LOADS` of `gemv.cuh`.
const WARPS: usize = 8;
const LOADS: usize = 4;

/// Blocks that take turns: three for each processor of an H100.
const BLOCKS: usize = 3 * 132;

/// `STEPS` of the kernels: chunks of its rows that a warp asks for ahead.
const STEPS: usize = 4;

/// Bytes of a row of the weight that a warp takes at a time, 16 a lane.
const CHUNK: usize = 32 * 16;

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
    epilogue: Epilogue,
}

/// What becomes of products.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Epilogue {
    /// `activation(product) + residual`.
    Added(Activation),
    /// Two rows of the weight make a result, `activation(gate) * up`.
    Gated(Activation),
}

impl Epilogue {
    /// Rows of the weight that a result takes.
    pub fn rows(self) -> usize {
        match self {
            Self::Added(_) => 1,
            Self::Gated(_) => 2,
        }
    }
}

impl Gemv {
    /// Of these sizes, if there is a kernel for them.
    pub fn new(
        dtype: DType,
        [rows, columns, inner]: [usize; 3],
        epilogue: Epilogue,
        capabilities: &Capabilities,
    ) -> Option<Self> {
        let is_known = matches!(dtype, DType::F32 | DType::F16 | DType::BF16);
        let is_some = is_known && rows > 0 && columns > 0 && inner > 0;
        let are_countable = columns.max(inner) <= 1 << 28;
        let of = Self { dtype, rows, columns, inner, epilogue };
        let fits = is_some && are_countable && rows <= 8 && inner.is_multiple_of(wide(dtype));
        (fits && capabilities.has_shared(of.shared() + STATIC)).then_some(of)
    }

    /// Rows of the kernel.
    fn kernel(&self) -> usize {
        self.rows.next_power_of_two()
    }

    /// Chunks of a row.
    fn chunks(&self) -> usize {
        (self.inner * self.dtype.size_in_bytes()).div_ceil(CHUNK)
    }

    /// Sets of rows of the weight that a warp takes at a time.
    fn groups(&self) -> usize {
        self.columns.div_ceil(LOADS / self.epilogue.rows())
    }

    /// Steps of a warp from the first chunk to the last one, where so many warps share rows of the weight.
    fn steps(&self, splits: usize) -> usize {
        self.groups().div_ceil(BLOCKS * (WARPS / splits)) * self.chunks().div_ceil(splits)
    }

    /// Warps that share rows of the weight: as many as have the fewest steps. It depends on the weight alone, so that the bits of a row
    /// do not depend on how many there are.
    fn splits(&self) -> usize {
        [1, 2, 4, WARPS].into_iter().min_by_key(|&splits| self.steps(splits)).unwrap_or(1)
    }

    fn blocks(&self) -> u32 {
        self.groups().div_ceil(WARPS / self.splits()).min(BLOCKS) as u32
    }

    /// Bytes of shared memory that the launch asks for: `x` in f32, and what the warps ask for ahead.
    fn shared(&self) -> usize {
        let of_x = self.kernel() * self.chunks() * CHUNK / self.dtype.size_in_bytes() * 4;
        of_x + WARPS * LOADS * CHUNK * STEPS.min(self.steps(self.splits()))
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

/// Bytes of shared memory that kernels have besides, at most: sums of warps, and of squares.
const STATIC: usize = 4 * (2 * WARPS * LOADS * 8 + WARPS * 8);

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
    let weights = of.epilogue.rows() * columns;
    expect("the operand", x.len(), rows * inner)?;
    expect("the weight", weight.len(), weights * inner)?;
    expect("the scale", scale.map_or(inner, CudaView::len), inner)?;
    expect("the bias", bias.map_or(weights, CudaView::len), weights)?;
    expect("the residual", residual.map_or(rows * columns, CudaView::len), rows * columns)?;
    expect("the result", y.len(), rows * columns)?;
    if [Some(x), Some(weight), scale].into_iter().flatten().any(|at| !address(at, device).is_multiple_of(16)) {
        bail!("an operand of {of:?} does not begin at a multiple of 16 bytes")
    }
    let (kind, activation) = match of.epilogue {
        Epilogue::Added(activation) => ("gemv", activation.code()),
        Epilogue::Gated(activation) => ("gated_gemv", activation.code()),
    };
    let (rows, name) = (of.kernel(), of.dtype.as_str());
    let function = function(device, &format!("opara_{kind}_{rows}_{name}"), &format!("gemv_{name}"), code(of.dtype))?;
    // What is allowed is the kernel's, not the launch's: a graph may hold launches that ask for more than the latest one.
    allow_shared(&function, Capabilities::of(device, code(of.dtype))?.shared_beside(STATIC))?;
    let sizes = [of.rows * columns, columns, inner, of.splits()].map(|n| n as u32);
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&function);
    for size in &sizes {
        launch.arg(size);
    }
    launch.arg(&activation).arg(&eps).arg(x);
    arg_or_null(&mut launch, scale);
    launch.arg(weight);
    arg_or_null(&mut launch, bias);
    if matches!(of.epilogue, Epilogue::Added(_)) {
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
    fn splits_depend_on_the_weight_alone_and_leave_the_fewest_steps() {
        let hopper = capabilities("sm_90a", 90, 227 << 10);
        let new = |rows, columns, inner, epilogue| Gemv::new(DType::F16, [rows, columns, inner], epilogue, &hopper);
        let plain = Epilogue::Added(Activation::None);
        let of = |rows, columns, inner| new(rows, columns, inner, plain).expect("it fits");
        for (columns, inner, splits) in [(1152, 896, 4), (896, 896, 4), (896, 4864, 8), (151_936, 896, 1), (8, 64, 1)] {
            for rows in 1..=8 {
                assert_eq!(of(rows, columns, inner).splits(), splits, "{rows} rows of {columns} x {inner}");
            }
        }
        let gated = new(1, 4864, 896, Epilogue::Gated(Activation::Silu)).expect("it fits");
        assert_eq!((gated.splits(), gated.steps(1), gated.blocks()), (1, 4, 304));
        assert_eq!(gated.shared(), 4 * 1024 + STEPS * WARPS * LOADS * CHUNK);
        assert_eq!(of(1, 896, 896).shared(), 4 * 1024 + WARPS * LOADS * CHUNK, "all that there is");
        assert_eq!(new(9, 64, 64, plain), None, "more rows than kernels take");
        assert_eq!(new(1, 64, 100, plain), None, "rows that 16 bytes do not divide");
        assert_eq!(new(8, 64, 14_336, plain), None, "more than shared memory holds");
    }
}
