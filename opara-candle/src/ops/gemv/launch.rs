//! Launches of `gemv.cuh`, for f32 and for one row, and `gemv_tensor.cuh`, for more rows of 16 bits.

use candle::{CudaDevice, DType, Result};
use cudarc::driver::{CudaSlice, CudaView, DeviceRepr, LaunchConfig};

use crate::cuda::driver::kernels::{kernels, ptx, wide, Capabilities};
use crate::ops::few_rows::FEW;
use crate::ops::Activation;

kernels! {
    /// `activation(norm(x) * weightᵀ + bias) + residual` for `rows` rows of `x`.
    Gemv<T> = "opara_matmul_gemv_" for [f16 bf16 f32] needs [TensorCores] {
        rows: host, numel: u32, columns: u32, inner: u32, splits: u32, activation: i32, eps: f32,
        x: wide in T [rows * inner],
        scale: wide opt T [inner],
        weight: early wide in T [columns * inner],
        bias: early opt T [columns],
        residual: opt T [numel],
        y: out T [numel],
    }

    /// `activation(norm(x) * gateᵀ) * (norm(x) * upᵀ)`, where a weight is `gate` and then `up`.
    GatedGemv<T> = "opara_matmul_gated_gemv_" for [f16 bf16 f32] needs [TensorCores] {
        rows: host, numel: u32, columns: u32, inner: u32, splits: u32, activation: i32, eps: f32,
        x: wide in T [rows * inner],
        scale: wide opt T [inner],
        weight: early wide in T [2 * columns * inner],
        bias: early opt T [2 * columns],
        y: out T [numel],
    }
}

/// `WARPS` of both headers.
const WARPS: usize = 8;

/// What a kernel divides a weight into.
struct Division {
    /// Rows of the weight that a warp takes at a time.
    rows: usize,
    /// Bytes of a row that a warp takes at a time.
    chunk: usize,
    /// Blocks of a multiprocessor, which take turns.
    blocks: usize,
}

/// Of `gemv.cuh`: 16 bytes of a row for each lane.
const FMA: Division = Division { rows: 4, chunk: 32 * OF_LANE, blocks: 3 };

/// Bytes of a row that a lane of `gemv.cuh` takes at a time.
const OF_LANE: usize = 16;

/// Of `gemv_tensor.cuh`.
const TENSOR: Division = Division { rows: 16, chunk: 2 * 128, blocks: 2 };

/// Multiprocessors that a weight is split for: an H100's on every device, since splits decide bits.
pub(super) const PROCESSORS: usize = 132;

/// Chunks of its rows that a warp of `gemv.cuh` asks for ahead (`STEPS`), and one of `gemv_tensor.cuh` at most.
const STEPS: usize = 4;
const MOST_STEPS: usize = 8;

/// Shared memory of a block that its kernel does not see.
const RESERVED: usize = 1 << 10;

/// `APART` of `gemv_tensor.cuh`, in bytes.
const APART: usize = 64;

/// Sizes of a product with few rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::ops) struct Sizes {
    pub dtype: DType,
    /// Rows of `x`.
    rows: usize,
    /// Results of each.
    pub columns: usize,
    /// Elements of a row.
    pub inner: usize,
    pub epilogue: Epilogue,
    /// The weight's elements are floats of 8 bits, with a scale for each lane's part of a row.
    are_floats: bool,
    /// Chunks of its rows that a warp asks for ahead.
    ahead: usize,
    /// Multiprocessors of the device.
    processors: usize,
}

/// What becomes of products.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::ops) enum Epilogue {
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

impl Sizes {
    /// Of these sizes, if there is a kernel for them.
    pub fn new(
        dtype: DType,
        [rows, columns, inner]: [usize; 3],
        epilogue: Epilogue,
        capabilities: &Capabilities,
    ) -> Option<Self> {
        // What eight rows have no room for, fewer do not do either: the bits of a row do not depend on how many there are from two on.
        if (2..FEW).contains(&rows) {
            Self::new(dtype, [FEW, columns, inner], epilogue, capabilities)?;
        }
        let is_known = Gemv::<()>::is_for(dtype);
        let is_some = is_known && rows > 0 && columns > 0 && inner > 0;
        let are_countable = columns.max(inner) <= 1 << 28;
        let processors = capabilities.processors();
        let of = Self { dtype, rows, columns, inner, epilogue, are_floats: false, ahead: 1, processors };
        let has_kernel =
            if of.is_on_tensor_cores() { rows <= 16 && capabilities.has_tensor_cores() } else { rows <= 8 };
        if !is_some || !are_countable || !has_kernel || !inner.is_multiple_of(wide(dtype)) {
            return None;
        }
        of.with_ahead(capabilities)
    }

