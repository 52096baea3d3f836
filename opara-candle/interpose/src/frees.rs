//! Who is told of frees, on all threads.

use std::sync::OnceLock;

use cudarc::driver::sys::{CUdeviceptr, CUstream};

/// Is told that an allocation is about to be freed on a stream.
type BeforeFree = fn(CUdeviceptr, CUstream);

static TOLD: OnceLock<BeforeFree> = OnceLock::new();

/// Has `told` called before each free of stream-ordered memory from now on, with the allocation and the stream that frees it. A process has
/// one such function: the first stays.
pub fn on_free(told: fn(CUdeviceptr, CUstream)) {
    TOLD.get_or_init(|| told);
}

/// An allocation is about to be freed on a stream.
pub(crate) fn before_free(allocation: CUdeviceptr, stream: CUstream) {
    if let Some(told) = TOLD.get() {
        told(allocation, stream);
    }
}
