//! Launches of `sample.cu`.

use candle::{bail, CudaDevice, Result};
use cudarc::driver::LaunchConfig;

use super::parameters::WORDS;
use crate::cuda::driver::kernels::{kernels, ptx, Capabilities};

kernels! {
    /// A token for each row of logits. Positions are one for all rows, or one per row if they have their `own`.
    Sample<T> = "opara_sample_" for [f16 bf16 f32] {
        rows: u32, vocab: u32, own: u32,
        logits: vector in T [rows * vocab],
        parameters: in u32 [rows * WORDS],
        positions: in u32 [if own == 1 { rows } else { 1 }],
        seen: opt u8 [rows * vocab],
        y: out u32 [rows],
    }

    /// Marks a token of each row.
    Mark = "opara_layout_mark_" for [u8] {
        rows: u32, vocab: u32,
        tokens: in u32 [rows],
        seen: kept u8 [rows * vocab],
    }
}

/// The launch shape for so many rows: a cluster of blocks has a row, where the code has any.
///
/// # Errors
/// A failed driver call.
pub(super) fn config(device: &CudaDevice, rows: usize) -> Result<LaunchConfig> {
    let shares = if Capabilities::of(device, ptx::SAMPLE)?.has_clusters() { 8 } else { 1 };
    Ok(LaunchConfig { grid_dim: (rows as u32, 1, shares), block_dim: (1024, 1, 1), shared_mem_bytes: 0 })
}

/// # Errors
/// More numbers than the kernels count.
pub(super) fn check(rows: usize, vocab: usize) -> Result<()> {
    if rows.max(vocab) > i32::MAX as usize / WORDS {
        bail!("{rows} rows of {vocab} logits are more than the kernels count")
    }
    Ok(())
}
