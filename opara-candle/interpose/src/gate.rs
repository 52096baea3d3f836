//! Mutual exclusion of captures and calls that wait for the whole device.
//!
//! The driver aborts every capture, on any stream, when a thread waits for the whole device, and that thread's call fails, too.
//! (Measured with driver 580: `cuCtxSynchronize` and cuRAND's first draw fail; creating or destroying a cuBLAS handle succeeds, but
//! aborts the capture. cuDNN's handles do not.) So such a call waits here until no capture runs, and a capture begins when no such call
//! runs.
//!
//! A deadlock is possible: a captured module may wait for the thread that waits here, for example for a lock. So after
//! [`PATIENCE`] the waiting thread ends the capture, if it is outside of driver calls. The module's next call is then refused, and
//! the capture is repeated. During a driver call the capture is not ended, since the rest of the call would run outside of it.
//! Such calls end by themselves, though they may take seconds while the driver compiles modules for another thread.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::sys::{self, CUgraph, CUresult, CUstream};
use parking_lot::lock_api::ArcReentrantMutexGuard;
use parking_lot::{Condvar, Mutex, RawMutex, RawThreadId, ReentrantMutex};

/// Longer than a capture takes (5,000 launches: 30 ms).
const PATIENCE: Duration = Duration::from_secs(1);

/// A running capture.
pub(crate) struct Ongoing {
    stream: CUstream,
    /// Locked during each driver call. The value: has another thread ended the capture?
    is_ended: Arc<ReentrantMutex<Cell<bool>>>,
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
        (!call.get()).then_some(call)
    }

    /// Has another thread ended it?
    fn is_over(&self) -> bool {
        self.is_ended.try_lock().is_some_and(|is_ended| is_ended.get())
    }

    /// Ends it from another thread, unless it is inside a driver call.
    fn end(&self) {
        if let Some(is_ended) = self.is_ended.try_lock() {
            self.end_with(&is_ended);
        }
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

struct State {
    captures: Vec<Arc<Ongoing>>,
    /// Number of calls that wait for the whole device, or for captures to end first.
    waits: usize,
}

static STATE: Mutex<State> = Mutex::new(State { captures: Vec::new(), waits: 0 });
static CHANGED: Condvar = Condvar::new();

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
        let ongoing = Arc::new(Ongoing { stream, is_ended: Arc::new(ReentrantMutex::new(Cell::new(false))) });
        let _call = ongoing.is_ended.lock();
        let capturing = Self::enter(ongoing.clone());
        // Relaxed mode: any thread may end the capture, see the module's documentation.
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the caller has the stream to itself.
        match unsafe { sys::cuStreamBeginCapture_v2(stream, mode) } {
            CUresult::CUDA_SUCCESS => Ok(capturing),
            error => Err(error),
        }
    }

    /// Waits until no call waits for the whole device, and delays further such calls.
    fn enter(ongoing: Arc<Ongoing>) -> Self {
        let mut state = STATE.lock();
        CHANGED.wait_while(&mut state, |state| state.waits > 0);
        state.captures.push(ongoing.clone());
        Self(ongoing)
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
        STATE.lock().captures.retain(|ongoing| !Arc::ptr_eq(ongoing, &self.0));
        CHANGED.notify_all();
    }
}

/// Runs `f`, which waits for the whole device, while no capture runs.
pub(crate) fn between_captures<T>(f: impl FnOnce() -> T) -> T {
    struct Done;
    impl Drop for Done {
        fn drop(&mut self) {
            STATE.lock().waits -= 1;
            CHANGED.notify_all();
        }
    }
    let mut state = STATE.lock();
    state.waits += 1;
    let _done = Done;
    let is_captured = |state: &mut State| state.captures.iter().any(|ongoing| !ongoing.is_over());
    while CHANGED.wait_while_for(&mut state, is_captured, PATIENCE).timed_out() {
        state.captures.iter().for_each(|ongoing| ongoing.end());
    }
    drop(state);
    f()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;

    use super::*;

    #[test]
    fn a_wait_for_the_device_comes_after_the_capture_and_before_the_next() {
        let ongoing = || {
            Arc::new(Ongoing {
                stream: std::ptr::null_mut(),
                is_ended: Arc::new(ReentrantMutex::new(Cell::new(false))),
            })
        };
        let (order, events) = channel();
        let capture = Capturing::enter(ongoing());
        // Inside a call, so that the other thread does not end it.
        let call = capture.0.call().expect("it has not ended");
        let waiting = {
            let order = order.clone();
            thread::spawn(move || between_captures(|| order.send("device").is_ok()))
        };
        // Until the other thread waits.
        while STATE.lock().waits == 0 {
            thread::yield_now();
        }
        assert!(order.send("capture").is_ok());
        let next = thread::spawn(move || {
            let capture = Capturing::enter(ongoing());
            capture.0.is_ended.lock().set(true);
            order.send("next capture").is_ok()
        });
        call.set(true);
        drop(call);
        drop(capture);
        assert!(waiting.join().is_ok_and(|sent| sent) && next.join().is_ok_and(|sent| sent));
        assert_eq!(events.into_iter().collect::<Vec<_>>(), ["capture", "device", "next capture"]);
    }
}
