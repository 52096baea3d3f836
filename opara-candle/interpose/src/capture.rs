//! Captures of a stream.

use std::sync::Arc;

use cudarc::driver::sys::{CUgraph, CUresult};
use cudarc::driver::CudaStream;

use super::capture_pool::CapturePool;
use super::error::{check, Error};
use super::ongoing::Capturing;
use super::private_stream::PrivateStream;
use super::thread_capture::{self, Recorded};

/// What a capture has given.
pub struct Captured<T> {
    /// What was returned to the caller of the launches.
    pub result: T,
    /// The graph, which is the caller's to destroy; null if the driver gave none.
    pub graph: CUgraph,
    /// The driver's status of the end of the capture.
    pub status: CUresult,
    /// The calls that were recorded.
    pub recorded: Recorded,
}

/// Captures what `f` launches from this thread on this stream. The capture is on a private stream; if work of the pool runs, it also runs on
/// this stream, like the work of other threads. Allocations of `f` come from `pool`; without one it must not allocate. Calls that cannot
/// be captured are refused, and `scope` says for the reason in which scope this thread is.
///
/// # Errors
/// The driver's or cuBLAS's; a capture inside another; or another thread has ended the capture.
pub fn capture<T>(
    stream: &Arc<CudaStream>,
    pool: Option<&CapturePool>,
    scope: fn() -> String,
    f: impl FnOnce() -> T,
) -> Result<Captured<T>, Error> {
    let bound = stream.context().bind_to_thread();
    check("cuCtxSetCurrent", bound.map_or_else(|error| error.0, |()| CUresult::CUDA_SUCCESS))?;
    if thread_capture::is_capturing() {
        return Err(Error::Nested);
    }
    let mut private = PrivateStream::take()?;
    // SAFETY: a private stream is used by one thread at a time.
    let capturing = unsafe { Capturing::begin(private.raw()) };
    let capturing = capturing.map_err(|status| Error::Driver { call: "cuStreamBeginCapture", status })?;
    let (result, recorded) = thread_capture::capture(stream.cu_stream(), &mut private, pool, scope, &capturing, f);
    let ended = capturing.end();
    drop(private);
    let (graph, status) = ended.ok_or(Error::EndedByOtherThread)?;
    Ok(Captured { result, graph, status, recorded })
}
