//! The driver's functions that enqueue work, allocate memory, or wait.

use std::ffi::{c_uint, c_void};
use std::sync::{Arc, LazyLock};

use cudarc::driver::sys::{
    self, CUdeviceptr, CUevent, CUfunction, CUgraphExec, CUhostFn, CUlaunchConfig, CUmemoryPool, CUresult, CUstream,
    CUstreamCaptureMode, CUstreamCaptureStatus,
};

use super::ongoing::between_captures;
use super::status::Status;
use super::thread_capture::{
    self, device_stream_for, enqueue, ignores_events, is_captured, private_stream_for, refuses,
};
use super::{frees, thread_end, watch};

const MISSING: CUresult = CUresult::CUDA_ERROR_SHARED_OBJECT_INIT_FAILED;
const REFUSED: CUresult = CUresult::REFUSED;
const NO_MEMORY: CUresult = CUresult::NO_MEMORY;
const SUCCESS: CUresult = CUresult::SUCCESS;

/// The parameters of a launch, as a node of a graph has them.
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
        if watch::is_watched()
            && !watch::before_launch(launched(function, grid, block, shared, arguments, extra))
        {
            return NO_MEMORY;
        }
        let ([gx, gy, gz], [bx, by, bz]) = (grid, block);
        // SAFETY: the arguments are the caller's, but for the stream, which is of the same context.
        enqueue(stream.cast(), |on| unsafe {
            next(function, gx, gy, gz, bx, by, bz, shared, on.stream(), arguments, extra)
        })
    }
}

super::interpose! {
    /// Launches on the private stream where this thread captures.
    fn cuLaunchKernelEx(
        config: *const CUlaunchConfig, function: CUfunction, arguments: *mut *mut c_void, extra: *mut *mut c_void,
    ) -> CUresult, missing MISSING;
    |next| {
        // SAFETY: the caller vouches for the configuration, which is copied.
        let config = unsafe { *config };
        let grid = [config.gridDimX, config.gridDimY, config.gridDimZ];
        let block = [config.blockDimX, config.blockDimY, config.blockDimZ];
        if watch::is_watched()
            && !watch::before_launch(launched(function, grid, block, config.sharedMemBytes, arguments, extra))
        {
            return NO_MEMORY;
        }
        enqueue(config.hStream.cast(), |on| {
            let config = CUlaunchConfig { hStream: on.stream(), ..config };
            // SAFETY: the arguments are the caller's, but for the stream, which is of the same context.
            unsafe { next(&config, function, arguments, extra) }
        })
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
        if watch::is_watched() {
            let none = std::ptr::null_mut();
            if !watch::before_launch(launched(function, grid, block, shared, arguments, none)) {
                return NO_MEMORY;
            }
        }
        let ([gx, gy, gz], [bx, by, bz]) = (grid, block);
        // SAFETY: the arguments are the caller's, but for the stream, which is of the same context.
        enqueue(stream.cast(), |on| unsafe { next(function, gx, gy, gz, bx, by, bz, shared, on.stream(), arguments) })
    }
}

super::interpose! {
    /// Uploads. A capture copies the bytes, since the host's address may dangle at the time of a replay.
    fn cuMemcpyHtoDAsync_v2(target: CUdeviceptr, source: *const c_void, bytes: usize, stream: CUstream) -> CUresult,
    missing MISSING;
    |next| {
        if !watch::before_write(target) {
            return NO_MEMORY;
        }
        let kept = thread_capture::with(|capture| {
            // SAFETY: the caller vouches for `bytes` readable bytes.
            let kept: Arc<[u8]> = unsafe { std::slice::from_raw_parts(source.cast::<u8>(), bytes) }.into();
            let address = kept.as_ptr().cast();
            capture.recorded.uploads.push(kept);
            address
        });
        enqueue(stream.cast(), |on| {
            let source = kept.filter(|_| on.is_captured).unwrap_or(source);
            // SAFETY: the arguments are the caller's, or the same bytes in memory that the capture owns.
            unsafe { next(target, source, bytes, on.stream()) }
        })
    }
}

super::interpose! {
    /// Reads to the host; refused inside a capture, since the value would not be there yet.
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
                if !watch::before_write($target) {
                    return NO_MEMORY;
                }
                // SAFETY: the arguments are the caller's, but for the stream, which is of the same context.
                enqueue(stream.cast(), |on| unsafe { next($target, $($argument,)* on.stream()) })
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
    /// Copies between devices. In a capture, a second device is refused when the graph is read.
    fn cuMemcpyPeerAsync(
        target: CUdeviceptr, target_context: sys::CUcontext, source: CUdeviceptr, source_context: sys::CUcontext,
        bytes: usize, stream: CUstream,
    ) -> CUresult, missing MISSING, stream stream
}

