//! Handles of libraries that this thread has set to a stream.

use cudarc::driver::sys::CUstream;

/// Moves this thread's library handles for the stream `device` to the stream `now`, and, when the result is dropped, to `after`.
pub(crate) fn handles_on(device: CUstream, now: CUstream, after: CUstream) -> impl Sized {
    #[cfg(feature = "cudnn")]
    return super::cudnn_handles::handles_on(device, now, after);
    #[cfg(not(feature = "cudnn"))]
    return (device, now, after);
}
