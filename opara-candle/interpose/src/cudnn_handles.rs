//! The streams of this thread's cuDNN handles.

use std::cell::RefCell;
use std::ptr::null_mut;

use cudarc::cudnn::sys::{cudaStream_t, cudnnHandle_t, cudnnStatus_t};
use cudarc::driver::sys::CUstream;

use super::next::Next;

thread_local! {
    /// The handles whose stream this thread has set, with the stream that it set.
    static HANDLES: RefCell<Vec<(cudnnHandle_t, CUstream)>> = const { RefCell::new(Vec::new()) };
}

/// Edits the list; does nothing while the thread ends.
pub(crate) fn edit(f: impl FnOnce(&mut Vec<(cudnnHandle_t, CUstream)>)) {
    // A thread that ends does not capture, so no handle is on a private stream.
    let _ = HANDLES.try_with(|handles| f(&mut handles.borrow_mut()));
}

/// Moves this thread's handles for the stream `device` to another stream, and to `after` when dropped.
pub(crate) struct HandlesOn {
    device: CUstream,
    after: CUstream,
}

/// Sets the streams of this thread's handles for the stream `device`.
pub(crate) fn handles_on(device: CUstream, now: CUstream, after: CUstream) -> HandlesOn {
    set_streams(device, now);
    HandlesOn { device, after }
}

impl Drop for HandlesOn {
    fn drop(&mut self) {
        set_streams(self.device, self.after);
    }
}

/// Sets the stream of the handles that the program has set to `asked`.
fn set_streams(asked: CUstream, stream: CUstream) {
    let mut of_stream = Vec::new();
    edit(|handles| of_stream.extend(handles.iter().filter(|(_, of)| *of == asked).map(|(handle, _)| *handle)));
    for handle in of_stream {
        // SAFETY: handles leave the list when they are destroyed, and this thread alone uses them.
        let status = unsafe { set_stream(handle, stream) };
        if status != cudnnStatus_t::CUDNN_STATUS_SUCCESS {
            tracing::warn!(?status, "the stream of a cuDNN handle could not be set");
        }
    }
}

/// Sets the stream of a handle, and does not list it.
///
/// # Safety
/// The handle must exist, and no other thread may use it meanwhile.
pub(crate) unsafe fn set_stream(handle: cudnnHandle_t, stream: CUstream) -> cudnnStatus_t {
    type SetStream = unsafe extern "C" fn(cudnnHandle_t, cudaStream_t) -> cudnnStatus_t;
    static SET: Next<SetStream> = Next::new();
    // SAFETY: the type is cuDNN's, and the caller vouches for the handle.
    unsafe {
        SET.get("cudnnSetStream\0")
            .map_or(cudnnStatus_t::CUDNN_STATUS_NOT_INITIALIZED, |set| set(handle, stream.cast()))
    }
}

/// The stream that this thread has set for a handle; the default stream if it has set none.
pub(crate) fn stream_of(handle: cudnnHandle_t) -> CUstream {
    let mut stream = null_mut();
    edit(|handles| {
        if let Some((_, of)) = handles.iter().find(|(known, _)| *known == handle) {
            stream = *of;
        }
    });
    stream
}
