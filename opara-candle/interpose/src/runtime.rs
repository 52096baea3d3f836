//! The functions of the CUDA runtime that enqueue work. C++ operators that are linked into the program call them, such as candle's
//! mixture-of-experts and quantized matmul kernels. Functions with the suffix `_ptsz` are called by code that is compiled with
//! per-thread default streams.

use std::ffi::{c_int, c_uint, c_void};

use cudarc::driver::sys;

use super::ongoing::between_captures;
use super::status::Status;
use super::thread_capture::{self, device_stream_for, enqueue, refuses};
use super::watch;

/// `cudaErrorSharedObjectInitFailed`.
const MISSING: c_int = 303;
const REFUSED: c_int = c_int::REFUSED;

const NO_MEMORY: c_int = c_int::NO_MEMORY;

/// `dim3`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Dim3 {
    x: c_uint,
    y: c_uint,
    z: c_uint,
}

/// Resolves the default stream of the calling code, which has another number with per-thread default streams.
fn stream_of(stream: *mut c_void, per_thread: bool) -> *mut c_void {
    const PER_THREAD: usize = 2;
    if stream.is_null() && per_thread {
        PER_THREAD as *mut c_void
    } else {
        stream
    }
}

/// If this thread's writes are watched, saves the memory that a kernel may write. Returns whether the kernel may be launched.
///
/// # Safety
/// The function must be one of the driver's or null, and the arguments must be its launch's.
#[must_use]
unsafe fn before_launch(
    kernel: sys::CUkernel,
    grid: Dim3,
    block: Dim3,
    arguments: *mut *mut c_void,
    shared: usize,
) -> bool {
    let mut func = std::ptr::null_mut();
    // SAFETY: the caller vouches for the kernel; `func` receives its function on the current device.
    let status = unsafe { sys::cuKernelGetFunction(&mut func, kernel) };
    status != sys::CUresult::CUDA_SUCCESS
        || watch::before_launch(sys::CUDA_KERNEL_NODE_PARAMS {
            func,
            gridDimX: grid.x,
            gridDimY: grid.y,
            gridDimZ: grid.z,
            blockDimX: block.x,
            blockDimY: block.y,
            blockDimZ: block.z,
            sharedMemBytes: shared as u32,
            kernelParams: arguments,
            extra: std::ptr::null_mut(),
            kern: std::ptr::null_mut(),
            ctx: std::ptr::null_mut(),
        })
}

/// Defines both forms of a launch. A kernel is given by the driver's handle, or by the address of a host function for which the
/// runtime knows the handle.
macro_rules! launches {
    ($($name:ident, $per_thread:literal, $is_handle:literal;)*) => {$(
        super::interpose! {
            /// Launches on the private stream where this thread captures.
            fn $name(
                kernel: *const c_void, grid: Dim3, block: Dim3, arguments: *mut *mut c_void, shared: usize,
                stream: *mut c_void,
            ) -> c_int, missing MISSING;
            |next| {
                if watch::is_watched() {
                    let handle = if $is_handle { kernel.cast_mut().cast() } else { kernel_of(kernel) };
                    // SAFETY: the caller vouches for the kernel and its arguments.
                    if !unsafe { before_launch(handle, grid, block, arguments, shared) } {
                        return NO_MEMORY;
                    }
                }
                // SAFETY: the arguments are the caller's, but for the stream, which is of the same context.
                enqueue(stream_of(stream, $per_thread), |on| unsafe { next(kernel, grid, block, arguments, shared, on.stream()) })
            }
        }
    )*};
}

launches! {
    cudaLaunchKernel, false, false;
    cudaLaunchKernel_ptsz, true, false;
    __cudaLaunchKernel, false, true;
    __cudaLaunchKernel_ptsz, true, true;
}

/// The driver's handle of the kernel behind a host function; null if it has none.
fn kernel_of(function: *const c_void) -> sys::CUkernel {
    type GetKernel = unsafe extern "C" fn(*mut sys::CUkernel, *const c_void) -> c_int;
    static GET: super::next::Next<GetKernel> = super::next::Next::new();
    let mut kernel = std::ptr::null_mut();
    // SAFETY: the type is the one that the runtime declares; it looks the function up and writes the kernel, if there is one.
    let found = unsafe { GET.get("cudaGetKernel\0").map(|get| get(&mut kernel, function)) };
    if found == Some(0) {
        kernel
    } else {
        std::ptr::null_mut()
    }
}

