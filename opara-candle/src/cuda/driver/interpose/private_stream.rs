//! The streams that captures run on, which no other thread can reach, each with a handle of cuBLAS.

use cudarc::cublas::sys as cublas;
use cudarc::driver::sys::{self, CUcontext, CUstream, CUstream_flags};
use parking_lot::Mutex;

use crate::cuda::driver::check;
use crate::{Error, Result};

/// A stream for one capture at a time; it goes back to the others when dropped, and is never destroyed.
pub(in crate::cuda::driver) struct PrivateStream(Handles);

#[derive(Clone, Copy)]
struct Handles {
    context: CUcontext,
    stream: CUstream,
    blas: cublas::cublasHandle_t,
}

// SAFETY: handles may be used from any thread whose context is current; whoever takes one has it alone.
unsafe impl Send for Handles {}

/// Those that no capture uses: as many as there ever were captures at the same time.
static FREE: Mutex<Vec<Handles>> = Mutex::new(Vec::new());

impl PrivateStream {
    /// One of the context that is current on this thread.
    ///
    /// # Errors
    /// No memory left, or cuBLAS cannot be used.
    pub fn take() -> Result<Self> {
        let mut context = std::ptr::null_mut();
        // SAFETY: `context` receives the current context.
        check("cuCtxGetCurrent", unsafe { sys::cuCtxGetCurrent(&mut context) })?;
        let mut free = FREE.lock();
        if let Some(at) = free.iter().position(|handles| handles.context == context) {
            return Ok(Self(free.swap_remove(at)));
        }
        drop(free);
        let (mut stream, mut blas) = (std::ptr::null_mut(), std::ptr::null_mut());
        let flags = CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: out-pointers are valid; both handles belong to the current context.
        unsafe {
            check("cuStreamCreate", sys::cuStreamCreate(&mut stream, flags))?;
            check_blas("cublasCreate", cublas::cublasCreate_v2(&mut blas))?;
            check_blas("cublasSetStream", cublas::cublasSetStream_v2(blas, stream.cast()))?;
        }
        Ok(Self(Handles { context, stream, blas }))
    }

    /// The stream.
    pub fn raw(&self) -> CUstream {
        self.0.stream
    }

    /// The handle of cuBLAS on it.
    pub fn blas(&self) -> cublas::cublasHandle_t {
        self.0.blas
    }
}

impl Drop for PrivateStream {
    fn drop(&mut self) {
        FREE.lock().push(self.0);
    }
}

fn check_blas(call: &'static str, status: cublas::cublasStatus_t) -> Result<()> {
    match status {
        cublas::cublasStatus_t::CUBLAS_STATUS_SUCCESS => Ok(()),
        status => Err(Error::Driver { call, message: format!("{status:?}") }),
    }
}
