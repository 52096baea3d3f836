//! The driver's functions that enqueue work, allocate, or wait.

use std::ffi::{c_uint, c_void};
use std::sync::{Arc, LazyLock};

use cudarc::driver::sys::{
    self, CUdeviceptr, CUevent, CUfunction, CUgraphExec, CUhostFn, CUlaunchConfig, CUmemoryPool, CUresult, CUstream,
    CUstreamCaptureMode, CUstreamCaptureStatus,
};

use super::gate::between_captures;
use super::thread_capture::{self, ignores_events, is_captured, redirected, refuses};
use super::written_memory;
use crate::cuda::driver::watched_memory;

const MISSING: CUresult = CUresult::CUDA_ERROR_SHARED_OBJECT_INIT_FAILED;
const REFUSED: CUresult = CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
const NO_MEMORY: CUresult = CUresult::CUDA_ERROR_OUT_OF_MEMORY;
const SUCCESS: CUresult = CUresult::CUDA_SUCCESS;

/// A launch as the driver describes it in a graph.
fn launched(
    func: CUfunction,
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared: c_uint,
    arguments: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> sys::CUDA_KERNEL_NODE_PARAMS {
    sys::CUDA_KERNEL_NODE_PARAMS {
        func,
        gridDimX: grid[0],
        gridDimY: grid[1],
        gridDimZ: grid[2],
        blockDimX: block[0],
        blockDimY: block[1],
        blockDimZ: block[2],
        sharedMemBytes: shared,
        kernelParams: arguments,
        extra,
        kern: std::ptr::null_mut(),
        ctx: std::ptr::null_mut(),
    }
}

super::interpose! {
    /// Launches on the private stream where this thread captures.
    fn cuLaunchKernel(
        function: CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
        block_z: c_uint, shared: c_uint, stream: CUstream, arguments: *mut *mut c_void, extra: *mut *mut c_void,
    ) -> CUresult, missing MISSING;
    |next| {
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        if written_memory::is_watched()
            && !written_memory::before_launch(launched(function, grid, block, shared, arguments, extra))
        {
            return NO_MEMORY;
        }
        let Some(stream) = redirected(stream.cast()) else { return REFUSED };
        let ([gx, gy, gz], [bx, by, bz]) = (grid, block);
        // SAFETY: the arguments are the caller's, but for the stream, which is of the same context.
        unsafe { next(function, gx, gy, gz, bx, by, bz, shared, stream.raw(), arguments, extra) }
    }
}

super::interpose! {
    /// Launches on the private stream where this thread captures.
    fn cuLaunchKernelEx(
        config: *const CUlaunchConfig, function: CUfunction, arguments: *mut *mut c_void, extra: *mut *mut c_void,
    ) -> CUresult, missing MISSING;
    |next| {
        // SAFETY: the caller vouches for the configuration, which is copied.
        let mut config = unsafe { *config };
        let grid = [config.gridDimX, config.gridDimY, config.gridDimZ];
        let block = [config.blockDimX, config.blockDimY, config.blockDimZ];
        if written_memory::is_watched()
            && !written_memory::before_launch(launched(function, grid, block, config.sharedMemBytes, arguments, extra))
        {
            return NO_MEMORY;
        }
        let Some(stream) = redirected(config.hStream.cast()) else { return REFUSED };
        config.hStream = stream.raw();
        // SAFETY: the arguments are the caller's, but for the stream, which is of the same context.
        unsafe { next(&config, function, arguments, extra) }
    }
}

super::interpose! {
    /// Launches on the private stream where this thread captures.
    fn cuLaunchCooperativeKernel(
        function: CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
        block_z: c_uint, shared: c_uint, stream: CUstream, arguments: *mut *mut c_void,
    ) -> CUresult, missing MISSING;
    |next| {
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        if written_memory::is_watched() {
            let none = std::ptr::null_mut();
            if !written_memory::before_launch(launched(function, grid, block, shared, arguments, none)) {
                return NO_MEMORY;
            }
        }
        let Some(stream) = redirected(stream.cast()) else { return REFUSED };
        let ([gx, gy, gz], [bx, by, bz]) = (grid, block);
        // SAFETY: the arguments are the caller's, but for the stream, which is of the same context.
        unsafe { next(function, gx, gy, gz, bx, by, bz, shared, stream.raw(), arguments) }
    }
}

super::interpose! {
    /// Uploads. A capture keeps the bytes: the graph knows the host's address, which dangles by the time of a replay.
    fn cuMemcpyHtoDAsync_v2(target: CUdeviceptr, source: *const c_void, bytes: usize, stream: CUstream) -> CUresult,
    missing MISSING;
    |next| {
        if !written_memory::before_write(target) {
            return NO_MEMORY;
        }
        let Some(stream) = redirected(stream.cast()) else { return REFUSED };
        let kept = thread_capture::with(|capture| {
            // SAFETY: the caller vouches for `bytes` readable bytes.
            let kept: Arc<[u8]> = unsafe { std::slice::from_raw_parts(source.cast::<u8>(), bytes) }.into();
            let address = kept.as_ptr().cast();
            capture.uploads.push(kept);
            address
        });
        // SAFETY: the arguments are the caller's, or the same bytes in memory that the capture owns.
        unsafe { next(target, kept.unwrap_or(source), bytes, stream.raw()) }
    }
}

super::interpose! {
    /// Reads back; refused inside a capture, since what it read would not be there yet.
    fn cuMemcpyDtoHAsync_v2(target: *mut c_void, source: CUdeviceptr, bytes: usize, stream: CUstream) -> CUresult,
    missing MISSING;
    |next| {
        if refuses(|| {
            format!("it reads {bytes} bytes back to the host inside `forward`, and a replay has nobody to read them")
        }) {
            return REFUSED;
        }
        // SAFETY: the arguments are the caller's.
        unsafe { next(target, source, bytes, stream) }
    }
}

/// Defines a function of the driver that writes device memory at its first argument.
macro_rules! write_to {
    ($(fn $name:ident($target:ident: CUdeviceptr, $($argument:ident: $type:ty),*);)*) => {$(
        super::interpose! {
            /// Writes on the private stream where this thread captures.
            fn $name($target: CUdeviceptr, $($argument: $type,)* stream: CUstream) -> CUresult, missing MISSING;
            |next| {
                if !written_memory::before_write($target) {
                    return NO_MEMORY;
                }
                let Some(stream) = redirected(stream.cast()) else { return REFUSED };
                // SAFETY: the arguments are the caller's, but for the stream, which is of the same context.
                unsafe { next($target, $($argument,)* stream.raw()) }
            }
        }
    )*};
}

write_to! {
    fn cuMemcpyDtoDAsync_v2(target: CUdeviceptr, source: CUdeviceptr, bytes: usize);
    fn cuMemcpyAsync(target: CUdeviceptr, source: CUdeviceptr, bytes: usize);
    fn cuMemsetD8Async(target: CUdeviceptr, value: u8, count: usize);
    fn cuMemsetD16Async(target: CUdeviceptr, value: u16, count: usize);
    fn cuMemsetD32Async(target: CUdeviceptr, value: u32, count: usize);
}

super::redirect! {
    /// Copies from one device to another; a second device is refused inside a capture when its graph is read.
    fn cuMemcpyPeerAsync(
        target: CUdeviceptr, target_context: sys::CUcontext, source: CUdeviceptr, source_context: sys::CUcontext,
        bytes: usize, stream: CUstream,
    ) -> CUresult, missing MISSING, refused REFUSED, stream stream
}

/// Notes an allocation that succeeded.
///
/// # Safety
/// `target` must hold the address that the driver wrote.
unsafe fn note_allocation(target: *const CUdeviceptr, bytes: usize) {
    // Nothing is allocated for an empty tensor.
    if bytes > 0 {
        // SAFETY: the caller vouches for it.
        let address = unsafe { *target };
        thread_capture::with(|capture| capture.allocated(address));
        written_memory::allocated(address, bytes);
    }
}

super::interpose! {
    /// Allocates, in a capture as a node of the graph.
    fn cuMemAllocAsync(target: *mut CUdeviceptr, bytes: usize, stream: CUstream) -> CUresult, missing MISSING;
    |next| {
        let Some(stream) = redirected(stream.cast()) else { return REFUSED };
        // SAFETY: the arguments are the caller's, but for the stream; a call that succeeds writes the address.
        unsafe {
            let status = next(target, bytes, stream.raw());
            if status == SUCCESS {
                note_allocation(target, bytes);
            }
            status
        }
    }
}

super::interpose! {
    /// Allocates, in a capture as a node of the graph.
    fn cuMemAllocFromPoolAsync(
        target: *mut CUdeviceptr, bytes: usize, pool: CUmemoryPool, stream: CUstream,
    ) -> CUresult, missing MISSING;
    |next| {
        let Some(stream) = redirected(stream.cast()) else { return REFUSED };
        // SAFETY: the arguments are the caller's, but for the stream; a call that succeeds writes the address.
        unsafe {
            let status = next(target, bytes, pool, stream.raw());
            if status == SUCCESS {
                note_allocation(target, bytes);
            }
            status
        }
    }
}

super::interpose! {
    /// Frees, and tells those who watch the allocation. What was there before a capture is not freed in it, which the
    /// driver would refuse, but by who ends the capture.
    fn cuMemFreeAsync(address: CUdeviceptr, stream: CUstream) -> CUresult, missing MISSING;
    |next| {
        written_memory::freed(address);
        if thread_capture::with(|capture| capture.freed(address)) == Some(true) {
            return SUCCESS;
        }
        let Some(stream) = redirected(stream.cast()) else { return REFUSED };
        watched_memory::before_free(address, stream.raw());
        // SAFETY: the arguments are the caller's, but for the stream, which is of the same context.
        let status = unsafe { next(address, stream.raw()) };
        // A free in a capture fails only where the driver has broken the capture, whose end tells that. cudarc frees in
        // destructors, and would hand the error to whichever thread uses the device next.
        if stream.is_private() {
            return SUCCESS;
        }
        status
    }
}

super::interpose! {
    /// Records an event, but not in a capture: whoever waited for it outside would become part of the capture.
    fn cuEventRecord(event: CUevent, stream: CUstream) -> CUresult, missing MISSING;
    |next| {
        if ignores_events(stream) {
            return SUCCESS;
        }
        // SAFETY: the arguments are the caller's.
        unsafe { next(event, stream) }
    }
}

super::interpose! {
    /// Waits for an event, but not in a capture: one from outside would break it, and inside the order of the stream is
    /// all that is needed.
    fn cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint) -> CUresult, missing MISSING;
    |next| {
        if ignores_events(stream) {
            return SUCCESS;
        }
        // SAFETY: the arguments are the caller's.
        unsafe { next(stream, event, flags) }
    }
}

