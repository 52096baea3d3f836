//! The capture of the calling thread, and the streams that its calls go to.

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Arc;

use cudarc::cublas::sys::cublasHandle_t;
use cudarc::driver::sys::{self, CUdeviceptr, CUmemoryPool, CUresult, CUstream};
use hashbrown::HashSet;

use super::capture_pool::CapturePool;
use super::error::Refusal;
use super::held::Held;
use super::library_call::LibraryCall;
use super::ongoing::{Capturing, InCall, Ongoing};
use super::private_stream::PrivateStream;
use super::restore::Restore;
use super::status::Status;
use super::{library_handles, thread_end};

/// A capture, and everything that is recorded of the calls in it.
pub(crate) struct ThreadCapture {
    /// The stream that the module passes to its calls.
    device: CUstream,
    /// The private stream that is captured.
    private: CUstream,
    /// Locked during each call of the driver.
    ongoing: Arc<Ongoing>,
    /// A cuBLAS handle on the private stream. The module's handle is shared by all threads.
    pub blas: cublasHandle_t,
    /// The cuDNN handle of the private stream, or null. It runs what is captured with the module's handle.
    pub dnn: *mut c_void,
    pub recorded: Recorded,
    /// Says in which scope this thread is.
    scope: fn() -> String,
    /// The pool that allocates them, if anything may be allocated.
    pool: Option<CUmemoryPool>,
    /// Does captured work run, too?
    pub runs: bool,
    /// Do older tensors stay that it drops?
    holds: bool,
    /// Addresses of the allocations of this capture that are not freed yet.
    live: HashSet<CUdeviceptr>,
}

/// The calls of a capture.
#[derive(Default)]
pub struct Recorded {
    /// The bytes of each upload; the graph points to them. A capture refuses reads to the host, so an upload cannot depend on the
    /// input: it is a constant of the graph.
    pub uploads: Vec<Arc<[u8]>>,
    /// Why the capture fails, if the module did something that cannot be captured.
    pub refused: Option<Refusal>,
    /// The module's allocations and frees, in order. Other allocations of the graph are a library's.
    pub memory: Vec<MemoryEvent>,
    /// Number of frees of older allocations.
    pub dropped: usize,
    /// Older allocations whose frees are put off.
    pub held: Held,
    /// Library calls, in order.
    pub library_calls: Vec<LibraryCall>,
}

/// An allocation or a free during a capture.
#[derive(Clone, Copy)]
pub struct MemoryEvent {
    /// The last captured node before it; 0 if there is none.
    pub after: usize,
    /// First byte.
    pub address: CUdeviceptr,
    /// Which of the two.
    pub kind: MemoryEventKind,
}

/// Whether memory was allocated or freed.
#[derive(Clone, Copy)]
pub enum MemoryEventKind {
    /// An allocation.
    Allocated {
        /// Its size.
        bytes: usize,
        /// Was it requested by a C++ operator instead of Rust code?
        library: bool,
    },
    /// A free.
    Freed,
}

thread_local! {
    /// The capture of this thread, or null. It has no destructor, so that it can still be read when tensors are freed while the
    /// thread ends.
    static CURRENT: Cell<*mut ThreadCapture> = const { Cell::new(null_mut()) };
    /// Are event records and event waits skipped? See [`without_events`].
    static MUTE: Cell<bool> = const { Cell::new(false) };
}

/// Does this thread capture?
pub(crate) fn is_capturing() -> bool {
    !CURRENT.get().is_null()
}

/// Calls `f` with this thread's capture, if there is one. Driver calls in `f` are not captured.
pub(crate) fn with<T>(f: impl FnOnce(&mut ThreadCapture) -> T) -> Option<T> {
    let current = CURRENT.replace(null_mut());
    if current.is_null() {
        return None;
    }
    let _restore = Restore(&CURRENT, current);
    // SAFETY: the pointer is that of a value on the stack of `capture`, which waits for this thread. It is out of the
    // thread-local while `f` runs, so this is the only reference.
    Some(f(unsafe { &mut *current }))
}

