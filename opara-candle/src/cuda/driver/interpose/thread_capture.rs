//! What the calling thread captures, and where its calls go meanwhile.

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Arc;

use cudarc::cublas::sys::cublasHandle_t;
use cudarc::driver::sys::{self, CUdeviceptr, CUresult, CUstream};
use hashbrown::HashSet;

use super::gate::{Capturing, InCall, Ongoing};
use super::library_call::LibraryCall;
use super::private_stream::PrivateStream;
use super::restore::Restore;
use crate::trace::scope;
use crate::Error;

/// Calls of the threads that one capture runs on.
pub(in crate::cuda::driver) struct ThreadCapture {
    /// The stream that the module's calls are meant for.
    device: CUstream,
    /// The private stream that is captured in its place.
    private: CUstream,
    /// Held in calls of the driver.
    ongoing: Arc<Ongoing>,
    /// A handle of cuBLAS on the private stream. The module's own is one for all threads.
    pub blas: cublasHandle_t,
    /// Bytes of each upload, by the address under which the graph knows them. A capture forbids reading back, so an upload
    /// cannot depend on the input: it is a constant of the graph, if only its bytes are kept.
    pub uploads: Vec<Arc<[u8]>>,
    /// Why the capture has to fail, if the module did what cannot be captured.
    pub refused: Option<Error>,
    /// Each allocation's node and first byte, in order: those of Rust, so of candle's tensors. What the graph allocates
    /// besides is a library's.
    pub allocations: Vec<(usize, CUdeviceptr)>,
    /// First byte of each of them that is not freed yet.
    live: HashSet<CUdeviceptr>,
    /// Allocations from before the capture that were freed in it. They still exist: who ends the capture frees them.
    pub dropped: Vec<CUdeviceptr>,
    /// Calls of libraries, in order.
    pub library_calls: Vec<LibraryCall>,
}

