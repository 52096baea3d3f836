//! Threads that end with work on their own default stream.
//!
//! When a thread ends, the driver destroys the thread's default stream. If work is still pending on it and another thread loads a
//! module or makes or destroys a graph meanwhile, both hang inside the driver for good (driver 580, a C program of 60 lines
//! without this library: 4 of 4 runs hang; 0 of 1 if each thread waits for its stream first). candle's `Device::new_cuda` uses
//! that stream. So a thread that has used its default stream waits for it before the driver destroys it: Rust's thread-locals are
//! dropped before the driver's.

use std::cell::RefCell;
use std::ffi::c_void;
use std::ptr::null_mut;

use cudarc::driver::sys::{self, CUcontext, CUresult};

/// The driver's handle of the calling thread's default stream.
const PER_THREAD: usize = 2;

/// The contexts in which this thread has used its default stream. Waits for that stream when dropped.
struct Used(RefCell<Vec<CUcontext>>);

thread_local! {
    static USED: Used = const { Used(RefCell::new(Vec::new())) };
}

/// Notes that this thread has enqueued work on `stream`.
pub(crate) fn used(stream: *mut c_void) {
    if stream as usize != PER_THREAD {
        return;
    }
    let mut context = null_mut();
    // SAFETY: `context` receives the current context.
    if unsafe { sys::cuCtxGetCurrent(&mut context) } != CUresult::CUDA_SUCCESS {
        return;
    }
    let noted = USED.try_with(|Used(contexts)| {
        let mut contexts = contexts.borrow_mut();
        if !contexts.contains(&context) {
            contexts.push(context);
        }
    });
    // The thread is ending and has already waited. A tensor in a thread-local was dropped later.
    if noted.is_err() {
        wait(context);
    }
}

/// Waits for this thread's default stream in a context. After an error, for example of a lost device, no work is
/// pending.
fn wait(context: CUcontext) {
    // SAFETY: the context was current on this thread; the driver refuses a destroyed one. The stream always exists.
    unsafe {
        if sys::cuCtxSetCurrent(context) == CUresult::CUDA_SUCCESS {
            sys::cuStreamSynchronize(PER_THREAD as sys::CUstream);
        }
    }
}

impl Drop for Used {
    fn drop(&mut self) {
        self.0.get_mut().iter().for_each(|&context| wait(context));
    }
}
