//! Device faults on which a caller can act, by the driver's error codes.

/// A fault of a device.
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only GPUs are told to have them"))]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It has no memory left. Work that needs less may succeed.
    OutOfMemory,
    /// The device is lost, or the process's context on it. Every later call fails, too.
    Lost,
}

#[cfg(feature = "cuda")]
mod cuda {
    use candle::cuda_backend::CudaError;
    use cudarc::cublas::sys::cublasStatus_t;
    use cudarc::driver::sys::CUresult;
    use cudarc::driver::DriverError;

    use super::Fault;

    impl Fault {
        /// The fault of a driver's error code; `None` for other errors.
        pub fn of_status(status: CUresult) -> Option<Self> {
            use CUresult::*;
            match status {
                CUDA_ERROR_OUT_OF_MEMORY => Some(Fault::OutOfMemory),
                CUDA_ERROR_DEINITIALIZED
                | CUDA_ERROR_ECC_UNCORRECTABLE
                | CUDA_ERROR_NVLINK_UNCORRECTABLE
                | CUDA_ERROR_ILLEGAL_ADDRESS
                | CUDA_ERROR_LAUNCH_TIMEOUT
                | CUDA_ERROR_CONTEXT_IS_DESTROYED
                | CUDA_ERROR_ASSERT
                | CUDA_ERROR_HARDWARE_STACK_ERROR
                | CUDA_ERROR_ILLEGAL_INSTRUCTION
                | CUDA_ERROR_MISALIGNED_ADDRESS
                | CUDA_ERROR_INVALID_ADDRESS_SPACE
                | CUDA_ERROR_INVALID_PC
                | CUDA_ERROR_LAUNCH_FAILED => Some(Fault::Lost),
                _ => None,
            }
        }

        /// The fault behind an error of candle; `None` for other errors.
        pub fn of(error: &candle::Error) -> Option<Self> {
            match error {
                candle::Error::WithBacktrace { inner, .. }
                | candle::Error::Context { inner, .. }
                | candle::Error::WithPath { inner, .. } => Self::of(inner),
                candle::Error::Cuda(error) => match (error.downcast_ref(), error.downcast_ref::<DriverError>()) {
                    (Some(CudaError::Cuda(error) | CudaError::Load { cuda: error, .. }), _) | (_, Some(error)) => {
                        Self::of_status(error.0)
                    }
                    (Some(CudaError::Cublas(error)), _) => {
                        (error.0 == cublasStatus_t::CUBLAS_STATUS_ALLOC_FAILED).then_some(Fault::OutOfMemory)
                    }
                    _ => None,
                },
                _ => None,
            }
        }
    }
}

#[cfg(not(feature = "cuda"))]
impl Fault {
    /// The fault behind an error of candle: there is none without a GPU.
    pub fn of(_: &candle::Error) -> Option<Self> {
        None
    }
}

#[cfg(all(test, feature = "cuda"))]
mod tests {
    use candle::cuda_backend::{CudaError, WrapErr};
    use cudarc::driver::sys::CUresult;
    use cudarc::driver::DriverError;

    use crate::Error;

    fn of_candle(status: CUresult) -> candle::Error {
        let failed: Result<(), CudaError> = Err(DriverError(status).into());
        failed.w().expect_err("it is an error").context("in a layer").with_path("model.safetensors")
    }

    #[test]
    fn faults_are_told_from_other_errors_of_the_driver() {
        let no_memory = Error::from(of_candle(CUresult::CUDA_ERROR_OUT_OF_MEMORY));
        assert!(matches!(&no_memory, Error::OutOfMemory { source } if matches!(**source, Error::Candle(_))));
        let lost = Error::from(of_candle(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS));
        assert!(matches!(lost, Error::DeviceLost { .. }) && !lost.is_uncapturable(), "{lost}");
        let other = Error::from(of_candle(CUresult::CUDA_ERROR_INVALID_VALUE));
        assert!(matches!(other, Error::Candle(_)), "{other}");
    }

    /// An executor may be part of another one's module.
    #[test]
    fn a_fault_is_still_one_after_it_went_through_candle() {
        let driver = || Box::new(Error::Driver { call: "cuGraphLaunch", message: "it failed".into() });
        let text = Error::DeviceLost { source: driver() }.to_string();
        let lost = Error::from(candle::Error::from(Error::DeviceLost { source: driver() }));
        assert!(matches!(lost, Error::DeviceLost { .. }), "{lost:?}");
        assert_eq!(lost.to_string(), text);
        let no_memory = Error::from(candle::Error::from(Error::OutOfMemory { source: driver() }).context("in a layer"));
        assert!(matches!(no_memory, Error::OutOfMemory { .. }), "{no_memory:?}");
        let of_module = Error::from(of_candle(CUresult::CUDA_ERROR_LAUNCH_FAILED));
        assert!(matches!(Error::from(candle::Error::from(of_module)), Error::DeviceLost { .. }));
    }
}
