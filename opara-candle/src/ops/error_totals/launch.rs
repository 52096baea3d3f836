//! Launches of `error_totals.cu`.

use candle::{CudaDevice, DType, Result};
use cudarc::driver::{CudaView, DeviceRepr, LaunchConfig};

use crate::cuda::driver::kernels::{kernels, ptx, written};

kernels! {
    /// Elements where all three operands are finite, the sum of the references' squares there, and results that are not what they may be.
    Moments<T> = "opara_reduction_error_moments_" for [f16 bf16 f32 f64] {
        blocks: grid [0], numel: usize,
        reference: in f64 [numel],
        candle: in T [numel],
        other: in T [numel],
        moments: out f64 [3 * blocks],
    }

    /// The sums of squared errors, and the largest errors.
    Totals<T> = "opara_reduction_error_totals_" for [f16 bf16 f32 f64] {
        blocks: grid [0], numel: usize, unit: f64,
        moments: in f64 [3 * blocks],
        reference: in f64 [numel],
        candle: in T [numel],
        other: in T [numel],
        totals: out f64 [4 * blocks],
    }
}

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
    let blocks = numel.div_ceil(THREADS).clamp(1, MAX_BLOCKS);
    let config =
        LaunchConfig { grid_dim: (blocks as u32, 1, 1), block_dim: (THREADS as u32, 1, 1), shared_mem_bytes: 0 };
    let (variant, code) = (dtype.as_str(), ptx::ERROR_TOTALS);
    let moments = written::<f64>(device, 3 * blocks, |moments| {
        Moments { blocks, numel, reference, candle, other, moments: moments.as_view_mut() }
            .launch(device, variant, code, config)
    })?;
    let totals = written::<f64>(device, 4 * blocks, |totals| {
        let (moments, totals) = (&moments.as_view(), totals.as_view_mut());
        Totals { blocks, numel, unit, moments, reference, candle, other, totals }.launch(device, variant, code, config)
    })?;
    let (moments, totals) = (device.clone_dtoh(&moments)?, device.clone_dtoh(&totals)?);
    Ok(OfBlocks { moments: moments.as_chunks().0.to_vec(), errors: totals.as_chunks().0.to_vec() })
}