thread_local! {
    /// The capture of this thread, or null. Without a destructor, so that tensors which are freed while the thread ends
    /// can still look.
    static CURRENT: Cell<*mut ThreadCapture> = const { Cell::new(null_mut()) };
    /// Whether events are neither recorded nor waited for: see [`without_events`].
    static MUTE: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread captures.
pub(in crate::cuda) fn is_capturing() -> bool {
    !CURRENT.get().is_null()
}

/// Uses this thread's capture, if there is one. Calls that `f` makes find none.
pub(super) fn with<T>(f: impl FnOnce(&mut ThreadCapture) -> T) -> Option<T> {
    let current = CURRENT.replace(null_mut());
    if current.is_null() {
        return None;
    }
    let _restore = Restore(&CURRENT, current);
    // SAFETY: the pointer is that of a value on the stack of `capture`, which waits for this thread. It is taken out of the
    // thread-local meanwhile, so this is the only reference.
    Some(f(unsafe { &mut *current }))
}

/// Redirects the calls of this thread for the stream `device` to the stream `private`, which captures, while `f` runs.
pub(in crate::cuda::driver) fn capture<T>(
    device: CUstream,
    private: &PrivateStream,
    capturing: &Capturing,
    f: impl FnOnce() -> T,
) -> (T, ThreadCapture) {
    let mut capture = ThreadCapture {
        device,
        private: private.raw(),
        ongoing: capturing.ongoing(),
        blas: private.blas(),
        uploads: Vec::new(),
        refused: None,
        allocations: Vec::new(),
        live: HashSet::new(),
        dropped: Vec::new(),
        library_calls: Vec::new(),
    };
    let result = during(&mut capture, f);
    (result, capture)
}

/// Takes this thread's capture away, for [`during`] on another thread; null if there is none.
pub(super) fn take() -> *mut ThreadCapture {
    CURRENT.replace(null_mut())
}

/// Gives this thread the capture that [`take`] took from it.
pub(super) fn give_back(capture: *mut ThreadCapture) {
    CURRENT.set(capture);
}

/// Lets a capture, or null, be this thread's while `f` runs.
pub(super) fn during<T>(capture: *mut ThreadCapture, f: impl FnOnce() -> T) -> T {
    let _restore = Restore(&CURRENT, CURRENT.replace(capture));
    let streams = with(|capture| (capture.device, capture.private));
    let _handles = streams.map(|(device, private)| super::library_handles_on(device, private));
    f()
}

impl ThreadCapture {
    /// Notes that the module did what cannot be captured, at this scope.
    pub fn refuse(&mut self, reason: String) {
        self.refused.get_or_insert_with(|| Error::NotCapturable { reason: at_this_scope(reason) });
    }

    /// The private stream, if a call is meant for this capture's.
    fn redirect(&mut self, stream: CUstream) -> Option<CUstream> {
        if stream == self.device || stream == self.private {
            return Some(self.private);
        }
        self.refuse("it works on a second stream or device inside `forward`".into());
        None
    }

    /// Notes an allocation that was just made.
    pub fn allocated(&mut self, address: CUdeviceptr) {
        self.allocations.push((last_node(self.private), address));
        self.live.insert(address);
    }

    /// Notes that an allocation is freed; whether the driver need not free it now: it was there before the capture, and so
    /// must stay until its end, or it went with the graph of a capture that has been ended.
    pub fn freed(&mut self, address: CUdeviceptr) -> bool {
        let from_before = !self.live.remove(&address);
        self.dropped.extend((from_before && address != 0).then_some(address));
        from_before || self.ongoing.call().is_none()
    }

    /// The captured node that was added last, as a number; 0 where there is none.
    pub fn last_node(&self) -> usize {
        last_node(self.private)
    }
}

/// The stream on which a call for `stream` has to be enqueued, as long as the call may take; `None` if the capture refuses
/// it, or has been ended.
pub(super) fn redirected(stream: *mut c_void) -> Option<Redirected> {
    let redirect = |capture: &mut ThreadCapture| {
        let stream = capture.redirect(stream.cast())?.cast();
        Some(Redirected { stream, call: Some(capture.ongoing.call()?) })
    };
    with(redirect).unwrap_or(Some(Redirected { stream, call: None }))
}

/// The stream of a call that is about to be made.
pub(super) struct Redirected {
    stream: *mut c_void,
    /// Held while the call is made.
    call: Option<InCall>,
}

impl Redirected {
    /// Whether it is the stream of a capture.
    pub fn is_private(&self) -> bool {
        self.call.is_some()
    }

    pub fn raw<T>(&self) -> *mut T {
        self.stream.cast()
    }
}

/// Holds this thread's capture in a call of a library; `None` if it has been ended.
pub(super) fn in_call() -> Option<InCall> {
    with(|capture| capture.ongoing.call()).flatten()
}

/// Whether a call on this stream is one of a capture on this thread.
pub(super) fn is_captured(stream: CUstream) -> bool {
    with(|capture| stream == capture.device || stream == capture.private).unwrap_or(false)
}

/// Whether this thread captures, and so may not do what `reason` says.
pub(super) fn refuses(reason: impl FnOnce() -> String) -> bool {
    with(|capture| capture.refuse(reason())).is_some()
}

/// As [`refuses`], of random numbers: calls differ then, without any state.
pub(super) fn refuses_to_draw() -> bool {
    let reason = || at_this_scope("it draws random numbers, and a replay would draw them out of turn".into());
    with(|capture| {
        capture.refused.get_or_insert_with(|| Error::DrawsRandomNumbers { reason: reason() });
    })
    .is_some()
}

/// A reason, and the scope that this thread is in.
fn at_this_scope(reason: String) -> String {
    let place = scope::path();
    if place.is_empty() {
        reason
    } else {
        format!("{reason} (at `{place}`)")
    }
}

/// Whether events are to be left alone on this thread: in a capture, where the order of the one stream is all that is
/// needed and an event from outside would break it, and in [`without_events`].
pub(super) fn ignores_events(stream: CUstream) -> bool {
    MUTE.get() || is_captured(stream)
}

/// Whether an event that `f` records is seen here.
pub(super) fn sees(f: impl FnOnce() -> CUresult) -> bool {
    without_events(f) == CUresult::CUDA_SUCCESS
}

/// Runs `f` with cudarc's event tracking off on this thread: for looking at addresses, where the caller orders the work.
pub(in crate::cuda::driver) fn without_events<T>(f: impl FnOnce() -> T) -> T {
    let _restore = Restore(&MUTE, MUTE.replace(true));
    f()
}

/// Where this thread's capture has got to, for [`Captured::after`](crate::cuda::driver::Captured::after).
pub(in crate::cuda) fn position() -> usize {
    with(|capture| capture.last_node()).unwrap_or(0)
}

/// The node that the capture on a stream added last, as a number; 0 where there is none.
fn last_node(stream: CUstream) -> usize {
    let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    let (mut last, mut edges, mut count): (*const sys::CUgraphNode, *const sys::CUgraphEdgeData, usize) =
        (std::ptr::null(), std::ptr::null(), 0);
    // SAFETY: out-pointers are valid or null where the driver allows it. What a capture on one stream adds next depends
    // on what it added last, and on nothing else; the list is read before the driver is called again.
    unsafe {
        let info = sys::cuStreamGetCaptureInfo_v3(
            stream,
            &mut status,
            null_mut(),
            null_mut(),
            &mut last,
            &mut edges,
            &mut count,
        );
        if info == CUresult::CUDA_SUCCESS && count > 0 && !last.is_null() {
            *last as usize
        } else {
            0
        }
    }
}