super::interpose! {
    /// Waits for a stream; refused inside a capture.
    fn cuStreamSynchronize(stream: CUstream) -> CUresult, missing MISSING;
    |next| {
        if refuses(|| "it waits for the device inside `forward`, where nothing has run yet".into()) {
            return REFUSED;
        }
        // SAFETY: the arguments are the caller's.
        unsafe { next(stream) }
    }
}

super::interpose! {
    /// Waits for the whole device: not while another thread captures, and not inside a capture.
    fn cuCtxSynchronize() -> CUresult, missing MISSING;
    |next| {
        if refuses(|| "it waits for the device inside `forward`, where nothing has run yet".into()) {
            return REFUSED;
        }
        // SAFETY: the call has no arguments.
        between_captures(|| unsafe { next() })
    }
}

super::interpose! {
    /// Whether a stream is being captured: to a thread that captures, the device's stream is.
    fn cuStreamIsCapturing(stream: CUstream, status: *mut CUstreamCaptureStatus) -> CUresult, missing MISSING;
    |next| {
        let redirected = if is_captured(stream) { redirected(stream.cast()) } else { None };
        // SAFETY: the arguments are the caller's, but for the stream, which is of the same context.
        unsafe { next(redirected.map_or(stream, |stream| stream.raw()), status) }
    }
}

