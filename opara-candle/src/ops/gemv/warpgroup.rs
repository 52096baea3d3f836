//! Launches of `warpgroup_product.cuh`, here of weights of 16 bits: products with 2 to 64 rows, whose bits do not depend on how many
//! there are. More have the kernels of [`many`](super::many), which give the same bits.

use candle::{CudaDevice, DType, Result};
use cudarc::driver::{CudaSlice, CudaView, DeviceRepr, LaunchConfig};

use super::launch::{Epilogue, Operands, PROCESSORS};
use crate::cuda::driver::kernels::{kernels, ptx, wide, Capabilities};

kernels! {
    /// `activation(x * weightᵀ + bias) + residual` for `rows` rows of `x`.
    Product<T> = "opara_matmul_rows_" for [f16 bf16] needs [Warpgroups] {
        rows: u32, columns: u32, inner: u32, activation: i32,
        x: wide in T [rows * inner],
        weight: early wide in T [columns * inner],
        bias: opt T [columns],
        residual: opt T [rows * columns],
        y: out T [rows * columns],
    }

    /// `activation(x * gateᵀ) * (x * upᵀ)`, where a weight is `gate` and then `up`.
    GatedProduct<T> = "opara_matmul_gated_rows_" for [f16 bf16] needs [Warpgroups] {
        rows: u32, columns: u32, inner: u32, activation: i32,
        x: wide in T [rows * inner],
        weight: early wide in T [2 * columns * inner],
        bias: opt T [2 * columns],
        y: out T [rows * columns],
    }
}

/// Rows of a weight that a block takes, and its threads, as in the header.
pub(in crate::ops) const ROWS: usize = 64;
pub(in crate::ops) const THREADS: usize = 128;

/// Bytes of a row that a block multiplies at a time.
pub(in crate::ops) const LINE: usize = 128;

/// Rows of `x` that kernels take at most.
const WIDTHS: &[usize] = &[8, 16, 32, 64];
pub(super) const MOST: usize = WIDTHS[WIDTHS.len() - 1];

/// Blocks of a cluster, which share the inner dimension.
const SPLITS: [usize; 4] = [1, 2, 4, 8];

/// Blocks of a multiprocessor that run side by side at most, without room for others.
const BESIDE: usize = 4;

/// Steps that a block has in shared memory: one that is multiplied, and what `wait_for_first` counts.
const MOST_SLOTS: usize = 9;
const LEAST_SLOTS: usize = 3;

/// Shared memory of a block that its kernel does not see.
pub(super) const RESERVED: usize = 1 << 10;

/// Code that says what the kernels were compiled for.
pub(super) const CODE: &str = ptx::GEMV_WARPGROUP_BF16;

/// Is there a kernel for elements of this type?
pub(super) fn is_known(dtype: DType, capabilities: &Capabilities) -> bool {
    Product::<()>::is_for(dtype) && Product::<()>::runs_on(capabilities)
}

/// The kernels of one kind of weight: how many rows of `x` they take, and how much shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::ops) struct Family {
    /// Rows of `x` of each kernel, ascending.
    pub widths: &'static [usize],
    /// Rows of `x` at least and at most: the last kernel's blocks may have some each.
    pub rows: (usize, usize),
    /// Parts of [`LINE`] bytes of `x` that a block multiplies at a time.
    pub lines: usize,
    /// Bytes of a block's part of a weight, of these.
    pub of_weight: usize,
    /// A weight is split into as many blocks as one of these allows: so many at most for each multiprocessor, of so many steps at least.
    pub splits: &'static [(usize, usize)],
}

/// Of a weight of 16 bits.
const OF_16_BITS: Family =
    Family { widths: WIDTHS, rows: (2, MOST), lines: 1, of_weight: ROWS * LINE, splits: &[(3, 2)] };

/// Sizes of such a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::ops) struct Sizes {
    pub dtype: DType,
    /// Rows of `x`.
    pub rows: usize,
    /// Results of each.
    pub columns: usize,
    /// Elements of a row.
    pub inner: usize,
    pub epilogue: Epilogue,
    family: Family,
    /// Bytes of shared memory that a block takes: its part of a multiprocessor's.
    shared: usize,
}