/// Records an allocation that succeeded.
///
/// # Safety
/// `target` must hold the address that the driver wrote.
unsafe fn note_allocation(target: *const CUdeviceptr, bytes: usize) {
    // An empty tensor needs no allocation.
    if bytes > 0 {
        // SAFETY: the caller vouches for it.
        watch::allocated(unsafe { *target }, bytes);
    }
}

super::interpose! {
    /// Allocates; during a capture from its pool.
    fn cuMemAllocAsync(target: *mut CUdeviceptr, bytes: usize, stream: CUstream) -> CUresult, missing MISSING;
    |next| {
        if let Some(status) = thread_capture::allocate(target, bytes, stream.cast(), false) {
            return status;
        }
        // SAFETY: the arguments are the caller's; a call that succeeds writes the address.
        unsafe {
            let status = next(target, bytes, stream);
            if status == SUCCESS {
                note_allocation(target, bytes);
            }
            status
        }
    }
}

super::interpose! {
    /// Allocates; during a capture from its pool.
    fn cuMemAllocFromPoolAsync(
        target: *mut CUdeviceptr, bytes: usize, pool: CUmemoryPool, stream: CUstream,
    ) -> CUresult, missing MISSING;
    |next| {
        if let Some(status) = thread_capture::allocate(target, bytes, stream.cast(), false) {
            return status;
        }
        // SAFETY: the arguments are the caller's; a call that succeeds writes the address.
        unsafe {
            let status = next(target, bytes, pool, stream);
            if status == SUCCESS {
                note_allocation(target, bytes);
            }
            status
        }
    }
}

super::interpose! {
    /// Frees, and notifies watchers of the allocation.
    fn cuMemFreeAsync(address: CUdeviceptr, stream: CUstream) -> CUresult, missing MISSING;
    |next| {
        let stream = device_stream_for(stream.cast()).cast();
        if !thread_capture::freed(address, stream) {
            return SUCCESS;
        }
        watch::freed(address);
        frees::before_free(address, stream);
        // SAFETY: the arguments are the caller's, but for the stream, which is of the same context.
        let status = unsafe { next(address, stream) };
        thread_end::used(stream.cast());
        status
    }
}

super::interpose! {
    /// Records an event, unless events are skipped on this thread.
    fn cuEventRecord(event: CUevent, stream: CUstream) -> CUresult, missing MISSING;
    |next| {
        if ignores_events() {
            return SUCCESS;
        }
        // SAFETY: the arguments are the caller's.
        unsafe { next(event, stream) }
    }
}

super::interpose! {
    /// Waits for an event, unless events are skipped on this thread. A capture needs no events: its one stream is ordered.
    fn cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint) -> CUresult, missing MISSING;
    |next| {
        if ignores_events() {
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
        if refuses(|| "it waits for the device inside `forward`, which a graph cannot repeat".into()) {
            return REFUSED;
        }
        // SAFETY: the arguments are the caller's.
        unsafe { next(stream) }
    }
}

super::interpose! {
    /// Waits for the whole device: delayed while another thread captures, refused inside a capture.
    fn cuCtxSynchronize() -> CUresult, missing MISSING;
    |next| {
        if refuses(|| "it waits for the device inside `forward`, which a graph cannot repeat".into()) {
            return REFUSED;
        }
        // SAFETY: the call has no arguments.
        between_captures(|| unsafe { next() })
    }
}

super::interpose! {
    /// Is a stream being captured? On a capturing thread the device's stream is.
    fn cuStreamIsCapturing(stream: CUstream, status: *mut CUstreamCaptureStatus) -> CUresult, missing MISSING;
    |next| {
        let private = if is_captured(stream) { private_stream_for(stream.cast()) } else { None };
        // SAFETY: the arguments are the caller's, but for the stream, which is of the same context.
        unsafe { next(private.map_or(stream, |private| private.cast()), status) }
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
        let status = unsafe { next(graph, stream) };
        thread_end::used(stream.cast());
        status
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

/// Do calls from Rust code reach these functions? They would not if cudarc loaded the driver at run time.
pub fn is_interposed() -> bool {
    static IS_INTERPOSED: LazyLock<bool> = LazyLock::new(|| {
        // SAFETY: the driver's function only reads its arguments; here the call is only counted.
        thread_capture::sees(|| unsafe { sys::cuEventRecord(std::ptr::null_mut(), std::ptr::null_mut()) })
    });
    *IS_INTERPOSED
}
