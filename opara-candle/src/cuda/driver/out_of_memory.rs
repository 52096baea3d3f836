//! Errors that tell of a device without memory left.

use crate::fault::Fault;
use crate::Error;

/// Whether work failed since the device had no memory left, also in a capture. It may have some later.
pub(in crate::cuda) fn lacks_memory(error: &Error) -> bool {
    match error {
        Error::OutOfMemory { .. } => true,
        Error::FailsInCapture { source } => Fault::of(source) == Some(Fault::OutOfMemory),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use candle::cuda_backend::{CudaError, WrapErr};
    use cudarc::driver::sys::CUresult;
    use cudarc::driver::DriverError;

    use super::*;

    #[test]
    fn a_lack_of_memory_is_told_from_what_fails_again() {
        let of = |status| {
            let failed: std::result::Result<(), CudaError> = Err(DriverError(status).into());
            failed.w().expect_err("it is an error")
        };
        let in_capture = |status| Error::FailsInCapture { source: Error::from(of(status)).into() };
        assert!(lacks_memory(&Error::from(of(CUresult::CUDA_ERROR_OUT_OF_MEMORY))));
        assert!(lacks_memory(&in_capture(CUresult::CUDA_ERROR_OUT_OF_MEMORY)));
        assert!(!lacks_memory(&in_capture(CUresult::CUDA_ERROR_INVALID_VALUE)));
        assert!(!lacks_memory(&Error::NotCapturable { reason: "it writes to its inputs".into() }));
    }
}
