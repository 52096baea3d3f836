//! Errors of captures, and why a module cannot be captured.

use std::fmt;

use cudarc::cublas::sys::cublasStatus_t;
use cudarc::driver::sys::CUresult;

/// Why a capture could not begin, or gave nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// A call of the driver failed.
    Driver {
        /// The function.
        call: &'static str,
        /// What it returned.
        status: CUresult,
    },
    /// A call of cuBLAS failed.
    Blas {
        /// The function.
        call: &'static str,
        /// What it returned.
        status: cublasStatus_t,
    },
    /// This thread captures already.
    Nested,
    /// Another thread has ended the capture: it waited for the device, and the module for that thread.
    EndedByOtherThread,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Driver { call, status } => write!(f, "{call}: {status:?}"),
            Error::Blas { call, status } => write!(f, "{call}: {status:?}"),
            Error::Nested => f.write_str("this thread captures already"),
            Error::EndedByOtherThread => f.write_str("another thread has ended the capture"),
        }
    }
}

impl std::error::Error for Error {}

/// What a module did that a graph cannot repeat.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// A call that cannot be captured.
    NotCapturable(
        /// What the module did, and in which scope.
        String,
    ),
    /// It draws random numbers: its calls differ without state.
    DrawsRandomNumbers(
        /// What the module did, and in which scope.
        String,
    ),
}

/// Turns a failed status into an error that names the call.
pub(crate) fn check(call: &'static str, status: CUresult) -> Result<(), Error> {
    match status {
        CUresult::CUDA_SUCCESS => Ok(()),
        status => Err(Error::Driver { call, status }),
    }
}

/// The same for cuBLAS.
pub(crate) fn check_blas(call: &'static str, status: cublasStatus_t) -> Result<(), Error> {
    match status {
        cublasStatus_t::CUBLAS_STATUS_SUCCESS => Ok(()),
        status => Err(Error::Blas { call, status }),
    }
}
