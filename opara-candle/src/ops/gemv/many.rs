//! Launches of `gemv_many.cuh`: products with 65 to 256 rows of 16 bits, with the bits of [`warpgroup`](super::warpgroup).

use candle::{CudaDevice, DType, Result};
use cudarc::driver::{CudaSlice, CudaView, DeviceRepr, LaunchConfig};

use super::launch::{Epilogue, Operands, PROCESSORS};
use super::warpgroup::{self, LINE, RESERVED, THREADS};
use crate::cuda::driver::kernels::{kernels, ptx, Capabilities};
use crate::ops::Activation;

kernels! {
    /// `activation(x * weightᵀ + bias) + residual` for `rows` rows of `x`.
    Product<T> = "opara_matmul_many_" for [f16 bf16] needs [Warpgroups Boxes] {
        rows: u32, columns: u32, inner: u32, activation: i32,
        x: matrix T [rows, inner, width],
        weight: early matrix T [columns, inner, ROWS_OF_BOX],
        bias: opt T [columns],
        residual: opt T [rows * columns],
        y: out T [rows * columns],
        /// Rows of the kernel.
        width: host,
    }

    /// `activation(x * gateᵀ) * (x * upᵀ)`, where a weight is `gate` and then `up`.
    GatedProduct<T> = "opara_matmul_gated_many_" for [f16 bf16] needs [Warpgroups Boxes] {
        rows: u32, columns: u32, inner: u32, activation: i32,
        x: matrix T [rows, inner, width],
        weight: early matrix T [2 * columns, inner, ROWS_OF_BOX],
        bias: opt T [2 * columns],
        y: out T [rows * columns],
        /// Rows of the kernel.
        width: host,
    }
}

/// Rows of the weight that are copied together, which each warpgroup takes.
const ROWS_OF_BOX: usize = 64;

/// Rows of the weight that a block takes.
const ROWS: [usize; 2] = [128, 192];

/// Rows of `x` that kernels take at most. Two blocks of the first share a multiprocessor.
const WIDTHS: [usize; 2] = [128, 256];
const MOST: usize = WIDTHS[1];

/// Multiprocessors that clusters of several find at the same time: they lie in one group of 16 or 18, some of which are switched off (H200:
/// 30 clusters of four, 15 of eight).
const PROCESSORS_OF_CLUSTERS: usize = 120;

/// Bytes of a block's barriers: dynamic memory begins behind them.
const BARRIERS: usize = 1 << 10;

/// Code that says what the kernels were compiled for.
const CODE: &str = ptx::GEMV_MANY_BF16;

/// Rows up to which a row's bits do not depend on how many there are, if each is a text's; `None` where there are no such kernels.
///
/// # Errors
/// A failed driver call.
pub(in crate::ops) fn alike_rows(dtype: DType, device: &CudaDevice) -> Result<Option<usize>> {
    let capabilities = Capabilities::of(device, CODE)?;
    let of = Sizes::new(dtype, [MOST, ROWS[0], ROWS[0]], Epilogue::Added(Activation::None), &capabilities);
    let most = if of.is_some() { MOST } else { warpgroup::MOST };
    Ok(warpgroup::is_known(dtype, &capabilities).then_some(most))
}

/// Sizes of such a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sizes {
    dtype: DType,
    /// Rows of `x`.
    rows: usize,
    /// Results of each.
    columns: usize,
    /// Elements of a row.
    inner: usize,
    epilogue: Epilogue,
    /// Blocks of a cluster, which share the inner dimension.
    splits: usize,
    /// Bytes of shared memory that a block takes.
    shared: usize,
}

impl Sizes {
    /// Of these sizes, if there is a kernel for them. Where there is one for few rows, there is one for all.
    pub fn new(
        dtype: DType,
        [rows, columns, inner]: [usize; 3],
        epilogue: Epilogue,
        capabilities: &Capabilities,
    ) -> Option<Self> {
        let few = warpgroup::Sizes::new(dtype, [warpgroup::MOST, columns, inner], epilogue, capabilities)?;
        let are_many = (warpgroup::MOST + 1..=MOST).contains(&rows);
        if !are_many || !Product::<()>::is_for(dtype) || !Product::<()>::runs_on(capabilities) {
            return None;
        }
        let mut of = Self { dtype, rows, columns, inner, epilogue, splits: few.splits(), shared: 0 };
        let beside = MOST / of.width();
        of.shared = (capabilities.shared_beside(0) + RESERVED) / beside - RESERVED - BARRIERS;
        let (slot, sums) = ((of.at_once() + of.width()) * LINE, of.width() * (of.at_once() + 4) * size_of::<f32>());
        (of.shared >= 2 * slot && of.shared >= sums).then_some(of)
    }

