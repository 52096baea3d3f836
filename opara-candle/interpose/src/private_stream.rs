//! Private streams: the streams that are captured, each with handles of libraries. No other thread can reach them.

use std::ffi::c_void;

use cudarc::cublas::sys as cublas;
use cudarc::driver::sys::{self, CUcontext, CUstream, CUstream_flags};
use parking_lot::Mutex;

use super::error::{check, check_blas, Error};

/// A stream for one capture at a time. A dropped stream is reused, and never destroyed.
pub(crate) struct PrivateStream(Handles);

#[derive(Clone, Copy)]
struct Handles {
    context: CUcontext,
    stream: CUstream,
    blas: cublas::cublasHandle_t,
    /// Of cuDNN, or null.
    dnn: *mut c_void,
}

// SAFETY: handles may be used from any thread whose context is current; a stream that was taken has one owner.
unsafe impl Send for Handles {}

/// Unused streams.
static FREE: Mutex<Vec<Handles>> = Mutex::new(Vec::new());

impl PrivateStream {
    /// Takes a stream of this thread's current context.
    ///
    /// # Errors
    /// No memory left, or cuBLAS is not usable.
    pub fn take() -> Result<Self, Error> {
        let mut context = std::ptr::null_mut();
        // SAFETY: `context` receives the current context.
        check("cuCtxGetCurrent", unsafe { sys::cuCtxGetCurrent(&mut context) })?;
        let mut free = FREE.lock();
        if let Some(at) = free.iter().position(|handles| handles.context == context) {
            return Ok(Self(free.swap_remove(at)));
        }
        drop(free);
        let mut stream = std::ptr::null_mut();
        let flags = CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: `stream` receives the handle.
        check("cuStreamCreate", unsafe { sys::cuStreamCreate(&mut stream, flags) })?;
        match blas_on(stream) {
            Ok(blas) => Ok(Self(Handles { context, stream, blas, dnn: std::ptr::null_mut() })),
            Err(error) => {
                // SAFETY: nobody else has the stream.
                unsafe { sys::cuStreamDestroy_v2(stream) };
                Err(error)
            }
        }
    }

    /// The stream.
    pub fn raw(&self) -> CUstream {
        self.0.stream
    }

    /// The handle of cuBLAS on it.
    pub fn blas(&self) -> cublas::cublasHandle_t {
        self.0.blas
    }

    /// The handle of cuDNN, or null: the first capture that needs one makes it, and each call sets its stream.
    pub fn dnn(&mut self) -> &mut *mut c_void {
        &mut self.0.dnn
    }
}

impl Drop for PrivateStream {
    fn drop(&mut self) {
        FREE.lock().push(self.0);
    }
}

/// A new cuBLAS handle on a stream of the current context.
fn blas_on(stream: CUstream) -> Result<cublas::cublasHandle_t, Error> {
    let mut blas = std::ptr::null_mut();
    // SAFETY: `blas` receives the handle.
    check_blas("cublasCreate", unsafe { cublas::cublasCreate_v2(&mut blas) })?;
    // SAFETY: both handles belong to the current context.
    let set = check_blas("cublasSetStream", unsafe { cublas::cublasSetStream_v2(blas, stream.cast()) });
    if set.is_err() {
        // SAFETY: nobody else has the handle.
        unsafe { cublas::cublasDestroy_v2(blas) };
    }
    set.map(|()| blas)
}