/// Runs `f`. Calls of this thread on the stream `device` are captured on the stream `private`, with memory of the pool. If work of that
/// runs, they also run on `device`.
pub(crate) fn capture<T>(
    device: CUstream,
    private: &mut PrivateStream,
    pool: Option<&CapturePool>,
    scope: fn() -> String,
    capturing: &Capturing,
    f: impl FnOnce() -> T,
) -> (T, Recorded) {
    let mut capture = ThreadCapture {
        device,
        private: private.raw(),
        ongoing: capturing.ongoing(),
        blas: private.blas(),
        dnn: *private.dnn(),
        recorded: Recorded::default(),
        scope,
        pool: pool.map(CapturePool::raw),
        runs: pool.is_some_and(CapturePool::runs),
        holds: pool.is_some_and(CapturePool::holds),
        live: HashSet::new(),
    };
    let result = during(&mut capture, f);
    *private.dnn() = capture.dnn;
    (result, capture.recorded)
}

/// Removes this thread's capture, for [`during`] on another thread; null if there is none.
pub(crate) fn take() -> *mut ThreadCapture {
    CURRENT.replace(null_mut())
}

/// Gives the capture of [`take`] back to this thread.
pub(crate) fn give_back(capture: *mut ThreadCapture) {
    CURRENT.set(capture);
}

/// Runs `f` with this capture, or null for none, as this thread's.
pub(crate) fn during<T>(capture: *mut ThreadCapture, f: impl FnOnce() -> T) -> T {
    let _restore = Restore(&CURRENT, CURRENT.replace(capture));
    let streams = with(|capture| (capture.device, capture.private));
    let _handles = streams.map(|(device, private)| library_handles::handles_on(device, private, device));
    f()
}

/// Runs `f` outside the capture: its calls run, and are not captured.
pub fn outside<T>(f: impl FnOnce() -> T) -> T {
    let _restore = Restore(&CURRENT, CURRENT.replace(null_mut()));
    f()
}

impl ThreadCapture {
    /// Records that the module did something that cannot be captured, and the scope.
    pub fn refuse(&mut self, reason: String) {
        let scope = self.scope;
        self.recorded.refused.get_or_insert_with(|| Refusal::NotCapturable(in_scope(reason, &scope())));
    }

    /// Does a call on this stream belong to this capture? Calls on other streams are refused.
    fn accepts(&mut self, stream: CUstream) -> bool {
        let accepts = stream == self.device || stream == self.private;
        if !accepts {
            self.refuse("it works on a second stream or device inside `forward`".into());
        }
        accepts
    }

    /// The stream that the module passes to its calls.
    #[cfg(feature = "cudnn")]
    pub fn device(&self) -> CUstream {
        self.device
    }

    /// Allocates for a call on this stream.
    fn allocate(&mut self, target: *mut CUdeviceptr, bytes: usize, stream: CUstream, library: bool) -> CUresult {
        let in_call = self.ongoing.call();
        let pool = self.pool.filter(|_| in_call.is_some());
        let Some(pool) = pool.filter(|_| self.accepts(stream)) else { return CUresult::REFUSED };
        // SAFETY: the caller of the interposed function vouches for `target`; pool and stream are of one device.
        let status = unsafe { sys::cuMemAllocFromPoolAsync(target, bytes, pool, self.device) };
        // An empty tensor needs no allocation.
        if status == CUresult::SUCCESS && bytes > 0 {
            // SAFETY: the call succeeded, so it has written the address.
            let address = unsafe { *target };
            self.note(address, MemoryEventKind::Allocated { bytes, library });
            self.live.insert(address);
        }
        status
    }

