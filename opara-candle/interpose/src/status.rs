//! Status codes of the libraries.

use std::ffi::c_int;

use cudarc::driver::sys::CUresult;
use cudarc::{cublas, cublaslt};

/// A status code of one of the libraries.
pub(crate) trait Status: Copy + PartialEq {
    const SUCCESS: Self;
    /// The status of a call that is refused in a capture, or after another thread has ended the capture.
    const REFUSED: Self;
    /// The status of a call that lacks device memory, or memory to save the data that it overwrites.
    const NO_MEMORY: Self;
}

impl Status for CUresult {
    const SUCCESS: Self = Self::CUDA_SUCCESS;
    const REFUSED: Self = Self::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    const NO_MEMORY: Self = Self::CUDA_ERROR_OUT_OF_MEMORY;
}

/// `cudaError_t`.
impl Status for c_int {
    const SUCCESS: Self = 0;
    /// `cudaErrorStreamCaptureUnsupported`.
    const REFUSED: Self = 900;
    /// `cudaErrorMemoryAllocation`.
    const NO_MEMORY: Self = 2;
}

impl Status for cublas::sys::cublasStatus_t {
    const SUCCESS: Self = Self::CUBLAS_STATUS_SUCCESS;
    const REFUSED: Self = Self::CUBLAS_STATUS_EXECUTION_FAILED;
    const NO_MEMORY: Self = Self::CUBLAS_STATUS_ALLOC_FAILED;
}

impl Status for cublaslt::sys::cublasStatus_t {
    const SUCCESS: Self = Self::CUBLAS_STATUS_SUCCESS;
    const REFUSED: Self = Self::CUBLAS_STATUS_EXECUTION_FAILED;
    const NO_MEMORY: Self = Self::CUBLAS_STATUS_ALLOC_FAILED;
}

#[cfg(feature = "cudnn")]
impl Status for cudarc::cudnn::sys::cudnnStatus_t {
    const SUCCESS: Self = Self::CUDNN_STATUS_SUCCESS;
    const REFUSED: Self = Self::CUDNN_STATUS_NOT_SUPPORTED;
    const NO_MEMORY: Self = Self::CUDNN_STATUS_INTERNAL_ERROR;
}

impl Status for cudarc::curand::sys::curandStatus_t {
    const SUCCESS: Self = Self::CURAND_STATUS_SUCCESS;
    const REFUSED: Self = Self::CURAND_STATUS_LAUNCH_FAILURE;
    const NO_MEMORY: Self = Self::CURAND_STATUS_ALLOCATION_FAILED;
}
