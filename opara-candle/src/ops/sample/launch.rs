//! Launches of `sample.cu`.

#![allow(unsafe_code)]

use candle::cuda_backend::WrapErr;
use candle::{bail, CudaDevice, DType, Result};
use cudarc::driver::{CudaSlice, CudaView, CudaViewMut, DeviceRepr, LaunchConfig, PushKernelArg};

use super::parameters::WORDS;
use crate::cuda::driver::kernels::{arg_or_null, blocks, expect, function, ptx, Capabilities};

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
    expect("the logits", of.logits.len(), rows * vocab)?;
    expect("the parameters", of.parameters.len(), rows * WORDS)?;
    expect("the positions", of.positions.len(), if has_own_positions { rows } else { 1 })?;
    expect("the marks", of.seen.as_ref().map_or(rows * vocab, CudaView::len), rows * vocab)?;
    expect("the tokens", y.len(), rows)?;
    if rows * vocab == 0 {
        return Ok(());
    }
    let function = function(device, &format!("opara_sample_{}", dtype.as_str()), ptx::SAMPLE)?;
    // A cluster of them has a row, where the code has any.
    let shares = if Capabilities::of(device, ptx::SAMPLE)?.has_clusters() { 8 } else { 1 };
    let (rows, vocab, own) = (rows as u32, vocab as u32, u32::from(has_own_positions));
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&function);
    launch.arg(&rows).arg(&vocab).arg(&own).arg(&of.logits).arg(&of.parameters).arg(&of.positions);
    arg_or_null(&mut launch, of.seen.as_ref());
    launch.arg(y);
    let config = LaunchConfig { grid_dim: (rows, 1, shares), block_dim: (BLOCK, 1, 1), shared_mem_bytes: 0 };
    // SAFETY: the arguments match the kernel's parameters. It reads `rows * vocab` logits and, unless the pointer is null, marks;
    // the words of each row's parameters; one position, or one per row. It writes `rows` tokens. All lengths were checked above,
    // and fit 31 bits.
    unsafe { launch.launch(config) }.w()?;
    Ok(())
}

/// Marks a token of each row.
///
/// # Errors
/// Slices that are too short, more numbers than 31 bits count, or a launch that fails.
pub(super) fn mark(
    device: &CudaDevice,
    (rows, vocab): (usize, usize),
    tokens: &CudaView<u32>,
    seen: &mut CudaViewMut<u8>,
) -> Result<()> {
    check(rows, vocab)?;
    expect("the tokens", tokens.len(), rows)?;
    expect("the marks", seen.len(), rows * vocab)?;
    if rows * vocab == 0 {
        return Ok(());
    }
    let function = function(device, "opara_mark_u8", ptx::SAMPLE)?;
    let sizes = [rows as u32, vocab as u32];
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&function);
    launch.arg(&sizes[0]).arg(&sizes[1]).arg(tokens).arg(seen);
    // SAFETY: the arguments match the kernel's parameters. It reads `rows` tokens and writes marks of tokens below
    // `vocab` in as many rows. Both lengths were checked above.
    unsafe { launch.launch(blocks(rows)) }.w()?;
    Ok(())
}

fn check(rows: usize, vocab: usize) -> Result<()> {
    if rows.max(vocab) > i32::MAX as usize / WORDS {
        bail!("{rows} rows of {vocab} logits are more than the kernels count")
    }
    Ok(())
}
