//! Launches of `error_totals.cu`.

#![allow(unsafe_code)]

use candle::cuda_backend::WrapErr;
use candle::{CudaDevice, DType, Result};
use cudarc::driver::{CudaView, DeviceRepr, LaunchConfig, PushKernelArg};

use crate::cuda::driver::kernels::{expect, function, ptx, written};

/// `THREADS` of `error_totals.cu`.
const THREADS: usize = 256;

/// The totals of each block.
pub(super) struct OfBlocks {
    /// Elements where all three are finite, the sum of the references' squares there, and results that are not what they may be.
    pub moments: Vec<[f64; 3]>,
    /// The sums of squared errors, and the largest errors, candle's first.
    pub errors: Vec<[f64; 4]>,
}

/// Totals of the errors of two results, in units of `unit * max(|r|, rms r)`, where `r` is the reference.
///
/// # Errors
/// Slices of different lengths, or a failed launch.
pub(super) fn error_totals<T: DeviceRepr>(
    device: &CudaDevice,
    dtype: DType,
    unit: f64,
    reference: &CudaView<f64>,
    [candle, other]: [&CudaView<T>; 2],
) -> Result<OfBlocks> {
    /// As many as fill a large device a few times.
    const MAX_BLOCKS: usize = 1024;
    let numel = reference.len();
    expect("candle's result", candle.len(), numel)?;
    expect("the other result", other.len(), numel)?;
    let blocks = numel.div_ceil(THREADS).clamp(1, MAX_BLOCKS);
    let config =
        LaunchConfig { grid_dim: (blocks as u32, 1, 1), block_dim: (THREADS as u32, 1, 1), shared_mem_bytes: 0 };
    let of = |kernel: &str| function(device, &format!("opara_error_{kernel}_{}", dtype.as_str()), ptx::ERROR_TOTALS);
    let (of_moments, of_totals) = (of("moments")?, of("totals")?);
    let stream = device.cuda_stream();
    let moments = written::<f64>(device, 3 * blocks, |moments| {
        let mut launch = stream.launch_builder(&of_moments);
        launch.arg(&numel).arg(reference).arg(candle).arg(other).arg(moments);
        // SAFETY: the arguments match the kernel's declaration. It reads `numel` elements of all three operands, of which `expect`
        // checked that they have as many, and writes three numbers a block.
        unsafe { launch.launch(config) }.w().map(drop)
    })?;
    let totals = written::<f64>(device, 4 * blocks, |totals| {
        let mut launch = stream.launch_builder(&of_totals);
        launch.arg(&numel).arg(&unit).arg(&moments).arg(reference).arg(candle).arg(other).arg(totals);
        // SAFETY: as above; it reads the three numbers of each block, which has as many blocks, and writes four a block.
        unsafe { launch.launch(config) }.w().map(drop)
    })?;
    let (moments, totals) = (device.clone_dtoh(&moments)?, device.clone_dtoh(&totals)?);
    Ok(OfBlocks { moments: moments.as_chunks().0.to_vec(), errors: totals.as_chunks().0.to_vec() })
}
