//! What a module asks of the driver while it is captured, as far as the captured graph does not tell.
//!
//! - Uploads: a capture records the host's address, which is dangling by the time of a replay (candle refuses uploads of
//!   more than 4 KiB for that reason). A capture forbids reading back, so an upload cannot depend on the input: it is a
//!   constant of the graph, if only its bytes are saved while they are there.
//! - Read-backs: they cannot be captured, and the module's author wants to know where they are.
//! - Work on another stream: it is not captured, so it would run at once, on memory that does not exist yet.
//! - Allocations: those of candle's tensors come from Rust, those of a library's workspaces do not. That tells where one
//!   call of a library ends and the next begins.
//!
//! - Waits for the whole device on other threads: the driver breaks the capture off, so they come after it.
//!
//! And after it: memory that the module made before and frees later, while graphs still read it.
//!
//! So this module defines the driver functions that candle goes through for these. Linked into a program they take the
//! place of the driver's own for calls from Rust, and pass on to those: outside a capture at once.

use std::cell::RefCell;
use std::ffi::c_void;
use std::sync::{Arc, OnceLock};

use cudarc::driver::sys::{self, CUdeviceptr, CUresult, CUstream};
use hashbrown::HashSet;

use super::watched_memory::before_free;
use crate::cuda::capturing::while_not_capturing;
use crate::trace::scope;

/// Calls from Rust on this thread during a capture.
pub(super) struct Calls {
    /// The stream that captures.
    stream: CUstream,
    /// Bytes of each upload, by the address under which the graph knows them.
    pub uploads: Vec<Arc<[u8]>>,
    /// Why the capture has to fail, if the module did what cannot be captured.
    pub refused: Option<String>,
    /// Each allocation's node and first byte, in order.
    pub allocations: Vec<(usize, CUdeviceptr)>,
    /// First byte of each of them that is not freed yet.
    live: HashSet<CUdeviceptr>,
    /// Allocations from before the capture that were freed in it. They still exist.
    pub dropped: Vec<CUdeviceptr>,
}

thread_local! {
    static CAPTURE: RefCell<Option<Calls>> = const { RefCell::new(None) };
}

/// Watches calls on this thread while `f` runs, `stream` being the one that captures.
pub(super) fn watch<T>(stream: CUstream, f: impl FnOnce() -> T) -> (T, Calls) {
    let calls = || Calls {
        stream,
        uploads: Vec::new(),
        refused: None,
        allocations: Vec::new(),
        live: HashSet::new(),
        dropped: Vec::new(),
    };
    CAPTURE.set(Some(calls()));
    let result = f();
    (result, CAPTURE.take().unwrap_or_else(calls))
}

impl Calls {
    /// Whether a call may go on: on this stream, and if there is no `reason` against it. If not, that is noted.
    fn admit(&mut self, stream: CUstream, reason: Option<String>) -> bool {
        let elsewhere = || "it works on a second stream or device inside `forward`".to_string();
        let Some(reason) = reason.or_else(|| (stream != self.stream).then(elsewhere)) else { return true };
        let place = scope::path();
        let place = if place.is_empty() { place } else { format!(" (at `{place}`)") };
        self.refused.get_or_insert_with(|| format!("{reason}{place}"));
        false
    }
}

/// Whether this thread captures and may not make this call.
fn refuses(stream: CUstream, reason: impl FnOnce() -> Option<String>) -> bool {
    CAPTURE.with_borrow_mut(|capture| capture.as_mut().is_some_and(|capture| !capture.admit(stream, reason())))
}

const REFUSED: CUresult = CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;

type Upload = unsafe extern "C" fn(CUdeviceptr, *const c_void, usize, CUstream) -> CUresult;
type ReadBack = unsafe extern "C" fn(*mut c_void, CUdeviceptr, usize, CUstream) -> CUresult;
type Allocate = unsafe extern "C" fn(*mut CUdeviceptr, usize, CUstream) -> CUresult;
type Free = unsafe extern "C" fn(CUdeviceptr, CUstream) -> CUresult;
type Synchronize = unsafe extern "C" fn() -> CUresult;

/// The driver's own functions.
struct Driver {
    upload: Upload,
    read_back: ReadBack,
    allocate: Allocate,
    free: Free,
    synchronize: Synchronize,
    _library: libloading::Library,
}

fn driver() -> Option<&'static Driver> {
    static DRIVER: OnceLock<Option<Driver>> = OnceLock::new();
    DRIVER
        .get_or_init(|| {
            // SAFETY: the program is linked against this library already, so loading it runs no new code; the symbols
            // have the documented types, which `sys` declares, too.
            unsafe {
                let library = libloading::Library::new("libcuda.so.1").ok()?;
                let upload = *library.get::<Upload>(b"cuMemcpyHtoDAsync_v2\0").ok()?;
                let read_back = *library.get::<ReadBack>(b"cuMemcpyDtoHAsync_v2\0").ok()?;
                let allocate = *library.get::<Allocate>(b"cuMemAllocAsync\0").ok()?;
                let free = *library.get::<Free>(b"cuMemFreeAsync\0").ok()?;
                let synchronize = *library.get::<Synchronize>(b"cuCtxSynchronize\0").ok()?;
                Some(Driver { upload, read_back, allocate, free, synchronize, _library: library })
            }
        })
        .as_ref()
}