    /// Records a free on a stream. Is it to be made now?
    fn freed(&mut self, address: CUdeviceptr, stream: CUstream) -> bool {
        if self.live.remove(&address) {
            self.note(address, MemoryEventKind::Freed);
        } else if address != 0 && self.holds {
            self.recorded.held.hold(address, stream);
            return false;
        } else if address != 0 {
            self.recorded.dropped += 1;
        }
        true
    }

    fn note(&mut self, address: CUdeviceptr, kind: MemoryEventKind) {
        self.recorded.memory.push(MemoryEvent { after: self.last_node(), address, kind });
    }

    /// The last captured node, as a number; 0 if there is none, or if another thread has ended the capture, whose nodes are gone.
    pub fn last_node(&self) -> usize {
        self.ongoing.call().map_or(0, |_in_call| last_node(self.private))
    }

    /// Lets what comes next depend on one node, if a library has forked streams of its own and joined them: the range of a call and the
    /// place of an allocation name one node.
    pub fn join(&mut self) {
        let Some(_in_call) = self.ongoing.call() else { return };
        let forked = |graph, last: &[_]| (last.len() > 1).then(|| (graph, last.to_vec()));
        let Some((graph, last)) = with_last_nodes(self.private, forked) else { return };
        let mut joined = null_mut();
        let set = sys::CUstreamUpdateCaptureDependencies_flags::CU_STREAM_SET_CAPTURE_DEPENDENCIES as u32;
        // SAFETY: this thread captures the stream, the graph is its own, the nodes are of that graph, and `joined` receives one more. An
        // edge without data is a plain one.
        let status = unsafe {
            match sys::cuGraphAddEmptyNode(&mut joined, graph, last.as_ptr(), last.len()) {
                CUresult::CUDA_SUCCESS => {
                    sys::cuStreamUpdateCaptureDependencies_v2(self.private, &mut joined, std::ptr::null(), 1, set)
                }
                failed => failed,
            }
        };
        if status != CUresult::CUDA_SUCCESS {
            self.refuse(format!("the streams that a library has forked cannot be joined: {status:?}"));
        }
    }
}

