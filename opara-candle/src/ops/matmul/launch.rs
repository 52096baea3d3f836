//! Launches of `matmul.cu`.

#![allow(unsafe_code)]

use candle::cuda_backend::WrapErr;
use candle::{bail, CudaDevice, DType, Result};
use cudarc::driver::{CudaSlice, CudaView, DeviceRepr, LaunchConfig, PushKernelArg};

use crate::cuda::driver::kernels::{address, allow_shared, arg_or_null, expect, function, ptx, wide, Capabilities};
use crate::cuda::driver::matmul::Matmul;

/// The tiling of a matmul.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Block {
    /// Warpgroups of a block; each computes 64 rows and [`COLUMNS`] columns.
    warpgroups: usize,
    /// Blocks of a cluster that split the sums of one tile (split-K).
    splits: usize,
}

/// `ACROSS` of `matmul.cu`.
const COLUMNS: usize = 64;

impl Block {
    /// The tilings that have a kernel.
    const ALL: [Self; 6] = [
        Self { warpgroups: 1, splits: 1 },
        Self { warpgroups: 1, splits: 2 },
        Self { warpgroups: 1, splits: 4 },
        Self { warpgroups: 1, splits: 8 },
        Self { warpgroups: 2, splits: 1 },
        Self { warpgroups: 2, splits: 2 },
    ];

    fn rows(self) -> usize {
        64 * self.warpgroups
    }

    /// Bytes of shared memory: three stages, each with 128 bytes per row of the operands and twice of the weight.
    fn shared(self) -> usize {
        3 * (2 * COLUMNS + self.rows()) * 128
    }
}

/// The tilings that can compute this matmul on the device. It must be f32 without TF32, with rows of a multiple of 16 bytes.
///
/// # Errors
/// A call of the driver that failed.
pub(super) fn blocks_of(device: &CudaDevice, of: &Matmul) -> Result<Vec<Block>> {
    Ok(blocks_for(of, &Capabilities::of(device, ptx::MATMUL)?))
}

fn blocks_for(of: &Matmul, capabilities: &Capabilities) -> Vec<Block> {
    /// Maximum number of blocks along the rows.
    const MOST: usize = 65_535;
    let is_known = of.dtype == DType::F32 && !of.tf32;
    let is_whole = [of.inner, of.columns].iter().all(|elements| elements.is_multiple_of(wide(of.dtype)));
    let are_countable = of.rows <= MOST * Block::ALL[0].rows() && of.columns.max(of.inner) <= i32::MAX as usize;
    if !(is_known && is_whole && are_countable && capabilities.has_warpgroups()) {
        return Vec::new();
    }
    Block::ALL.into_iter().filter(|block| capabilities.has_shared(block.shared())).collect()
}

/// What is left to libraries, because the code or the device lacks what the kernels need.
///
/// # Errors
/// A call of the driver that failed.
pub(in crate::ops) fn lacks(device: &CudaDevice) -> Result<Option<String>> {
    Ok(lacking(&Capabilities::of(device, ptx::MATMUL)?))
}

fn lacking(of: &Capabilities) -> Option<String> {
    let how = if of.is_hopper() { ": CUDA_COMPUTE_CAP=90 builds them" } else { "" };
    let said = format!("products of f32 are left to cuBLAS, without warpgroups ({}){how}", of.described());
    (!of.has_warpgroups()).then_some(said)
}

