//! What the calling thread captures, and where its calls go meanwhile.

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Arc;

use cudarc::cublas::sys::cublasHandle_t;
use cudarc::driver::sys::{self, CUdeviceptr, CUmemoryPool, CUresult, CUstream};
use hashbrown::HashSet;

use super::capture_pool::CapturePool;
use super::gate::{Capturing, InCall, Ongoing};
use super::library_call::LibraryCall;
use super::private_stream::PrivateStream;
use super::restore::Restore;
use super::status::Status;
use super::thread_end;
use crate::trace::scope;
use crate::Error;

/// Calls of the threads that one capture runs on.
pub(in crate::cuda::driver) struct ThreadCapture {
    /// The stream that the module's calls are meant for.
    device: CUstream,
    /// The private stream that is captured.
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
    /// What the module has allocated and freed, in order. What the graph allocates besides is a library's.
    pub memory: Vec<MemoryEvent>,
    /// Allocates it. Without a pool what is captured does not run.
    pool: Option<CUmemoryPool>,
    /// First byte of each allocation of this capture that is not freed yet.
    live: HashSet<CUdeviceptr>,
    /// How many allocations from before the capture were freed in it.
    pub dropped: usize,
    /// Calls of libraries, in order.
    pub library_calls: Vec<LibraryCall>,
}

/// An allocation, or the end of one, during a capture.
#[derive(Clone, Copy)]
pub(in crate::cuda::driver) struct MemoryEvent {
    /// The captured node that was added last before it; 0 for none.
    pub after: usize,
    /// First byte.
    pub address: CUdeviceptr,
    pub kind: MemoryEventKind,
}

#[derive(Clone, Copy)]
pub(in crate::cuda::driver) enum MemoryEventKind {
    Allocated {
        bytes: usize,
        /// Whether a C++ operator asked for it, and not Rust.
        library: bool,
    },
    Freed,
}

