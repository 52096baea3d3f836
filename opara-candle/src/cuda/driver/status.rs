//! Status codes of the driver as errors.

use std::ffi::{c_char, CStr};

use cudarc::driver::sys::{self, CUresult};

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
pub(super) fn failure(call: &'static str, status: CUresult) -> Error {
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
