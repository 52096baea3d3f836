//! Launches of `sample.cu`.

use candle::{bail, CudaDevice, DType, Result};
use cudarc::driver::{CudaSlice, CudaView, CudaViewMut, DeviceRepr, LaunchConfig};

use super::parameters::WORDS;
use crate::cuda::driver::kernels::{blocks, kernels, ptx, Capabilities};

kernels! {
    /// A token for each row of logits. Positions are one for all rows, or one per row if they have their `own`.
    Sample<T> = "opara_sample_" {
        rows: u32, vocab: u32, own: u32,
        logits: vector in T [rows * vocab],
        parameters: in u32 [rows * WORDS],
        positions: in u32 [if own == 1 { rows } else { 1 }],
        seen: opt u8 [rows * vocab],
        y: out u32 [rows],
    }

    /// Marks a token of each row.
    Mark = "opara_layout_mark_" {
        rows: u32, vocab: u32,
        tokens: in u32 [rows],
        seen: kept u8 [rows * vocab],
    }
}

/// Operands of `sample`.
pub(super) struct Operands<'a, T> {
    pub logits: CudaView<'a, T>,
    pub parameters: CudaView<'a, u32>,
    /// One position for all rows, or one per row.
    pub positions: CudaView<'a, u32>,
    pub seen: Option<CudaView<'a, u8>>,
}

/// Draws a token for each row of logits.
///
/// # Errors
/// Slices that are too short, more numbers than 31 bits count, or a launch that fails.
pub(super) fn sample<T: DeviceRepr>(
    device: &CudaDevice,
    dtype: DType,
    (rows, vocab): (usize, usize),
    has_own_positions: bool,
    of: &Operands<T>,
    y: &mut CudaSlice<u32>,
) -> Result<()> {
    const BLOCK: u32 = 1024;
    check(rows, vocab)?;
    if rows * vocab == 0 {
        return Ok(());
    }
    // A cluster of them has a row, where the code has any.
    let shares = if Capabilities::of(device, ptx::SAMPLE)?.has_clusters() { 8 } else { 1 };
    let config = LaunchConfig { grid_dim: (rows as u32, 1, shares), block_dim: (BLOCK, 1, 1), shared_mem_bytes: 0 };
    let Operands { logits, parameters, positions, seen } = of;
    let (own, seen, y) = (has_own_positions.into(), seen.as_ref(), y.as_view_mut());
    Sample { rows, vocab, own, logits, parameters, positions, seen, y }.launch(
        device,
        dtype.as_str(),
        ptx::SAMPLE,
        config,
    )
}

/// Marks a token of each row.
///
/// # Errors
/// Slices that are too short, more numbers than 31 bits count, or a launch that fails.
pub(super) fn mark(
    device: &CudaDevice,
    (rows, vocab): (usize, usize),
    tokens: &CudaView<u32>,
    seen: CudaViewMut<u8>,
) -> Result<()> {
    check(rows, vocab)?;
    if rows * vocab == 0 {
        return Ok(());
    }
    Mark { rows, vocab, tokens, seen }.launch(device, "u8", ptx::SAMPLE, blocks(rows))
}

fn check(rows: usize, vocab: usize) -> Result<()> {
    if rows.max(vocab) > i32::MAX as usize / WORDS {
        bail!("{rows} rows of {vocab} logits are more than the kernels count")
    }
    Ok(())
}