/// Makes a call that enqueues work on a stream. A capturing thread makes it on the private stream, where it is recorded, and, if captured
/// work runs, on the given stream, too.
pub(crate) fn enqueue<T: Status>(stream: *mut c_void, call: impl Fn(Enqueue) -> T) -> T {
    let captured = with(|capture| {
        let in_call = if capture.accepts(stream.cast()) { capture.ongoing.call() } else { None };
        let private = Enqueue { stream: capture.private.cast(), is_captured: true };
        let status = in_call.map_or(T::REFUSED, |_in_call| call(private));
        (status, capture.runs.then_some(capture.device.cast()))
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

/// The stream on which a call enqueues its work.
#[derive(Clone, Copy)]
pub(crate) struct Enqueue {
    stream: *mut c_void,
    /// Is the work recorded only?
    pub is_captured: bool,
}

impl Enqueue {
    pub fn stream<T>(&self) -> *mut T {
        self.stream.cast()
    }
}

/// Allocates, if this thread captures.
pub(crate) fn allocate(target: *mut CUdeviceptr, bytes: usize, stream: *mut c_void, library: bool) -> Option<CUresult> {
    with(|capture| capture.allocate(target, bytes, stream.cast(), library))
}

/// Records a free, if this thread captures. Is it to be made now?
pub(crate) fn freed(address: CUdeviceptr, stream: CUstream) -> bool {
    with(|capture| capture.freed(address, stream)).unwrap_or(true)
}

/// On a capturing thread the private stream, or `None` if `stream` is not the captured one. On other threads `stream`.
pub(crate) fn private_stream_for(stream: *mut c_void) -> Option<*mut c_void> {
    let private = |capture: &mut ThreadCapture| capture.accepts(stream.cast()).then_some(capture.private.cast());
    with(private).unwrap_or(Some(stream))
}

/// The device's stream if this thread captures and `stream` is the private one; otherwise `stream`.
pub(crate) fn device_stream_for(stream: *mut c_void) -> *mut c_void {
    with(|capture| if stream.cast() == capture.private { capture.device.cast() } else { stream }).unwrap_or(stream)
}

/// Marks this thread's capture as inside a library call; `None` if the capture has been ended.
pub(crate) fn in_call() -> Option<InCall> {
    with(|capture| capture.ongoing.call()).flatten()
}

/// Does a call on this stream belong to this thread's capture?
pub(crate) fn is_captured(stream: CUstream) -> bool {
    with(|capture| stream == capture.device || stream == capture.private).unwrap_or(false)
}

/// On a capturing thread, refuses a call for `reason`. Returns whether it was refused.
pub(crate) fn refuses(reason: impl FnOnce() -> String) -> bool {
    with(|capture| capture.refuse(reason())).is_some()
}

/// Like [`refuses`], for random numbers: the module's calls differ without state.
pub(crate) fn refuses_to_draw() -> bool {
    with(|capture| {
        let scope = capture.scope;
        let reason = || in_scope("it draws random numbers, and a replay would draw them out of turn".into(), &scope());
        capture.recorded.refused.get_or_insert_with(|| Refusal::DrawsRandomNumbers(reason()));
    })
    .is_some()
}

/// A reason with the scope in which it came up.
fn in_scope(reason: String, scope: &str) -> String {
    if scope.is_empty() {
        reason
    } else {
        format!("{reason} (at `{scope}`)")
    }
}

/// Are events skipped on this thread? See [`without_events`].
pub(crate) fn ignores_events() -> bool {
    MUTE.get()
}

/// Do event records in `f` reach these functions?
pub(crate) fn sees(f: impl FnOnce() -> CUresult) -> bool {
    // SAFETY: nothing in `f` is ordered by events: it asks whether they are skipped.
    unsafe { without_events(f) == CUresult::CUDA_SUCCESS }
}

/// Runs `f` without cudarc's event tracking on this thread. For reading addresses only.
///
/// # Safety
/// The caller must order the work that uses what `f` returns.
pub unsafe fn without_events<T>(f: impl FnOnce() -> T) -> T {
    let _restore = Restore(&MUTE, MUTE.replace(true));
    f()
}

/// The current position of this thread's capture, a number that grows with its nodes; 0 if there is none.
pub fn position() -> usize {
    with(|capture| capture.last_node()).unwrap_or(0)
}

/// The last node of the capture on a stream, as a number; 0 if there is none.
fn last_node(stream: CUstream) -> usize {
    with_last_nodes(stream, |_, last| last.first().map_or(0, |&node| node as usize))
}

/// Calls `f` with the graph that is captured on a stream and the nodes that the next one depends on. These are one node, or none yet,
/// but for forks of a library that are not [joined](ThreadCapture::join).
fn with_last_nodes<T>(stream: CUstream, f: impl FnOnce(sys::CUgraph, &[sys::CUgraphNode]) -> T) -> T {
    let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    let (mut last, mut edges, mut count): (*const sys::CUgraphNode, *const sys::CUgraphEdgeData, usize) =
        (std::ptr::null(), std::ptr::null(), 0);
    let mut graph = null_mut();
    // SAFETY: out-pointers are valid, or null where the driver allows it.
    let info = unsafe {
        let id = null_mut();
        sys::cuStreamGetCaptureInfo_v3(stream, &mut status, id, &mut graph, &mut last, &mut edges, &mut count)
    };
    let last = if info == CUresult::CUDA_SUCCESS && count > 0 && !last.is_null() {
        // SAFETY: the driver has written a list of so many nodes. It is valid until the capture's next call, which is not one of `f`.
        unsafe { std::slice::from_raw_parts(last, count) }
    } else {
        &[]
    };
    f(graph, last)
}
