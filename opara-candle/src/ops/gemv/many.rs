//! Launches of `gemv_many.cuh`: products with 65 to 256 rows of 16 bits, with the bits of [`warpgroup`](super::warpgroup).

use candle::{CudaDevice, DType, Result};
use cudarc::driver::{CudaSlice, CudaView, DeviceRepr, LaunchConfig};

use super::launch::{Epilogue, Operands};
use super::warpgroup::{self, LINE, RESERVED};
use crate::cuda::driver::kernels::{kernels, ptx, Capabilities};

kernels! {
    /// `activation(x * weightᵀ + bias) + residual` for `rows` rows of `x`.
    Product<T> = "opara_matmul_many_" for [f16 bf16] needs [Warpgroups Boxes] {
        rows: u32, columns: u32, inner: u32, activation: i32,
        x: matrix T [rows, inner, at_once],
        weight: early matrix T [columns, inner, ROWS_OF_BOX],
        bias: opt T [columns],
        residual: opt T [rows * columns],
        y: out T [rows * columns],
        /// Rows that a block takes.
        at_once: host,
    }

    /// `activation(x * gateᵀ) * (x * upᵀ)`, where a weight is `gate` and then `up`.
    GatedProduct<T> = "opara_matmul_gated_many_" for [f16 bf16] needs [Warpgroups Boxes] {
        rows: u32, columns: u32, inner: u32, activation: i32,
        x: matrix T [rows, inner, at_once],
        weight: early matrix T [2 * columns, inner, ROWS_OF_BOX],
        bias: opt T [2 * columns],
        y: out T [rows * columns],
        /// Rows that a block takes.
        at_once: host,
    }
}

/// Rows of the weight that are copied together, and that a block takes, as in the header.
const ROWS_OF_BOX: usize = 64;
const ROWS: usize = 128;

/// Rows of `x` that a block takes: two blocks of the first share a multiprocessor.
const AT_ONCE: [usize; 2] = [128, 256];

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
    let of = |rows| Sizes::new(dtype, [rows, ROWS, ROWS], Epilogue::Added(crate::ops::Activation::None), &capabilities);
    let most = if of(AT_ONCE[1]).is_some() { AT_ONCE[1] } else { warpgroup::MOST };
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
        let are_many = (warpgroup::MOST + 1..=AT_ONCE[1]).contains(&rows);
        if !are_many || !Product::<()>::is_for(dtype) || !Product::<()>::runs_on(capabilities) {
            return None;
        }
        let mut of = Self { dtype, rows, columns, inner, epilogue, splits: few.splits(), shared: 0 };
        let beside = AT_ONCE[1] / of.at_once();
        of.shared = (capabilities.shared_beside(0) + RESERVED) / beside - RESERVED - BARRIERS;
        let (slot, sums) = ((ROWS + of.at_once()) * LINE, of.at_once() * (ROWS + 4) * size_of::<f32>());
        (of.shared >= 2 * slot && of.shared >= sums).then_some(of)
    }

    /// Rows of `x` that a block takes. More are faster where no blocks have to be beside each other.
    fn at_once(&self) -> usize {
        if self.splits == 1 && self.rows > AT_ONCE[0] {
            AT_ONCE[1]
        } else {
            AT_ONCE[0]
        }
    }

    /// The variant of the kernel, and its launch shape.
    fn launch(&self) -> (String, LaunchConfig) {
        let (at_once, splits) = (self.at_once(), self.splits);
        let sets = self.columns.div_ceil(ROWS / self.epilogue.rows());
        let config = LaunchConfig {
            grid_dim: (sets as u32, self.rows.div_ceil(at_once) as u32, splits as u32),
            block_dim: (256, 1, 1),
            shared_mem_bytes: self.shared as u32,
        };
        (format!("{at_once}_by{splits}_{}", self.dtype.as_str()), config)
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
    let ((variant, config), at_once, y) = (of.launch(), of.at_once(), y.as_view_mut());
    let code = if dtype == DType::F16 { ptx::GEMV_MANY_F16 } else { ptx::GEMV_MANY_BF16 };
    match of.epilogue {
        Epilogue::Added(activation) => {
            let activation = activation.code();
            Product { rows, columns, inner, activation, x, weight, bias, residual, y, at_once }
                .launch(device, &variant, code, config)
        }
        Epilogue::Gated(activation) => {
            let activation = activation.code();
            GatedProduct { rows, columns, inner, activation, x, weight, bias, y, at_once }
                .launch(device, &variant, code, config)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::driver::kernels::capabilities::tests::capabilities;
    use crate::ops::Activation;

    const PLAIN: Epilogue = Epilogue::Added(Activation::None);
    const GATED: Epilogue = Epilogue::Gated(Activation::Silu);

    fn of(rows: usize, columns: usize, inner: usize, epilogue: Epilogue) -> Option<Sizes> {
        Sizes::new(DType::BF16, [rows, columns, inner], epilogue, &capabilities("sm_90a", 90, 227 << 10))
    }

    #[test]
    fn all_from_65_to_256_rows_have_a_kernel_with_the_splits_of_fewer() {
        // Llama-3.1-8B's, a head, rows longer than any, and small ones.
        for (columns, inner, epilogue, splits) in [
            (6144, 4096, PLAIN, 4),
            (14_336, 4096, GATED, 1),
            (128_256, 2048, PLAIN, 1),
            (64, 1 << 20, PLAIN, 8),
            (8, 8, GATED, 1),
        ] {
            for rows in 65..=256 {
                let of = of(rows, columns, inner, epilogue).expect("it fits");
                let (variant, config) = of.launch();
                assert!(
                    variant.contains(&format!("_by{splits}_")) && config.grid_dim.2 as usize == splits,
                    "{variant}"
                );
                assert!(config.grid_dim.1 as usize * of.at_once() >= rows, "{of:?}");
                let beside = AT_ONCE[1] / of.at_once();
                assert!(beside * (of.shared + RESERVED + BARRIERS) <= 228 << 10, "{of:?}");
            }
        }
        assert_eq!(of(64, 64, 64, PLAIN), None, "few rows have other kernels");
        assert_eq!(of(257, 64, 64, PLAIN), None, "more rows than kernels take");
        assert_eq!(of(65, 64, 100, PLAIN), None, "rows that 16 bytes do not divide");
        let ampere = capabilities("sm_80", 90, 227 << 10);
        assert_eq!(Sizes::new(DType::F16, [128, 64, 64], PLAIN, &ampere), None, "code for older devices");
    }
}