    /// Rows of the kernel.
    fn width(&self) -> usize {
        if self.rows > WIDTHS[0] {
            WIDTHS[1]
        } else {
            WIDTHS[0]
        }
    }

    /// Sets of so many rows of the weight, of which each has a cluster.
    fn clusters(&self, at_once: usize) -> usize {
        self.columns.div_ceil(at_once / self.epilogue.rows())
    }

    /// Rows of the weight that a block takes: those with which clusters that run one after the other take the least. A block takes some time
    /// besides, and where many run one after the other, the last ones hardly count.
    fn at_once(&self) -> usize {
        if self.width() < MOST || matches!(self.epilogue, Epilogue::Gated(_)) {
            return ROWS[0];
        }
        let beside = if self.splits == 1 { PROCESSORS } else { PROCESSORS_OF_CLUSTERS / self.splits };
        let time = |at_once: &usize| {
            let clusters = self.clusters(*at_once);
            let in_turns = if clusters > 4 * beside { clusters } else { clusters.next_multiple_of(beside) };
            in_turns * (at_once + 8)
        };
        ROWS.into_iter().min_by_key(time).unwrap_or(ROWS[0])
    }

    /// The variant of the kernel, and its launch shape.
    fn launch(&self) -> (String, LaunchConfig) {
        let (width, at_once, splits) = (self.width(), self.at_once(), self.splits);
        let config = LaunchConfig {
            grid_dim: (self.clusters(at_once) as u32, 1, splits as u32),
            block_dim: ((at_once / ROWS_OF_BOX * THREADS) as u32, 1, 1),
            shared_mem_bytes: self.shared as u32,
        };
        (format!("{width}_of{at_once}_by{splits}_{}", self.dtype.as_str()), config)
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
    let Sizes { dtype, rows, columns, inner, .. } = *of;
    let Operands { weight, bias, residual, .. } = *operands;
    let ((variant, config), width, y) = (of.launch(), of.width(), y.as_view_mut());
    let code = if dtype == DType::F16 { ptx::GEMV_MANY_F16 } else { ptx::GEMV_MANY_BF16 };
    match of.epilogue {
        Epilogue::Added(activation) => {
            let activation = activation.code();
            Product { rows, columns, inner, activation, x, weight, bias, residual, y, width }
                .launch(device, &variant, code, config)
        }
        Epilogue::Gated(activation) => {
            let activation = activation.code();
            GatedProduct { rows, columns, inner, activation, x, weight, bias, y, width }
                .launch(device, &variant, code, config)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::driver::kernels::capabilities::tests::capabilities;

    const PLAIN: Epilogue = Epilogue::Added(Activation::None);
    const GATED: Epilogue = Epilogue::Gated(Activation::Silu);

    fn of(rows: usize, columns: usize, inner: usize, epilogue: Epilogue) -> Option<Sizes> {
        Sizes::new(DType::BF16, [rows, columns, inner], epilogue, &capabilities("sm_90a", 90, 227 << 10))
    }

    #[test]
    fn all_from_65_to_256_rows_have_a_kernel_with_the_splits_of_fewer() {
        // Llama-3.1-8B's, a head, rows longer than any, and small ones; with the rows of the weight that a block takes of 256 rows.
        for (columns, inner, epilogue, splits, at_once) in [
            (6144, 4096, PLAIN, 4, 128),
            (4096, 4096, PLAIN, 4, 192),
            (14_336, 4096, GATED, 1, 128),
            (4096, 14_336, PLAIN, 4, 192),
            (2048, 8192, PLAIN, 8, 192),
            (128_256, 2048, PLAIN, 1, 192),
            (64, 1 << 20, PLAIN, 8, 128),
            (8, 8, GATED, 1, 128),
        ] {
            for rows in 65..=256 {
                let of = of(rows, columns, inner, epilogue).expect("it fits");
                let (width, at_once) = if rows <= 128 { (128, 128) } else { (256, at_once) };
                let (variant, config) = of.launch();
                assert_eq!(variant, format!("{width}_of{at_once}_by{splits}_bf16"), "{of:?}");
                assert_eq!(config.block_dim.0 as usize, 2 * at_once);
                assert!(256 / width * (of.shared + RESERVED + BARRIERS) <= 228 << 10, "{of:?}");
            }
        }
        assert_eq!(of(64, 64, 64, PLAIN), None, "few rows have other kernels");
        assert_eq!(of(257, 64, 64, PLAIN), None, "more rows than kernels take");
        assert_eq!(of(65, 64, 100, PLAIN), None, "rows that 16 bytes do not divide");
        let ampere = capabilities("sm_80", 90, 227 << 10);
        assert_eq!(Sizes::new(DType::F16, [128, 64, 64], PLAIN, &ampere), None, "code for older devices");
    }
}
