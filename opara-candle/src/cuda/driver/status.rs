//! Status codes of the driver as errors.

use std::ffi::{c_char, CStr};

use cudarc::cublas::sys::cublasStatus_t;
use cudarc::driver::sys::{self, CUresult};
use opara_interpose::Refusal;

use crate::fault::Fault;
use crate::{Error, Result};

/// Turns a failed status into an error that names the call.
pub(super) fn check(call: &'static str, status: CUresult) -> Result<()> {
    match status {
        CUresult::CUDA_SUCCESS => Ok(()),
        status => Err(failure(call, status)),
    }
}

/// The error of a failed call.
fn failure(call: &'static str, status: CUresult) -> Error {
    let mut text: *const c_char = std::ptr::null();
    // SAFETY: the driver writes a pointer to a static string, or null for an unknown status.
    let message = unsafe {
        sys::cuGetErrorString(status, &mut text);
        if text.is_null() {
            format!("{status:?}")
        } else {
            format!("{status:?}: {}", CStr::from_ptr(text).to_string_lossy())
        }
    };
    Error::Driver { call, message }.with_fault(Fault::of_status(status))
}

impl From<opara_interpose::Error> for Error {
    fn from(error: opara_interpose::Error) -> Self {
        match error {
            opara_interpose::Error::Driver { call, status } => failure(call, status),
            opara_interpose::Error::Blas { call, status } => {
                let lacks_memory = status == cublasStatus_t::CUBLAS_STATUS_ALLOC_FAILED;
                let failed = Error::Driver { call, message: format!("{status:?}") };
                failed.with_fault(lacks_memory.then_some(Fault::OutOfMemory))
            }
            opara_interpose::Error::Nested => {
                let reason = "the executor is built inside a forward pass that is being captured".into();
                Error::NotCapturable { reason }
            }
            other => Error::NotCapturable { reason: other.to_string() },
        }
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::DrawsRandomNumbers(reason) => Error::DrawsRandomNumbers { reason },
            Refusal::NotCapturable(reason) => Error::NotCapturable { reason },
            other => Error::NotCapturable { reason: format!("{other:?}") },
        }
    }
}

/// Converts cudarc's errors to this crate's.
pub(super) fn wrap(call: &'static str) -> impl Fn(cudarc::driver::DriverError) -> Error {
    move |error| failure(call, error.0)
}

/// The value that a driver call writes through its out-parameter.
///
/// # Safety
/// `f` must initialise its argument whenever it succeeds.
pub(super) unsafe fn get<T>(call: &'static str, f: impl FnOnce(*mut T) -> sys::CUresult) -> Result<T> {
    let mut value = std::mem::MaybeUninit::zeroed();
    check(call, f(value.as_mut_ptr()))?;
    // SAFETY: the call succeeded, so the value is initialised.
    Ok(unsafe { value.assume_init() })
}