    /// The same for one row of 16 bits and a weight of floats of 8 bits, of which `group` neighbours have a scale.
    pub fn of_floats(
        dtype: DType,
        [columns, inner]: [usize; 2],
        group: usize,
        epilogue: Epilogue,
        capabilities: &Capabilities,
    ) -> Option<Self> {
        let are_countable = (1..=1 << 28).contains(&columns) && (1..=1 << 28).contains(&inner);
        if !are_countable || !inner.is_multiple_of(group) || !group.is_multiple_of(OF_LANE) {
            return None;
        }
        let processors = capabilities.processors();
        Self { dtype, rows: 1, columns, inner, epilogue, are_floats: true, ahead: 1, processors }
            .with_ahead(capabilities)
    }

    /// With as many chunks ahead as there is room for, if that is one at least.
    fn with_ahead(mut self, capabilities: &Capabilities) -> Option<Self> {
        let most = if self.is_on_tensor_cores() { self.room_ahead(capabilities) } else { STEPS };
        // Of this device, which may have fewer blocks than an H100: `gemv.cuh` takes turns with as many chunks of shared memory.
        self.ahead = self.steps_of(self.blocks() as usize, self.splits()).min(most);
        (self.ahead > 0 && capabilities.has_shared(self.shared() + self.fixed_shared())).then_some(self)
    }

    /// Bytes of an element of the weight.
    fn of_element(&self) -> usize {
        if self.are_floats {
            1
        } else {
            self.dtype.size_in_bytes()
        }
    }

    /// One row would leave seven of an instruction's eight columns empty, and multiply-adds were faster there.
    fn is_on_tensor_cores(&self) -> bool {
        self.dtype != DType::F32 && self.rows > 1
    }

    /// Chunks that there is room for beside `x`: in half of a multiprocessor's memory if that is enough for two, else in all of it.
    fn room_ahead(&self, capabilities: &Capabilities) -> usize {
        let whole = capabilities.shared_beside(0) + RESERVED;
        let fits = |bytes: usize| {
            bytes.saturating_sub(RESERVED + self.fixed_shared() + self.shared_of_x()) / self.shared_of_chunks()
        };
        let half = fits(whole / 2);
        if half >= 2 { half } else { fits(whole) }.min(MOST_STEPS)
    }

    fn division(&self) -> Division {
        if self.is_on_tensor_cores() {
            TENSOR
        } else {
            FMA
        }
    }

    /// Rows of the kernel.
    fn kernel(&self) -> usize {
        if self.is_on_tensor_cores() {
            self.rows.next_multiple_of(8)
        } else {
            self.rows.next_power_of_two()
        }
    }