/// Launches the matmul and its epilogue with this tiling; the result goes to `y`.
///
/// # Errors
/// A matmul that is none of [`blocks_of`], slices that are too short or begin elsewhere than at multiples of 16 bytes, or a
/// launch that fails.
pub(super) fn matmul<T: DeviceRepr>(
    device: &CudaDevice,
    of: &Matmul,
    block: Block,
    x: &CudaView<T>,
    weight: &CudaView<T>,
    bias: Option<&CudaView<T>>,
    y: &mut CudaSlice<T>,
) -> Result<()> {
    let Matmul { rows, inner, columns, .. } = *of;
    let are_aligned =
        [Some(x), Some(weight), bias].into_iter().flatten().all(|at| address(at, device).is_multiple_of(16));
    if !blocks_of(device, of)?.contains(&block) || of.bias != bias.is_some() || !are_aligned {
        bail!("{of:?} is not one of tensor cores")
    }
    expect("the operand", x.len(), rows * inner)?;
    expect("the weight", weight.len(), columns * inner)?;
    expect("the bias", bias.map_or(columns, CudaView::len), columns)?;
    expect("the result", y.len(), rows * columns)?;
    let name = format!("opara_product_{}x{COLUMNS}_by{}_f32", block.rows(), block.splits);
    let function = function(device, &name, "matmul", ptx::MATMUL)?;
    let shared = block.shared();
    allow_shared(&function, shared)?;
    let (sizes, activation) = ([rows, columns, inner].map(|n| n as u32), of.activation.code());
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&function);
    for size in &sizes {
        launch.arg(size);
    }
    launch.arg(&activation).arg(x).arg(weight);
    arg_or_null(&mut launch, bias);
    launch.arg(y);
    let config = LaunchConfig {
        grid_dim: (columns.div_ceil(COLUMNS) as u32, rows.div_ceil(block.rows()) as u32, block.splits as u32),
        block_dim: (128 * block.warpgroups as u32, 1, 1),
        shared_mem_bytes: shared as u32,
    };
    // SAFETY: the arguments are those that the kernel declares. It reads `rows * inner` elements of `x`, `columns * inner` of the
    // weight and `columns` of a bias, nothing through null, and writes each of `rows * columns` of `y`: all were held against
    // the slices above, and where they begin. Shared memory is as large as the kernel divides it.
    unsafe { launch.launch(config) }.w()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::driver::kernels::capabilities::tests::capabilities;
    use crate::ops::Activation;

    #[test]
    fn there_are_blocks_where_code_and_device_have_warpgroups_and_room() {
        let of = Matmul {
            dtype: DType::F32,
            tf32: false,
            rows: 128,
            inner: 768,
            columns: 768,
            bias: true,
            activation: Activation::None,
        };
        let blocks = |target, device, shared| blocks_for(&of, &capabilities(target, device, shared)).len();
        assert_eq!(blocks("sm_90a", 90, 227 << 10), Block::ALL.len());
        assert_eq!(blocks("sm_90a", 90, 80 << 10), 4, "those of one warpgroup");
        for (target, device, shared) in
            [("sm_80", 90, 227 << 10), ("sm_80", 80, 163 << 10), ("sm_86", 86, 99 << 10), ("sm_89", 89, 99 << 10)]
        {
            assert_eq!(blocks(target, device, shared), 0, "{target} on {device}");
        }
        let half = Matmul { dtype: DType::F16, ..of };
        assert!(blocks_for(&half, &capabilities("sm_90a", 90, 227 << 10)).is_empty());
    }

    #[test]
    fn what_is_lacking_is_said() {
        let said = |target, device| lacking(&capabilities(target, device, 99 << 10));
        assert_eq!(said("sm_90a", 90), None);
        let on_hopper = said("sm_80", 90).expect("no code for warpgroups");
        assert!(on_hopper.contains("compiled for sm_80") && on_hopper.contains("CUDA_COMPUTE_CAP=90"), "{on_hopper}");
        let on_ampere = said("sm_86", 86).expect("no warpgroups");
        assert!(!on_ampere.contains("CUDA_COMPUTE_CAP"), "{on_ampere}");
    }

    #[test]
    fn code_has_the_kernels_exactly_if_its_target_has_warpgroups() {
        let has_kernels = ptx::MATMUL.contains(".entry");
        assert_eq!(has_kernels, capabilities_of_build(ptx::MATMUL).has_warpgroups());
        for block in Block::ALL.into_iter().filter(|_| has_kernels) {
            let name = format!(".entry opara_product_{}x{COLUMNS}_by{}_f32(", block.rows(), block.splits);
            assert!(ptx::MATMUL.contains(&name), "{name}");
        }
    }

    /// On the device that the code was compiled for.
    fn capabilities_of_build(code: &str) -> Capabilities {
        let target = code.lines().find_map(|line| line.strip_prefix(".target ")).unwrap_or_default();
        let number: String = target.chars().filter(char::is_ascii_digit).collect();
        capabilities(target, number.parse().unwrap_or(0), 99 << 10)
    }
}