impl Sizes {
    /// Of these sizes, if there is a kernel for them. All numbers of rows from two to the most that kernels take have one, or none has.
    pub fn new(dtype: DType, sizes: [usize; 3], epilogue: Epilogue, capabilities: &Capabilities) -> Option<Self> {
        Self::of(OF_16_BITS, dtype, sizes, epilogue, capabilities)
    }

    /// The same of other kernels.
    pub fn of(
        family: Family,
        dtype: DType,
        [rows, columns, inner]: [usize; 3],
        epilogue: Epilogue,
        capabilities: &Capabilities,
    ) -> Option<Self> {
        let are_few = (family.rows.0..=family.rows.1).contains(&rows);
        let are_countable = columns > 0 && inner > 0 && columns.max(inner) <= 1 << 28;
        if !(is_known(dtype, capabilities) && are_few && are_countable && inner.is_multiple_of(wide(dtype))) {
            return None;
        }
        let mut of = Self { dtype, rows, columns, inner, epilogue, family, shared: 0 };
        let whole = capabilities.shared_beside(0) + RESERVED;
        let shared = |beside: usize| (whole / beside - RESERVED).min(MOST_SLOTS * of.slot());
        let least = (LEAST_SLOTS * of.slot()).max(of.sums());
        of.shared = (1..=of.beside()).rev().map(shared).find(|&shared| shared >= least)?;
        Some(of)
    }

    /// Rows of the kernel.
    fn width(&self) -> usize {
        let Family { widths, .. } = self.family;
        widths.iter().copied().find(|&width| self.rows <= width).unwrap_or(widths[widths.len() - 1])
    }

    /// Bytes of a step of the weight.
    #[cfg(test)]
    pub fn of_weight(&self) -> usize {
        self.family.of_weight
    }

    /// Bytes of a step.
    fn slot(&self) -> usize {
        self.family.of_weight + self.family.lines * self.width() * LINE
    }

    /// Bytes of a block's sums: `PITCH` floats of the header for each row.
    fn sums(&self) -> usize {
        self.width() * (ROWS + 4) * size_of::<f32>()
    }

    /// Sets of rows of the weight, of which each has a cluster.
    fn clusters(&self) -> usize {
        self.columns.div_ceil(ROWS / self.epilogue.rows())
    }

    /// Blocks of a cluster: as many as multiprocessors have room for, with two steps each. It depends on the weight alone, so that the bits
    /// of a row do not depend on how many there are.
    pub fn splits(&self) -> usize {
        let steps = (self.inner * self.dtype.size_in_bytes()).div_ceil(self.family.lines * LINE);
        let fit = |&splits: &usize| {
            let of = |&(blocks, least): &(usize, usize)| {
                self.clusters() * splits <= blocks * PROCESSORS && least * splits <= steps
            };
            self.family.splits.iter().any(of)
        };
        SPLITS.into_iter().rev().find(fit).unwrap_or(1)
    }

    /// Blocks that share a multiprocessor's memory: no more than lie there if all have as many, since the next kernel's blocks begin where
    /// this one's end, and would gather on those that are free first. Clusters are not packed so densely: they have room for one more.
    fn beside(&self) -> usize {
        let splits = self.splits();
        let blocks = (self.clusters() * self.tiles() * splits).div_ceil(PROCESSORS);
        (blocks + usize::from(splits > 1)).min(BESIDE)
    }

    /// Blocks that have some rows of `x` each.
    fn tiles(&self) -> usize {
        self.rows.div_ceil(self.width())
    }

    /// The variant of the kernel, and its launch shape.
    pub fn launch(&self) -> (String, LaunchConfig) {
        let splits = self.splits();
        let config = LaunchConfig {
            grid_dim: (self.clusters() as u32, self.tiles() as u32, splits as u32),
            block_dim: (THREADS as u32, 1, 1),
            shared_mem_bytes: self.shared as u32,
        };
        (format!("{}_by{splits}_{}", self.width(), self.dtype.as_str()), config)
    }

    /// The module that has the kernel.
    fn module(&self) -> &'static str {
        match self.dtype {
            DType::F16 => ptx::GEMV_WARPGROUP_F16,
            _ => ptx::GEMV_WARPGROUP_BF16,
        }
    }
}

