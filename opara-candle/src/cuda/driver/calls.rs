//! What a module asks of the driver while it is captured, as far as the captured graph does not tell.
//!
//! - Uploads: a capture records the host's address, which is dangling by the time of a replay (candle refuses uploads of
//!   more than 4 KiB for that reason). A capture forbids reading back, so an upload cannot depend on the input: it is a
//!   constant of the graph, if only its bytes are saved while they are there.
//! - Read-backs: they cannot be captured, and the module's author wants to know where they are.
//! - Allocations: those of candle's tensors come from Rust, those of a library's workspaces do not. That tells where one
//!   call of a library ends and the next begins.
//!
//! So this module defines the driver functions that candle goes through for these. Linked into a program they take the
//! place of the driver's own for calls from Rust, and pass on to those: outside a capture at once.

use std::cell::RefCell;
use std::ffi::c_void;
use std::sync::{Arc, OnceLock};

use cudarc::driver::sys::{self, CUdeviceptr, CUresult, CUstream};

use crate::trace::scope;

/// Calls from Rust on this thread during a capture.
#[derive(Default)]
pub(super) struct Calls {
    /// Bytes of each upload, by the address under which the graph knows them.
    pub uploads: Vec<Arc<[u8]>>,
    /// Why the capture has to fail, if the module read something back.
    pub read_back: Option<String>,
    /// First byte of each allocation, in order.
    pub allocations: Vec<CUdeviceptr>,
}

thread_local! {
    static CAPTURE: RefCell<Option<Calls>> = const { RefCell::new(None) };
}

/// Watches calls on this thread while `f` runs.
pub(super) fn watch<T>(f: impl FnOnce() -> T) -> (T, Calls) {
    CAPTURE.set(Some(Calls::default()));
    let result = f();
    (result, CAPTURE.take().unwrap_or_default())
}

type Upload = unsafe extern "C" fn(CUdeviceptr, *const c_void, usize, CUstream) -> CUresult;
type ReadBack = unsafe extern "C" fn(*mut c_void, CUdeviceptr, usize, CUstream) -> CUresult;
type Allocate = unsafe extern "C" fn(*mut CUdeviceptr, usize, CUstream) -> CUresult;

/// The driver's own functions.
struct Driver {
    upload: Upload,
    read_back: ReadBack,
    allocate: Allocate,
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
                Some(Driver { upload, read_back, allocate, _library: library })
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
    let refused = CAPTURE.with_borrow_mut(|capture| {
        let Some(capture) = capture else { return false };
        let place = scope::path();
        let place = if place.is_empty() { place } else { format!(" at `{place}`") };
        capture.read_back.get_or_insert_with(|| {
            format!(
                "it reads {bytes} bytes back to the host inside `forward`{place}, and a replay has nobody to read them"
            )
        });
        true
    });
    if refused {
        return CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
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
    // SAFETY: the arguments are the caller's.
    let status = unsafe { (driver.allocate)(target, bytes, stream) };
    if status == CUresult::CUDA_SUCCESS {
        CAPTURE.with_borrow_mut(|capture| {
            if let Some(capture) = capture {
                // SAFETY: the call succeeded, so it wrote the address.
                capture.allocations.push(unsafe { *target });
            }
        });
    }
    status
}

/// Whether calls of Rust code come here. They would not if cudarc looked the driver up at run time.
pub(in crate::cuda) fn are_watched() -> bool {
    let (called, copies) = watch(|| {
        // SAFETY: no byte is copied, and the driver ignores the pointers then.
        unsafe {
            sys::cuMemcpyHtoDAsync_v2(0, std::ptr::NonNull::<u8>::dangling().as_ptr().cast(), 0, std::ptr::null_mut())
        }
    });
    called == CUresult::CUDA_SUCCESS && copies.uploads.len() == 1
}