/// Defines both forms of a function that writes device memory at its first argument.
macro_rules! write_to {
    ($($name:ident, $per_thread:literal, ($($argument:ident: $type:ty),*);)*) => {$(
        super::interpose! {
            /// Writes on the private stream where this thread captures.
            fn $name(target: *mut c_void, $($argument: $type,)* stream: *mut c_void) -> c_int, missing MISSING,
            probed MISSING;
            |next| {
                if !watch::before_write(target as u64) {
                    return NO_MEMORY;
                }
                // SAFETY: the arguments are the caller's, but for the stream, which is of the same context.
                enqueue(stream_of(stream, $per_thread), |on| unsafe { next(target, $($argument,)* on.stream()) })
            }
        }
    )*};
}

write_to! {
    cudaMemsetAsync, false, (value: c_int, bytes: usize);
    cudaMemsetAsync_ptsz, true, (value: c_int, bytes: usize);
}

/// Defines both forms of a copy. Only copies from device to device are captured.
macro_rules! copies {
    ($($name:ident, $per_thread:literal;)*) => {$(
        super::interpose! {
            /// Copies; a capturing thread copies on the private stream, and is refused copies from and to the host.
            fn $name(target: *mut c_void, source: *const c_void, bytes: usize, kind: c_int, stream: *mut c_void) -> c_int,
            missing MISSING;
            |next| {
                const DEVICE_TO_DEVICE: c_int = 3;
                if kind != DEVICE_TO_DEVICE
                    && refuses(|| "a C++ operator copies between host and device inside `forward`".into())
                {
                    return REFUSED;
                }
                if !watch::before_write(target as u64) {
                    return NO_MEMORY;
                }
                // SAFETY: the arguments are the caller's, but for the stream, which is of the same context.
                enqueue(stream_of(stream, $per_thread), |on| unsafe { next(target, source, bytes, kind, on.stream()) })
            }
        }
    )*};
}

copies! {
    cudaMemcpyAsync, false;
    cudaMemcpyAsync_ptsz, true;
}

/// Defines both forms of an allocation and a free.
macro_rules! allocations {
    ($($allocate:ident, $free:ident, $per_thread:literal;)*) => {$(
        super::interpose! {
            /// Allocates; during a capture from its pool.
            fn $allocate(target: *mut *mut c_void, bytes: usize, stream: *mut c_void) -> c_int, missing MISSING;
            |next| {
                let status = thread_capture::allocate(target.cast(), bytes, stream_of(stream, $per_thread), true);
                if let Some(status) = status {
                    // These error codes are the same in driver and runtime.
                    return status as c_int;
                }
                // SAFETY: the arguments are the caller's; a call that succeeds writes the address.
                unsafe {
                    let status = next(target, bytes, stream);
                    if status == c_int::SUCCESS && bytes > 0 {
                        watch::allocated(*target as u64, bytes);
                    }
                    status
                }
            }
        }

        super::interpose! {
            /// Frees.
            fn $free(address: *mut c_void, stream: *mut c_void) -> c_int, missing MISSING;
            |next| {
                let on = device_stream_for(stream);
                if !thread_capture::freed(address as u64, stream_of(on, $per_thread).cast()) {
                    return c_int::SUCCESS;
                }
                watch::freed(address as u64);
                // SAFETY: the arguments are the caller's, but for the stream, which is of the same context.
                unsafe { next(address, on) }
            }
        }
    )*};
}

allocations! {
    cudaMallocAsync, cudaFreeAsync, false;
    cudaMallocAsync_ptsz, cudaFreeAsync_ptsz, true;
}

/// Defines both forms of a wait for a stream. In a capture it waits for the stream on which the work runs.
macro_rules! waits {
    ($($name:ident;)*) => {$(
        super::interpose! {
            /// Waits for a stream; in a capture for the one on which the work runs.
            fn $name(stream: *mut c_void) -> c_int, missing MISSING;
            |next| {
                // SAFETY: the arguments are the caller's, but for the stream, which is of the same context.
                unsafe { next(device_stream_for(stream)) }
            }
        }
    )*};
}

waits! {
    cudaStreamSynchronize;
    cudaStreamSynchronize_ptsz;
}

super::interpose! {
    /// Waits for the whole device: delayed while another thread captures, refused inside a capture.
    fn cudaDeviceSynchronize() -> c_int, missing MISSING;
    |next| {
        if refuses(|| "a C++ operator waits for the device inside `forward`".into()) {
            return REFUSED;
        }
        // SAFETY: the call has no arguments.
        between_captures(|| unsafe { next() })
    }
}