/// The product `of` the operands into `y`. A norm is a launch before it.
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
    let Sizes { rows, columns, inner, .. } = *of;
    let Operands { weight, bias, residual, .. } = *operands;
    let ((variant, config), code, y) = (of.launch(), of.module(), y.as_view_mut());
    match of.epilogue {
        Epilogue::Added(activation) => {
            let activation = activation.code();
            Product { rows, columns, inner, activation, x, weight, bias, residual, y }
                .launch(device, &variant, code, config)
        }
        Epilogue::Gated(activation) => {
            let activation = activation.code();
            GatedProduct { rows, columns, inner, activation, x, weight, bias, y }.launch(device, &variant, code, config)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::driver::kernels::capabilities::tests::{capabilities, of_build};
    use crate::ops::Activation;

    const PLAIN: Epilogue = Epilogue::Added(Activation::None);
    const GATED: Epilogue = Epilogue::Gated(Activation::Silu);

    fn of(rows: usize, columns: usize, inner: usize, epilogue: Epilogue) -> Option<Sizes> {
        Sizes::new(DType::BF16, [rows, columns, inner], epilogue, &capabilities("sm_90a", 90, 227 << 10))
    }

    #[test]
    fn all_from_two_to_64_rows_have_a_kernel_and_share_their_splits() {
        // Llama-3.1-8B's, Llama-3.2-1B's, Qwen2.5-0.5B's, a head, and rows longer than any.
        let weights = [
            (6144, 4096, PLAIN, 4),
            (4096, 4096, PLAIN, 4),
            (14_336, 4096, GATED, 1),
            (4096, 14_336, PLAIN, 4),
            (3072, 2048, PLAIN, 8),
            (2048, 8192, PLAIN, 8),
            (1152, 896, PLAIN, 4),
            (128_256, 2048, PLAIN, 1),
            (64, 1 << 20, PLAIN, 8),
            (8, 8, GATED, 1),
        ];
        for (columns, inner, epilogue, splits) in weights {
            for rows in 2..=64 {
                let of = of(rows, columns, inner, epilogue).expect("it fits");
                assert_eq!(of.splits(), splits, "{of:?}");
                assert!(of.shared >= LEAST_SLOTS * of.slot() && of.shared >= of.sums(), "{of:?}");
                assert!(of.beside() * (of.shared + RESERVED) <= 228 << 10, "{of:?}");
            }
        }
        assert_eq!(of(1, 64, 64, PLAIN), None, "one row has a kernel of its own");
        assert_eq!(of(65, 64, 64, PLAIN), None, "more rows than kernels take");
        assert_eq!(of(2, 64, 100, PLAIN), None, "rows that 16 bytes do not divide");
    }

    #[test]
    fn only_hopper_with_its_own_code_has_these_kernels() {
        for (target, device, shared) in [("sm_80", 90, 227 << 10), ("sm_80", 80, 163 << 10), ("sm_89", 89, 99 << 10)] {
            let capabilities = capabilities(target, device, shared);
            assert_eq!(Sizes::new(DType::F16, [8, 64, 64], PLAIN, &capabilities), None, "{target} on {device}");
        }
        let hopper = capabilities("sm_90a", 90, 227 << 10);
        assert_eq!(Sizes::new(DType::F32, [8, 64, 64], PLAIN, &hopper), None);
        assert_eq!(CODE.contains(".entry"), of_build(CODE).has_warpgroups());
    }

    #[test]
    fn the_blocks_of_a_multiprocessor_share_its_memory() {
        let shared =
            |rows, columns, inner, epilogue| of(rows, columns, inner, epilogue).map(|of| (of.beside(), of.shared));
        assert_eq!(shared(8, 64, 4096, PLAIN), Some((2, 9 * 72 * 128)), "as much as is counted");
        assert_eq!(shared(16, 4096, 4096, PLAIN), Some((3, 75 << 10)));
        assert_eq!(shared(64, 4096, 4096, PLAIN), Some((3, 75 << 10)));
        assert_eq!(shared(64, 14_336, 4096, GATED), Some((4, 56 << 10)));
        assert_eq!(shared(64, 128_256, 2048, PLAIN), Some((4, 56 << 10)));
    }
}
