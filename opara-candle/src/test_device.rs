//! The GPU of a test, and the difference between a machine without one and a GPU that cannot be used.

use candle::Device;
use opara_candle::{cuda_device, Error};

/// The first GPU. `None`, with a note on stderr, if the build has no CUDA or the machine has no GPU.
///
/// # Panics
/// If there is a GPU that cannot be used, or if there is none although `OPARA_REQUIRE_GPU=1` is set.
#[track_caller]
pub fn gpu() -> Option<Device> {
    let required = std::env::var_os("OPARA_REQUIRE_GPU").is_some_and(|value| value == "1");
    device_or_skip(0, cuda_device(0), required)
}

/// The second GPU, which no test requires.
///
/// # Panics
/// If there is one that cannot be used.
#[track_caller]
pub fn second_gpu() -> Option<Device> {
    device_or_skip(1, cuda_device(1), false)
}

/// A device of each kind that can be captured: of this library and of candle, with its own stream or with one for
/// every thread. None without a GPU.
///
/// # Errors
/// A device that cannot be made beside the first.
pub fn devices() -> candle::Result<Vec<Device>> {
    let Some(untracked) = gpu() else { return Ok(Vec::new()) };
    Ok(vec![untracked, Device::new_cuda_with_stream(0)?, Device::new_cuda(0)?])
}

/// The device of this ordinal, or `None` if the error says that there is none and none is required.
///
/// # Panics
/// On every other error.
#[track_caller]
pub fn device_or_skip(ordinal: usize, device: Result<Device, Error>, required: bool) -> Option<Device> {
    let error = match device {
        Ok(device) => return Some(device),
        Err(error) => error,
    };
    assert!(is_absent(ordinal, &error), "GPU {ordinal} cannot be used: {error}");
    assert!(!required, "OPARA_REQUIRE_GPU=1, but there is no GPU {ordinal}: {error}");
    eprintln!("skipped, no GPU {ordinal}: {error}");
    None
}

/// Does the error say that there is no such device? Any other error is one of a device that is there.
fn is_absent(ordinal: usize, error: &Error) -> bool {
    match error {
        Error::NoCuda => true,
        Error::Candle(error) => is_absent_to_driver(ordinal, error),
        _ => false,
    }
}

#[cfg(not(feature = "cuda"))]
fn is_absent_to_driver(_: usize, _: &candle::Error) -> bool {
    false
}

/// The driver's codes, as candle wraps them. A program without `libcuda.so.1` does not start at all.
#[cfg(feature = "cuda")]
fn is_absent_to_driver(ordinal: usize, error: &candle::Error) -> bool {
    use candle::cuda_backend::{cudarc::driver::sys::CUresult, CudaError};
    match error {
        candle::Error::WithBacktrace { inner, .. } => is_absent_to_driver(ordinal, inner),
        candle::Error::Cuda(error) => match error.downcast_ref() {
            Some(CudaError::Cuda(error)) => match error.0 {
                // `cuInit` returns these without a GPU, and in the toolkit's stub library, which serves for linking
                // only.
                CUresult::CUDA_ERROR_NO_DEVICE | CUresult::CUDA_ERROR_STUB_LIBRARY => true,
                // The number is too high. As there is a first GPU if there is any, this is about others.
                CUresult::CUDA_ERROR_INVALID_DEVICE => ordinal > 0,
                _ => false,
            },
            _ => false,
        },
        _ => false,
    }
}
