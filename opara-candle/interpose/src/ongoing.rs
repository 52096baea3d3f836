//! The captures that run, and calls that wait for the whole device.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

use cudarc::driver::sys::{self, CUgraph, CUresult, CUstream};
use parking_lot::lock_api::ArcReentrantMutexGuard;
use parking_lot::{RawMutex, RawThreadId, ReentrantMutex};

use super::gate::{Capture, Gate};

/// All captures of the process.
static GATE: LazyLock<Gate<Ongoing>> = LazyLock::new(Gate::default);

/// A running capture.
pub(crate) struct Ongoing {
    stream: CUstream,
    /// Locked during each driver call. The value: has another thread ended the capture?
    is_ended: Arc<ReentrantMutex<Cell<bool>>>,
    calls: AtomicUsize,
}

// SAFETY: the stream's handle may be used from any thread whose context is current.
unsafe impl Send for Ongoing {}
// SAFETY: as above.
unsafe impl Sync for Ongoing {}

/// While this is held, the capture is inside a driver call and is not ended.
pub(crate) type InCall = ArcReentrantMutexGuard<RawMutex, RawThreadId, Cell<bool>>;

impl Ongoing {
    /// Begins a driver call; `None` if another thread has ended the capture.
    pub fn call(&self) -> Option<InCall> {
        let call = self.is_ended.lock_arc();
        self.calls.fetch_add(1, Ordering::Relaxed);
        (!call.get()).then_some(call)
    }

    /// Ends it, if it has not ended. The caller holds the lock.
    fn end_with(&self, is_ended: &Cell<bool>) {
        if is_ended.get() {
            return;
        }
        let mut graph = std::ptr::null_mut();
        // SAFETY: the capture's mode lets any thread end it. Its own thread is outside of calls, and further ones are refused. The
        // graph belongs to this function.
        unsafe {
            sys::cuStreamEndCapture(self.stream, &mut graph);
            if !graph.is_null() {
                sys::cuGraphDestroy(graph);
            }
        }
        is_ended.set(true);
    }
}

impl Capture for Ongoing {
    fn is_over(&self) -> bool {
        self.is_ended.try_lock().is_some_and(|is_ended| is_ended.get())
    }

    fn calls(&self) -> usize {
        self.calls.load(Ordering::Relaxed)
    }

    fn end(&self) {
        if let Some(is_ended) = self.is_ended.try_lock() {
            self.end_with(&is_ended);
        }
    }
}

/// A capture of this thread. Dropping it ends the capture.
pub(crate) struct Capturing(Arc<Ongoing>);

impl Capturing {
    /// Begins to capture a stream, once no call waits for the whole device. Delays further such calls.
    ///
    /// # Safety
    /// Nobody else may use the stream until this is dropped.
    ///
    /// # Errors
    /// The driver's.
    pub unsafe fn begin(stream: CUstream) -> Result<Self, CUresult> {
        let is_ended = Arc::new(ReentrantMutex::new(Cell::new(false)));
        let ongoing = Arc::new(Ongoing { stream, is_ended, calls: AtomicUsize::new(0) });
        let _call = ongoing.is_ended.lock();
        GATE.enter(ongoing.clone());
        let capturing = Self(ongoing.clone());
        // Relaxed mode: any thread may end the capture, see the gate's documentation.
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the caller has the stream to itself.
        match unsafe { sys::cuStreamBeginCapture_v2(stream, mode) } {
            CUresult::CUDA_SUCCESS => Ok(capturing),
            error => Err(error),
        }
    }

    /// The state that driver calls of the capturing thread lock.
    pub(crate) fn ongoing(&self) -> Arc<Ongoing> {
        self.0.clone()
    }

    /// Ends the capture. Returns the graph, which may be null, and the driver's status; `None` if another thread has ended it.
    pub fn end(self) -> Option<(CUgraph, CUresult)> {
        let call = self.0.call()?;
        let mut graph = std::ptr::null_mut();
        // SAFETY: the stream is capturing; `graph` receives the graph.
        let status = unsafe { sys::cuStreamEndCapture(self.0.stream, &mut graph) };
        call.set(true);
        Some((graph, status))
    }
}

impl Drop for Capturing {
    fn drop(&mut self) {
        // Another thread holds the lock for a moment only, to look or to end the capture.
        self.0.end_with(&self.0.is_ended.lock());
        GATE.leave(&self.0);
    }
}

/// Runs `f`, which waits for the whole device, while no capture runs.
pub(crate) fn between_captures<T>(f: impl FnOnce() -> T) -> T {
    GATE.between_captures(f)
}
