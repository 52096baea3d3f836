//! The FFI layer: every foreign call and every `unsafe` block of this crate, except launches of an operator's kernels
//! (`launch.rs` in the operator's folder).
//!
//! Three layers as in cudarc: `cudarc::driver::sys` declares, the functions here turn status codes into errors, and the
//! types here own and drop handles. No module above this one sees a raw handle.

#![allow(unsafe_code)]

mod arguments;
mod bound;
mod captured_graph;
#[cfg(feature = "cudnn")]
pub(crate) mod convolution;
pub(crate) mod cublaslt;
#[cfg(feature = "cudnn")]
pub(crate) mod cudnn;
mod cupti;
mod download;
#[cfg(feature = "faults")]
pub mod faults;
mod graph;
mod interpose;
mod kernel;
pub(crate) mod kernels;
pub(crate) mod matmul;
mod memory;
mod nvrtc;
mod out_of_memory;
mod stream;
mod versions;
mod watched_memory;

pub(super) use arguments::Arguments;
pub(super) use captured_graph::{CapturedGraph, LaunchNode, MemcpyNode, MemsetNode, Node};
pub(super) use cupti::{Activity, Watch};
pub(crate) use download::Download;
pub(super) use graph::{Executable, GraphBuilder, Pointer};
pub(super) use interpose::{
    is_interposed, outside_capture, position, unseen, Call, CapturePool, CapturedWork, Placed, WrittenMemory,
};
pub(crate) use interpose::{unwatched, Handover};
pub(super) use kernel::KernelNode;
pub(crate) use memory::address_of;
pub(super) use memory::{aligned_input, bytes_of, copy_of, AllocationTable, MemoryBlock, Relocation, ALIGNMENT};
pub(super) use out_of_memory::lacks_memory;
pub(super) use stream::{Broken, Event, Stream, StreamId};
pub(super) use versions::software;
pub(super) use watched_memory::WatchedMemory;

use std::ffi::{c_char, CStr};

use cudarc::driver::sys::{self, CUresult};

use crate::fault::Fault;
use crate::{Error, Result};

/// Turns a failed status into an error that names the call.
fn check(call: &'static str, status: CUresult) -> Result<()> {
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

/// Converts cudarc's errors to this crate's.
fn wrap(call: &'static str) -> impl Fn(cudarc::driver::DriverError) -> Error {
    move |error| failure(call, error.0)
}

/// The value that a driver call writes through its out-parameter.
///
/// # Safety
/// `f` must initialise its argument whenever it succeeds.
unsafe fn get<T>(call: &'static str, f: impl FnOnce(*mut T) -> sys::CUresult) -> Result<T> {
    let mut value = std::mem::MaybeUninit::zeroed();
    check(call, f(value.as_mut_ptr()))?;
    // SAFETY: the call succeeded, so the value is initialised.
    Ok(unsafe { value.assume_init() })
}