thread_local! {
    /// The capture of this thread, or null. Without a destructor, so that tensors which are freed while the thread ends
    /// can still look.
    static CURRENT: Cell<*mut ThreadCapture> = const { Cell::new(null_mut()) };
    /// Whether events are neither recorded nor waited for: see [`without_events`].
    static MUTE: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread captures.
pub(in crate::cuda::driver) fn is_capturing() -> bool {
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

/// Captures the calls of this thread for the stream `device` on the stream `private` while `f` runs. If there is a pool, they
/// run on `device`, too, with memory of the pool.
pub(in crate::cuda::driver) fn capture<T>(
    device: CUstream,
    private: &PrivateStream,
    pool: Option<&CapturePool>,
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
        memory: Vec::new(),
        pool: pool.map(CapturePool::raw),
        live: HashSet::new(),
        dropped: 0,
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
    let _handles = streams.map(|(device, private)| super::library_handles_on(device, private, device));
    f()
}

/// Runs `f` as on a thread that does not capture: what it enqueues runs, and is no part of the capture.
pub(in crate::cuda) fn outside<T>(f: impl FnOnce() -> T) -> T {
    let _restore = Restore(&CURRENT, CURRENT.replace(null_mut()));
    f()
}

/// As [`outside`], for calls of libraries whose handles hold the stream.
pub(super) fn outside_with_handles<T>(f: impl FnOnce() -> T) -> T {
    let streams = with(|capture| (capture.device, capture.private));
    let _handles = streams.map(|(device, private)| super::library_handles_on(device, device, private));
    outside(f)
}

impl ThreadCapture {
    /// Notes that the module did what cannot be captured, at this scope.
    pub fn refuse(&mut self, reason: String) {
        self.refused.get_or_insert_with(|| Error::NotCapturable { reason: at_this_scope(reason) });
    }

    /// Whether a call for this stream is one of this capture; any other is refused.
    fn accepts(&mut self, stream: CUstream) -> bool {
        let accepts = stream == self.device || stream == self.private;
        if !accepts {
            self.refuse("it works on a second stream or device inside `forward`".into());
        }
        accepts
    }

    /// Whether what is captured runs, too.
    pub fn runs(&self) -> bool {
        self.pool.is_some()
    }

    /// Allocates for a call on this stream.
    fn allocate(&mut self, target: *mut CUdeviceptr, bytes: usize, stream: CUstream, library: bool) -> CUresult {
        let pool = self.pool.filter(|_| self.ongoing.call().is_some());
        let Some(pool) = pool.filter(|_| self.accepts(stream)) else { return CUresult::REFUSED };
        // SAFETY: who calls the interposed function vouches for `target`; pool and stream are of one device.
        let status = unsafe { sys::cuMemAllocFromPoolAsync(target, bytes, pool, self.device) };
        // Nothing is allocated for an empty tensor.
        if status == CUresult::SUCCESS && bytes > 0 {
            // SAFETY: the call succeeded, so it has written the address.
            let address = unsafe { *target };
            self.note(address, MemoryEventKind::Allocated { bytes, library });
            self.live.insert(address);
        }
        status
    }

    /// Notes that an allocation is freed.
    fn freed(&mut self, address: CUdeviceptr) {
        if self.live.remove(&address) {
            self.note(address, MemoryEventKind::Freed);
        } else if address != 0 {
            self.dropped += 1;
        }
    }

    fn note(&mut self, address: CUdeviceptr, kind: MemoryEventKind) {
        self.memory.push(MemoryEvent { after: last_node(self.private), address, kind });
    }

    /// The captured node that was added last, as a number; 0 where there is none.
    pub fn last_node(&self) -> usize {
        last_node(self.private)
    }
}

/// Makes a call that enqueues work on a stream. A thread that captures makes it twice: on the private stream, which only
/// records the work, and on the stream that it is meant for, where the work runs.
pub(super) fn enqueue<T: Status>(stream: *mut c_void, call: impl Fn(Enqueue) -> T) -> T {
    let captured = with(|capture| {
        let in_call = if capture.accepts(stream.cast()) { capture.ongoing.call() } else { None };
        let private = Enqueue { stream: capture.private.cast(), is_captured: true };
        let status = in_call.map_or(T::REFUSED, |_in_call| call(private));
        (status, capture.runs().then_some(capture.device.cast()))
    });
    let runs_on = |stream: *mut c_void| {
        let status = call(Enqueue { stream, is_captured: false });
        thread_end::used(stream);
        status
    };
    match captured {
        None => runs_on(stream),
        Some((status, Some(stream))) if status == T::SUCCESS => runs_on(stream),
        Some((status, _)) => status,
    }
}

/// Where a call enqueues its work.
#[derive(Clone, Copy)]
pub(super) struct Enqueue {
    stream: *mut c_void,
    /// Whether it is recorded only.
    pub is_captured: bool,
}

impl Enqueue {
    pub fn stream<T>(&self) -> *mut T {
        self.stream.cast()
    }
}

/// Allocates, if this thread captures.
pub(super) fn allocate(target: *mut CUdeviceptr, bytes: usize, stream: *mut c_void, library: bool) -> Option<CUresult> {
    with(|capture| capture.allocate(target, bytes, stream.cast(), library))
}

/// Notes that this thread frees an allocation.
pub(super) fn freed(address: CUdeviceptr) {
    with(|capture| capture.freed(address));
}

/// The private stream, where this thread captures; `None` if it does not capture `stream`. Else `stream`.
pub(super) fn private_stream_for(stream: *mut c_void) -> Option<*mut c_void> {
    let private = |capture: &mut ThreadCapture| capture.accepts(stream.cast()).then_some(capture.private.cast());
    with(private).unwrap_or(Some(stream))
}

/// The stream of the device, where this thread captures and `stream` is the private one; else `stream`.
pub(super) fn device_stream_for(stream: *mut c_void) -> *mut c_void {
    with(|capture| if stream.cast() == capture.private { capture.device.cast() } else { stream }).unwrap_or(stream)
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

/// Whether events are to be left alone on this thread: see [`without_events`].
pub(super) fn ignores_events() -> bool {
    MUTE.get()
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

/// Where this thread's capture has got to, for [`CapturedGraph::after`](crate::cuda::driver::CapturedGraph::after).
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
