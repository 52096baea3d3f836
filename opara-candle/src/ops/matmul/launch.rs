//! Launches of `matmul.cu`.

use candle::{bail, CudaDevice, Result};
use cudarc::driver::{CudaSlice, CudaView, DeviceRepr, LaunchConfig};

use crate::cuda::driver::kernels::{kernels, ptx, wide, Capabilities};
use crate::cuda::driver::matmul::Matmul;
use crate::ops::ProductPrecision;

kernels! {
    /// `activation(x * weightᵀ + bias)`.
    Product<T> = "opara_matmul_product_" for [f32] needs [Warpgroups] {
        rows: u32, columns: u32, inner: u32, activation: i32,
        x: wide in T [rows * inner],
        weight: wide in T [columns * inner],
        bias: wide opt T [columns],
        y: out T [rows * columns],
    }
}

/// The tile of the output that a block computes, and the K-split.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::ops) struct Tile {
    /// Warpgroups of a block. Each computes 64 rows and [`COLUMNS`] columns of the tile.
    warpgroups: usize,
    /// K-split: the blocks of a cluster compute the same tile, each from a part of the inner dimension.
    splits: usize,
}

/// `TILE_COLUMNS` of `matmul.cu`.
const COLUMNS: usize = 64;

impl Tile {
    /// All tiles with a compiled kernel.
    const ALL: [Self; 6] = [
        Self { warpgroups: 1, splits: 1 },
        Self { warpgroups: 1, splits: 2 },
        Self { warpgroups: 1, splits: 4 },
        Self { warpgroups: 1, splits: 8 },
        Self { warpgroups: 2, splits: 1 },
        Self { warpgroups: 2, splits: 2 },
    ];

    /// May it be the fastest one for a matmul, by enough to leave out bits? The inner dimension is split to have enough blocks.
    pub fn suits(self, of: &Matmul) -> bool {
        !of.is_tiny() && (self.splits == 1 || !of.is_large())
    }

    /// Rows of the output.
    fn rows(self) -> usize {
        64 * self.warpgroups
    }

    /// Bytes of shared memory: three stages, each with tiles of the operands and the low parts of the weight tile, in
    /// rows of 128 bytes.
    fn shared(self) -> usize {
        3 * (2 * COLUMNS + self.rows()) * 128
    }

    /// The variant of a kernel, and its launch shape for a matmul.
    pub fn launch(self, of: &Matmul) -> (String, LaunchConfig) {
        let variant = format!("{}x{COLUMNS}_by{}_f32", self.rows(), self.splits);
        let blocks = [of.columns.div_ceil(COLUMNS), of.rows.div_ceil(self.rows()), self.splits].map(|n| n as u32);
        let config = LaunchConfig {
            grid_dim: blocks.into(),
            block_dim: (128 * self.warpgroups as u32, 1, 1),
            shared_mem_bytes: self.shared() as u32,
        };
        (variant, config)
    }
}

/// The tiles whose kernels support this matmul on the device: of f32 as several numbers of TF32, with rows that are
/// multiples of 16 bytes.
///
/// # Errors
/// A failed driver call.
pub(in crate::ops) fn tiles_for(device: &CudaDevice, of: &Matmul) -> Result<Vec<Tile>> {
    Ok(supported_tiles(of, &Capabilities::of(device, ptx::MATMUL)?))
}

fn supported_tiles(of: &Matmul, capabilities: &Capabilities) -> Vec<Tile> {
    /// The maximal number of blocks along the rows.
    const MAX_BLOCKS: usize = 65_535;
    let is_known = Product::<()>::is_for(of.dtype) && of.precision == ProductPrecision::High;
    let is_whole = [of.inner, of.columns].iter().all(|elements| elements.is_multiple_of(wide(of.dtype)));
    let are_countable = of.rows <= MAX_BLOCKS * Tile::ALL[0].rows() && of.columns.max(of.inner) <= i32::MAX as usize;
    if !(is_known && is_whole && are_countable && Product::<()>::runs_on(capabilities)) {
        return Vec::new();
    }
    Tile::ALL.into_iter().filter(|tile| capabilities.has_shared(tile.shared())).collect()
}

/// The reason why f32 matmuls use libraries only, if the compiled code or the device lacks warpgroup instructions.
///
/// # Errors
/// A failed driver call.
pub(in crate::ops) fn lacks(device: &CudaDevice) -> Result<Option<String>> {
    Ok(lacking(&Capabilities::of(device, ptx::MATMUL)?))
}

