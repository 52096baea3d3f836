//! Launches of `product.cu`.

use candle::cuda_backend::WrapErr;
use candle::{bail, CudaDevice, DType, Result};
use cudarc::driver::sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
use cudarc::driver::{CudaSlice, CudaView, DeviceRepr, LaunchConfig, PushKernelArg};

use super::{address, arg_or_null, code_of, expect, function, target, wide};
use crate::cuda::driver::product::Product;
use crate::cuda::ops::ptx;

/// How a product falls to blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cuda) struct Block {
    /// A block makes so many rows for each of them, and [`COLUMNS`].
    warpgroups: usize,
    /// Blocks of a cluster that make the same, each from a part of what is added up.
    splits: usize,
}

/// `ACROSS` of `product.cu`.
const COLUMNS: usize = 64;

impl Block {
    /// Those that there are kernels for.
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

    /// Bytes of shared memory: three stages of rows of 128, of the operands and once more of the weight.
    fn shared(self) -> usize {
        3 * (2 * COLUMNS + self.rows()) * 128
    }
}

/// Those that there are kernels for, if they compute this product: one of f32 that may not be TF32, whose rows are whole numbers
/// of 16 bytes.
pub(in crate::cuda) fn blocks_of(of: &Product) -> &'static [Block] {
    /// Blocks along the rows, at most.
    const MOST: usize = 65_535;
    let is_known = of.dtype == DType::F32 && !of.tf32;
    let is_whole = [of.inner, of.columns].iter().all(|elements| elements.is_multiple_of(wide(of.dtype)));
    let are_countable = of.rows <= MOST * Block::ALL[0].rows() && of.columns.max(of.inner) <= i32::MAX as usize;
    // Only a device that has what the kernel is made of loads what is compiled for it.
    if is_known && is_whole && are_countable && target(ptx::PRODUCT) == "sm_90a" {
        &Block::ALL
    } else {
        &[]
    }
}

/// The product `of` the operands by such blocks, and what is done to it, into `y`.
///
/// # Errors
/// A product that is none of [`blocks_of`], slices that are too short or begin elsewhere than at multiples of 16 bytes, or a
/// launch that fails.
pub(in crate::cuda) fn product<T: DeviceRepr>(
    device: &CudaDevice,
    of: &Product,
    block: Block,
    x: &CudaView<T>,
    weight: &CudaView<T>,
    bias: Option<&CudaView<T>>,
    y: &mut CudaSlice<T>,
) -> Result<()> {
    let Product { rows, inner, columns, .. } = *of;
    let are_aligned =
        [Some(x), Some(weight), bias].into_iter().flatten().all(|at| address(at, device).is_multiple_of(16));
    if !blocks_of(of).contains(&block) || of.bias != bias.is_some() || !are_aligned {
        bail!("{of:?} is not one of tensor cores")
    }
    expect("the operand", x.len(), rows * inner)?;
    expect("the weight", weight.len(), columns * inner)?;
    expect("the bias", bias.map_or(columns, CudaView::len), columns)?;
    expect("the result", y.len(), rows * columns)?;
    let name = format!("opara_product_{}x{COLUMNS}_by{}_f32", block.rows(), block.splits);
    let function = function(device, &name, "product", ptx::PRODUCT)?;
    let shared = block.shared();
    function.set_attribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared as i32).w()?;
    let (sizes, activation) = ([rows, columns, inner].map(|n| n as u32), code_of(of.activation));
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