    /// The module that has the kernel.
    fn module(&self) -> &'static str {
        match (self.dtype, self.is_on_tensor_cores()) {
            (DType::F16, false) => ptx::GEMV_F16,
            (DType::F16, true) => ptx::GEMV_TENSOR_F16,
            (DType::BF16, false) => ptx::GEMV_BF16,
            (DType::BF16, true) => ptx::GEMV_TENSOR_BF16,
            _ => ptx::GEMV_F32,
        }
    }

    /// Chunks of a row.
    fn chunks(&self) -> usize {
        (self.inner * self.of_element()).div_ceil(self.division().chunk)
    }

    /// Sets of rows of the weight that a warp takes at a time.
    fn groups(&self) -> usize {
        self.columns.div_ceil(self.division().rows / self.epilogue.rows())
    }

    /// Steps of an H100's warp from the first chunk to the last one, where `splits` warps share rows of the weight.
    fn steps(&self, splits: usize) -> usize {
        self.steps_of(PROCESSORS * self.division().blocks, splits)
    }

    /// The same where there are as many blocks as `blocks`.
    fn steps_of(&self, blocks: usize, splits: usize) -> usize {
        self.groups().div_ceil(blocks * (WARPS / splits)) * self.chunks().div_ceil(splits)
    }

    /// Warps that share rows of the weight: as many as have the fewest steps. It depends on the weight and the kernel alone, so that the
    /// bits of a row do not depend on how many there are.
    fn splits(&self) -> usize {
        [1, 2, 4, WARPS].into_iter().min_by_key(|&splits| self.steps(splits)).unwrap_or(1)
    }

    fn blocks(&self) -> u32 {
        self.groups().div_ceil(WARPS / self.splits()).min(self.processors * self.division().blocks) as u32
    }

    /// Bytes of shared memory that the launch asks for: `x`, and what the warps ask for ahead.
    fn shared(&self) -> usize {
        self.shared_of_x() + self.ahead * self.shared_of_chunks()
    }

    fn shared_of_x(&self) -> usize {
        let row = self.chunks() * self.division().chunk;
        if self.is_on_tensor_cores() {
            // Rows that are not there are one row of zeros.
            (self.rows + 1).min(self.kernel()) * (row + APART)
        } else {
            self.kernel() * row / self.of_element() * size_of::<f32>()
        }
    }

    /// Of a chunk of each row of each warp.
    fn shared_of_chunks(&self) -> usize {
        let Division { rows, chunk, .. } = self.division();
        let scales = if self.are_floats { chunk / OF_LANE * size_of::<f32>() } else { 0 };
        WARPS * rows * (chunk + scales)
    }

    /// Warps that share rows of the weight, and the launch shape.
    pub fn launch(&self) -> (usize, LaunchConfig) {
        let config = LaunchConfig {
            grid_dim: (self.blocks(), 1, 1),
            block_dim: (32 * WARPS as u32, 1, 1),
            shared_mem_bytes: self.shared() as u32,
        };
        (self.splits(), config)
    }

    /// Bytes of shared memory that the kernel has besides, at most: sums of warps, twice, and of squares.
    fn fixed_shared(&self) -> usize {
        // `gemv.cuh` has sums of several rounds where there are fewer rows than eight.
        let rows = if self.is_on_tensor_cores() { self.kernel() } else { 8 };
        size_of::<f32>() * WARPS * rows * (2 * self.division().rows + 1)
    }
}

