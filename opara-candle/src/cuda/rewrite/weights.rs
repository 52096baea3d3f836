//! A sample of a pass's weights, which tells one checkpoint of an architecture from another.

use candle::{DType, Tensor};
use xxhash_rust::xxh3::xxh3_128;

use crate::cuda::capture::Capture;
use crate::cuda::driver::copy_of;
use crate::cuda::program::CudaProgram;
use crate::Result;

/// Bytes of each weight.
const BYTES: u64 = 64;

/// A hash of the first bytes of all memory of the module that the pass reads and does not write.
///
/// # Errors
/// Memory that is freed meanwhile, and those of the driver.
pub(super) fn sample(program: &CudaProgram) -> Result<String> {
    let Capture { trace, external, written, .. } = &program.capture;
    let mut weights = external.clone();
    weights.retain(|(address, _)| !written.iter().any(|(start, _)| start == address));
    // By number: addresses differ from process to process.
    weights.sort_unstable_by_key(|(_, buffer)| *buffer);
    let mut samples = Vec::with_capacity(weights.len());
    program.external.launch(&program.stream, || {
        for (address, buffer) in weights {
            let bytes = trace.buffers[buffer].bytes.min(BYTES);
            samples.push(copy_of(&program.device, address, DType::U8, bytes as usize)?);
        }
        Ok(())
    })?;
    let bytes = match &samples[..] {
        [] => Vec::new(),
        samples => Tensor::cat(samples, 0)?.to_vec1::<u8>()?,
    };
    Ok(format!("{:032x}", xxh3_128(&bytes)))
}
