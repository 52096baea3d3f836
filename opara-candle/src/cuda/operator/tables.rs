//! Launches over many tensors, each of which has some of the blocks: `tables.cuh`.

use std::array::from_fn;

use candle::cuda_backend::CudaDType;
use candle::{bail, Layout, Result, Storage, Tensor, WithDType};
use cudarc::driver::{CudaView, LaunchConfig};
use parking_lot::RwLockReadGuard;

use super::elements;
use crate::cuda::driver::kernels::wide;

/// Tensors of a launch.
pub(crate) const TENSORS: usize = 64;

/// Threads of a block, and vectors of 16 bytes that a thread changes.
const THREADS: usize = 256;
const VECTORS: usize = 2;

/// The launch of this number of blocks.
pub(crate) fn of_blocks(blocks: usize) -> LaunchConfig {
    LaunchConfig { grid_dim: (blocks as u32, 1, 1), block_dim: (THREADS as u32, 1, 1), shared_mem_bytes: 0 }
}

/// The number of blocks that change this number of elements.
pub(crate) fn blocks_of<T: WithDType>(numel: usize) -> usize {
    numel.div_ceil(THREADS * VECTORS * wide(T::DTYPE))
}

/// The blocks of a launch: each tensor has those from the end of the one before to its own.
pub(crate) struct Blocks {
    /// Elements of each tensor.
    pub numels: [usize; TENSORS],
    /// The end of each tensor's blocks.
    pub ends: [usize; TENSORS],
    /// How many there are.
    pub all: usize,
}

impl Blocks {
    /// # Errors
    /// A tensor of more elements than 31 bits count.
    pub fn of<'a>(tensors: impl Iterator<Item = &'a Tensor>, blocks: impl Fn(usize) -> usize) -> Result<Self> {
        let mut of = Self { numels: [0; TENSORS], ends: [0; TENSORS], all: 0 };
        for (at, tensor) in tensors.enumerate() {
            let numel = tensor.elem_count();
            if numel > i32::MAX as usize {
                bail!("{numel} elements are more than the kernel counts")
            }
            of.all += blocks(numel);
            of.numels[at] = numel;
            of.ends[at..].fill(of.all);
        }
        Ok(of)
    }
}

/// The elements of contiguous tensors.
pub(crate) fn views<'a, T: CudaDType>(
    held: &'a [(RwLockReadGuard<'_, Storage>, &Layout)],
) -> Result<Vec<CudaView<'a, T>>> {
    let view = |(storage, layout): &'a (RwLockReadGuard<'_, Storage>, &Layout)| match &**storage {
        Storage::Cuda(storage) => elements(storage, layout),
        _ => bail!("an operand is not on the GPU"),
    };
    held.iter().map(view).collect()
}

/// One row for each tensor of a launch.
pub(crate) fn table<'a, T>(views: &'a [CudaView<'a, T>]) -> [Option<&'a CudaView<'a, T>>; TENSORS] {
    from_fn(|at| views.get(at))
}