/// The driver's function of this name, with the bytes of captured uploads kept.
///
/// # Safety
/// As the driver documents: `source` holds `bytes` bytes and `target` has room for them.
#[no_mangle]
pub unsafe extern "C" fn cuMemcpyHtoDAsync_v2(
    target: CUdeviceptr,
    source: *const c_void,
    bytes: usize,
    stream: CUstream,
) -> CUresult {
    let Some(driver) = driver() else { return CUresult::CUDA_ERROR_SHARED_OBJECT_INIT_FAILED };
    if refuses(stream, || None) {
        return REFUSED;
    }
    let kept = CAPTURE.with_borrow_mut(|capture| {
        let uploads = &mut capture.as_mut()?.uploads;
        // SAFETY: the caller vouches for `bytes` readable bytes.
        uploads.push(unsafe { std::slice::from_raw_parts(source.cast::<u8>(), bytes) }.into());
        uploads.last().map(|kept| kept.as_ptr())
    });
    // SAFETY: the arguments are the caller's, or the same bytes in memory that the capture owns.
    unsafe { (driver.upload)(target, kept.map_or(source, <*const u8>::cast), bytes, stream) }
}

/// The driver's function of this name, refused inside a capture: what it read would not be there yet.
///
/// # Safety
/// As the driver documents: `source` holds `bytes` bytes and `target` has room for them.
#[no_mangle]
pub unsafe extern "C" fn cuMemcpyDtoHAsync_v2(
    target: *mut c_void,
    source: CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> CUresult {
    let Some(driver) = driver() else { return CUresult::CUDA_ERROR_SHARED_OBJECT_INIT_FAILED };
    let reason = || {
        let what = "back to the host inside `forward`, and a replay has nobody to read them";
        Some(format!("it reads {bytes} bytes {what}"))
    };
    if refuses(stream, reason) {
        return REFUSED;
    }
    // SAFETY: the arguments are the caller's.
    unsafe { (driver.read_back)(target, source, bytes, stream) }
}

/// The driver's function of this name, with what it allocates noted.
///
/// # Safety
/// As the driver documents: `target` has room for an address.
#[no_mangle]
pub unsafe extern "C" fn cuMemAllocAsync(target: *mut CUdeviceptr, bytes: usize, stream: CUstream) -> CUresult {
    let Some(driver) = driver() else { return CUresult::CUDA_ERROR_SHARED_OBJECT_INIT_FAILED };
    if refuses(stream, || None) {
        return REFUSED;
    }
    // SAFETY: the arguments are the caller's.
    let status = unsafe { (driver.allocate)(target, bytes, stream) };
    // Nothing is allocated for an empty tensor.
    if status == CUresult::CUDA_SUCCESS && bytes > 0 {
        CAPTURE.with_borrow_mut(|capture| {
            if let Some(capture) = capture {
                // SAFETY: the call succeeded, so it wrote the address.
                let address = unsafe { *target };
                capture.allocations.push((last_node(stream), address));
                capture.live.insert(address);
            }
        });
    }
    status
}

/// The driver's function of this name, with [those told](before_free) who watch the allocation. What was there before a capture is
/// not freed in it, which the driver would refuse, but by who ends the capture.
///
/// # Safety
/// As the driver documents: `address` is an allocation's first byte.
#[no_mangle]
pub unsafe extern "C" fn cuMemFreeAsync(address: CUdeviceptr, stream: CUstream) -> CUresult {
    let Some(driver) = driver() else { return CUresult::CUDA_ERROR_SHARED_OBJECT_INIT_FAILED };
    let from_before = CAPTURE.with_borrow_mut(|capture| {
        let Some(capture) = capture else { return false };
        let from_before = !capture.live.remove(&address);
        capture.dropped.extend((from_before && address != 0).then_some(address));
        from_before
    });
    if from_before {
        return CUresult::CUDA_SUCCESS;
    }
    before_free(address, stream);
    // SAFETY: the arguments are the caller's.
    unsafe { (driver.free)(address, stream) }
}

/// The driver's function of this name, once no other thread captures.
///
/// # Safety
/// As the driver documents.
#[no_mangle]
pub unsafe extern "C" fn cuCtxSynchronize() -> CUresult {
    let Some(driver) = driver() else { return CUresult::CUDA_ERROR_SHARED_OBJECT_INIT_FAILED };
    // SAFETY: the call has no arguments.
    while_not_capturing(|| unsafe { (driver.synchronize)() })
}

/// The node that the capture on a stream added last, as a number; 0 where there is none.
pub(super) fn last_node(stream: CUstream) -> usize {
    use std::ptr::null_mut as null;
    let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    let (mut last, mut edges, mut count): (*const sys::CUgraphNode, *const sys::CUgraphEdgeData, usize) =
        (std::ptr::null(), std::ptr::null(), 0);
    // SAFETY: out-pointers are valid or null where the driver allows it. What a capture on one stream adds next depends
    // on what it added last, and on nothing else; the list is read before the driver is called again.
    unsafe {
        let info =
            sys::cuStreamGetCaptureInfo_v3(stream, &mut status, null(), null(), &mut last, &mut edges, &mut count);
        if info == CUresult::CUDA_SUCCESS && count > 0 && !last.is_null() {
            *last as usize
        } else {
            0
        }
    }
}

/// Whether calls of Rust code come here. They would not if cudarc looked the driver up at run time.
pub(in crate::cuda) fn are_watched() -> bool {
    let (called, calls) = watch(std::ptr::null_mut(), || {
        // SAFETY: no byte is copied, and the driver ignores the pointers then.
        unsafe {
            sys::cuMemcpyHtoDAsync_v2(0, std::ptr::NonNull::<u8>::dangling().as_ptr().cast(), 0, std::ptr::null_mut())
        }
    });
    called == CUresult::CUDA_SUCCESS && calls.uploads.len() == 1
}