/// Code that says what the kernels were compiled for.
pub(super) const CODE: &str = ptx::GEMV_F32;

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
    of: &Sizes,
    x: &CudaView<T>,
    operands: &Operands<T>,
    y: &mut CudaSlice<T>,
) -> Result<()> {
    let Sizes { rows, columns, inner, .. } = *of;
    let Operands { scale, eps, weight, bias, residual } = *operands;
    let ((splits, config), numel, y) = (of.launch(), rows * columns, y.as_view_mut());
    let (variant, code) = (format!("{}_{}", of.kernel(), of.dtype.as_str()), of.module());
    match of.epilogue {
        Epilogue::Added(activation) => {
            let activation = activation.code();
            Gemv { rows, numel, columns, inner, splits, activation, eps, x, scale, weight, bias, residual, y }
                .launch(device, &variant, code, config)
        }
        Epilogue::Gated(activation) => {
            let activation = activation.code();
            GatedGemv { rows, numel, columns, inner, splits, activation, eps, x, scale, weight, bias, y }
                .launch(device, &variant, code, config)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::driver::kernels::capabilities::tests::capabilities;

    #[test]
    fn what_a_warp_asks_for_ahead_has_room_on_devices_of_any_size() {
        let plain = Epilogue::Added(Activation::None);
        for processors in [1, 16, 58, 108, 114, 132, 170] {
            let of_device = capabilities("sm_80", 80, 163 << 10).with_processors(processors);
            for (columns, inner) in [(1536, 1536), (2048, 2048), (4864, 896), (151_936, 896), (8, 64)] {
                for (dtype, rows) in [(DType::F16, 1), (DType::F32, 1), (DType::F32, 8)] {
                    let of = Sizes::new(dtype, [rows, columns, inner], plain, &of_device).expect("it fits");
                    let sets = of.groups() * of.splits();
                    let rounds = sets.div_ceil(of.blocks() as usize * WARPS) * of.chunks().div_ceil(of.splits());
                    assert_eq!(of.ahead, rounds.min(STEPS), "{of:?}");
                }
            }
        }
    }

    #[test]
    fn splits_depend_on_the_weight_alone_and_leave_the_fewest_steps() {
        let hopper = capabilities("sm_90a", 90, 227 << 10);
        let plain = Epilogue::Added(Activation::None);
        let new = |dtype, rows, columns, inner, epilogue| Sizes::new(dtype, [rows, columns, inner], epilogue, &hopper);
        let of = |dtype, rows, columns, inner| new(dtype, rows, columns, inner, plain).expect("it fits");
        for (columns, inner, of_f32, of_f16) in
            [(1152, 896, 8, 8), (896, 896, 8, 8), (896, 4864, 8, 8), (151_936, 896, 1, 1), (8, 64, 1, 1)]
        {
            for rows in 1..=8 {
                let (f32, f16) = (of(DType::F32, rows, columns, inner), of(DType::F16, 2 * rows, columns, inner));
                assert_eq!((f32.splits(), f16.splits()), (of_f32, of_f16), "{rows} rows of {columns} x {inner}");
            }
        }
        let one = new(DType::F16, 1, 4864, 896, Epilogue::Gated(Activation::Silu)).expect("it fits");
        assert_eq!((one.splits(), one.steps(1), one.blocks()), (1, 4, 304));
        assert_eq!(one.shared(), 4 * 1024 + STEPS * WARPS * FMA.rows * FMA.chunk);
        assert_eq!(of(DType::F16, 1, 896, 896).shared(), 4 * 1024 + WARPS * FMA.rows * FMA.chunk, "all that there is");
        let gated = new(DType::F32, 1, 4864, 896, Epilogue::Gated(Activation::Silu)).expect("it fits");
        assert_eq!((gated.splits(), gated.steps(1), gated.blocks()), (1, 7, 304));
        assert_eq!(gated.shared(), 4 * 896 + STEPS * WARPS * FMA.rows * FMA.chunk);
        let gated = |rows| new(DType::F16, rows, 8192, 2048, Epilogue::Gated(Activation::Silu)).expect("it fits");
        assert_eq!((gated(2).splits(), gated(2).steps(2), gated(2).blocks()), (2, 8, 256));
        // Two blocks of a multiprocessor, and all of it for one.
        for (of, x_rows, ahead) in [(gated(2), 3, 2), (gated(8), 8, 2), (of(DType::F16, 8, 2048, 8192), 8, 2)] {
            let x = x_rows * (2 * of.inner + APART);
            assert_eq!((of.ahead, of.shared()), (ahead, x + ahead * WARPS * TENSOR.rows * TENSOR.chunk), "{of:?}");
        }
        // Floats of 8 bits: half the chunks, and a scale for each lane.
        let floats = |inner| Sizes::of_floats(DType::BF16, [4096, inner], 128, plain, &hopper);
        let of = floats(14_336).expect("it fits");
        assert_eq!((of.chunks(), of.splits(), of.shared_of_x()), (28, 8, 4 * 14_336), "{of:?}");
        assert_eq!(of.shared() - of.shared_of_x(), STEPS * WARPS * FMA.rows * 32 * (16 + 4));
        assert_eq!(floats(14_336 + 64), None, "half a group");
        assert_eq!(new(DType::F32, 9, 64, 64, plain), None, "more rows than kernels take");
        assert_eq!(new(DType::BF16, 17, 64, 64, plain), None, "more rows than kernels take");
        assert_eq!(new(DType::F16, 1, 64, 100, plain), None, "rows that 16 bytes do not divide");
        assert_eq!(new(DType::F16, 8, 64, 14_336, plain), None, "more than shared memory holds");
        assert_eq!(new(DType::F16, 2, 64, 14_336, plain), None, "what eight rows have no room for");
        assert!(new(DType::F16, 1, 64, 14_336, plain).is_some(), "one row has a kernel of its own");
        let turing = capabilities("sm_75", 75, 64 << 10);
        assert_eq!(Sizes::new(DType::F16, [2, 64, 64], plain, &turing), None, "no tensor cores that the kernel knows");
    }
}