super::interpose! {
    /// Begins a capture; refused inside another one.
    fn cuStreamBeginCapture_v2(stream: CUstream, mode: CUstreamCaptureMode) -> CUresult, missing MISSING;
    |next| {
        if refuses(|| "it captures a graph of its own inside `forward`".into()) {
            return REFUSED;
        }
        // SAFETY: the arguments are the caller's.
        unsafe { next(stream, mode) }
    }
}

super::interpose! {
    /// Launches a graph; refused inside a capture.
    fn cuGraphLaunch(graph: CUgraphExec, stream: CUstream) -> CUresult, missing MISSING;
    |next| {
        if refuses(|| "it launches a graph of its own inside `forward`".into()) {
            return REFUSED;
        }
        // SAFETY: the arguments are the caller's.
        unsafe { next(graph, stream) }
    }
}

super::interpose! {
    /// Calls a function of the host; refused inside a capture.
    fn cuLaunchHostFunc(stream: CUstream, function: CUhostFn, data: *mut c_void) -> CUresult, missing MISSING;
    |next| {
        if refuses(|| "it calls a function of the host inside `forward`".into()) {
            return REFUSED;
        }
        // SAFETY: the arguments are the caller's.
        unsafe { next(stream, function, data) }
    }
}

/// Whether calls of Rust code come here. They would not if cudarc looked the driver up at run time.
pub(in crate::cuda) fn is_interposed() -> bool {
    static IS_INTERPOSED: LazyLock<bool> = LazyLock::new(|| {
        // SAFETY: without a capture the driver's function has nothing to look at; here the call is only counted.
        thread_capture::sees(|| unsafe { sys::cuEventRecord(std::ptr::null_mut(), std::ptr::null_mut()) })
    });
    *IS_INTERPOSED
}