fn lacking(of: &Capabilities) -> Option<String> {
    let advice = if of.is_hopper() { ": CUDA_COMPUTE_CAP=90 builds them" } else { "" };
    let said = format!(
        "f32 matmuls use cuBLAS only: the library's kernels need warpgroup instructions ({}){advice}",
        of.described()
    );
    (!Product::<()>::runs_on(of)).then_some(said)
}

/// The matmul `of` the operands with its epilogue, into `y`.
///
/// # Errors
/// A matmul that the tile does not support, slices that are too short or not aligned to 16 bytes, or a failed launch.
pub(super) fn matmul<T: DeviceRepr>(
    device: &CudaDevice,
    of: &Matmul,
    tile: Tile,
    x: &CudaView<T>,
    weight: &CudaView<T>,
    bias: Option<&CudaView<T>>,
    y: &mut CudaSlice<T>,
) -> Result<()> {
    let Matmul { rows, inner, columns, .. } = *of;
    if !tiles_for(device, of)?.contains(&tile) || of.bias != bias.is_some() {
        bail!("no kernel with {tile:?} supports {of:?} with these operands")
    }
    let ((variant, config), y) = (tile.launch(of), y.as_view_mut());
    Product { rows, columns, inner, activation: of.activation.code(), x, weight, bias, y }.launch(
        device,
        &variant,
        ptx::MATMUL,
        config,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle::DType;

    use crate::cuda::driver::kernels::capabilities::tests::{capabilities, of_build};
    use crate::ops::Activation;

    #[test]
    fn tiles_need_warpgroup_code_a_hopper_device_and_enough_shared_memory() {
        let of = Matmul {
            dtype: DType::F32,
            precision: ProductPrecision::High,
            rows: 128,
            inner: 768,
            columns: 768,
            bias: true,
            activation: Activation::None,
        };
        let tiles = |target, device, shared| supported_tiles(&of, &capabilities(target, device, shared)).len();
        assert_eq!(tiles("sm_90a", 90, 227 << 10), Tile::ALL.len());
        assert_eq!(tiles("sm_90a", 90, 80 << 10), 4, "tiles of one warpgroup");
        for (target, device, shared) in
            [("sm_80", 90, 227 << 10), ("sm_80", 80, 163 << 10), ("sm_86", 86, 99 << 10), ("sm_89", 89, 99 << 10)]
        {
            assert_eq!(tiles(target, device, shared), 0, "{target} on {device}");
        }
        let half = Matmul { dtype: DType::F16, ..of };
        assert!(supported_tiles(&half, &capabilities("sm_90a", 90, 227 << 10)).is_empty());
    }

    #[test]
    fn large_matmuls_are_not_split_and_tiny_ones_keep_all_bits() {
        let of = |rows: usize| Matmul {
            dtype: DType::F32,
            precision: ProductPrecision::High,
            rows,
            inner: 768,
            columns: 512,
            bias: true,
            activation: Activation::None,
        };
        let suiting = |rows: usize| Tile::ALL.into_iter().filter(|tile| tile.suits(&of(rows))).count();
        assert_eq!([1, 2, 255 * 64, 255 * 64 + 1, 256 * 64].map(suiting), [0, 6, 6, 2, 2]);
    }

    #[test]
    fn report_says_why_f32_matmuls_use_cublas() {
        let said = |target, device| lacking(&capabilities(target, device, 99 << 10));
        assert_eq!(said("sm_90a", 90), None);
        let on_hopper = said("sm_80", 90).expect("no code for warpgroups");
        assert!(on_hopper.contains("compiled for sm_80") && on_hopper.contains("CUDA_COMPUTE_CAP=90"), "{on_hopper}");
        let on_ampere = said("sm_86", 86).expect("no warpgroups");
        assert!(!on_ampere.contains("CUDA_COMPUTE_CAP"), "{on_ampere}");
    }

    #[test]
    fn matmul_kernels_are_compiled_exactly_for_targets_with_warpgroups() {
        let has_kernels = ptx::MATMUL.contains(".entry");
        assert_eq!(has_kernels, of_build(ptx::MATMUL).has_warpgroups());
        for tile in Tile::ALL.into_iter().filter(|_| has_kernels) {
            for kind in ["matmul_product", "convolution"] {
                let name = format!(".entry opara_{kind}_{}x{COLUMNS}_by{}_f32(", tile.rows(), tile.splits);
                assert!(ptx::MATMUL.contains(&name), "{name}");
            }
        }
    }
}
