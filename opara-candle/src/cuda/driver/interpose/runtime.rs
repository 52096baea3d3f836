//! The functions of CUDA's runtime that enqueue work: C++ operators that are linked into the program call them, such as
//! candle's mixtures of experts and quantised products. Functions with the suffix `_ptsz` are those of code that is compiled
//! with a default stream for each thread.

use std::ffi::{c_int, c_uint, c_void};

use cudarc::driver::sys;

use super::gate::between_captures;
use super::thread_capture::{self, redirected, refuses};
use super::written_memory;

/// `cudaErrorSharedObjectInitFailed`.
const MISSING: c_int = 303;
/// `cudaErrorStreamCaptureUnsupported`.
const REFUSED: c_int = 900;

/// `cudaErrorMemoryAllocation`.
const NO_MEMORY: c_int = 2;

/// `dim3`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Dim3 {
    x: c_uint,
    y: c_uint,
    z: c_uint,
}

/// The default stream of the calling code: with one for each thread it has a number of its own.
fn stream_of(stream: *mut c_void, per_thread: bool) -> *mut c_void {
    const PER_THREAD: usize = 2;
    if stream.is_null() && per_thread {
        PER_THREAD as *mut c_void
    } else {
        stream
    }
}

/// Saves what a kernel may write, if that is asked for. Returns whether it may be launched.
///
/// # Safety
/// The function must be one of the driver's or null, and the arguments those of a launch of it.
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
        || written_memory::before_launch(sys::CUDA_KERNEL_NODE_PARAMS {
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

/// Defines both forms of a launch. A kernel is the driver's handle of it or the address of a host function, for which the
/// runtime has the handle.
macro_rules! launches {
    ($($name:ident, $per_thread:literal, $is_handle:literal;)*) => {$(
        super::interpose! {
            /// Launches on the private stream where this thread captures.
            fn $name(
                kernel: *const c_void, grid: Dim3, block: Dim3, arguments: *mut *mut c_void, shared: usize,
                stream: *mut c_void,
            ) -> c_int, missing MISSING;
            |next| {
                if written_memory::is_watched() {
                    let handle = if $is_handle { kernel.cast_mut().cast() } else { kernel_of(kernel) };
                    // SAFETY: the caller vouches for the kernel and its arguments.
                    if !unsafe { before_launch(handle, grid, block, arguments, shared) } {
                        return NO_MEMORY;
                    }
                }
                let Some(stream) = redirected(stream_of(stream, $per_thread)) else { return REFUSED };
                // SAFETY: the arguments are the caller's, but for the stream, which is of the same context.
                unsafe { next(kernel, grid, block, arguments, shared, stream.raw()) }
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
    static GET: super::Next<GetKernel> = super::Next::new();
    let mut kernel = std::ptr::null_mut();
    // SAFETY: the type is that which the runtime declares; it looks the function up and writes the kernel, if there is one.
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
            fn $name(target: *mut c_void, $($argument: $type,)* stream: *mut c_void) -> c_int, missing MISSING;
            |next| {
                if !written_memory::before_write(target as u64) {
                    return NO_MEMORY;
                }
                let Some(stream) = redirected(stream_of(stream, $per_thread)) else { return REFUSED };
                // SAFETY: the arguments are the caller's, but for the stream, which is of the same context.
                unsafe { next(target, $($argument,)* stream.raw()) }
            }
        }
    )*};
}

write_to! {
    cudaMemsetAsync, false, (value: c_int, bytes: usize);
    cudaMemsetAsync_ptsz, true, (value: c_int, bytes: usize);
}

/// Defines both forms of a copy; of those between host and device only device to device is captured.
macro_rules! copies {
    ($($name:ident, $per_thread:literal;)*) => {$(
        super::interpose! {
            /// Copies on the private stream where this thread captures; what the host has or reads is refused there.
            fn $name(target: *mut c_void, source: *const c_void, bytes: usize, kind: c_int, stream: *mut c_void) -> c_int,
            missing MISSING;
            |next| {
                const DEVICE_TO_DEVICE: c_int = 3;
                if kind != DEVICE_TO_DEVICE
                    && refuses(|| "a C++ operator copies between host and device inside `forward`".into())
                {
                    return REFUSED;
                }
                if !written_memory::before_write(target as u64) {
                    return NO_MEMORY;
                }
                let Some(stream) = redirected(stream_of(stream, $per_thread)) else { return REFUSED };
                // SAFETY: the arguments are the caller's, but for the stream, which is of the same context.
                unsafe { next(target, source, bytes, kind, stream.raw()) }
            }
        }
    )*};
}

copies! {
    cudaMemcpyAsync, false;
    cudaMemcpyAsync_ptsz, true;
}

/// Defines both forms of an allocation and of its end. Inside a capture the graph holds them as a library's own.
macro_rules! allocations {
    ($($allocate:ident, $free:ident, $per_thread:literal;)*) => {$(
        super::interpose! {
            /// Allocates on the private stream where this thread captures.
            fn $allocate(target: *mut *mut c_void, bytes: usize, stream: *mut c_void) -> c_int, missing MISSING;
            |next| {
                let Some(stream) = redirected(stream_of(stream, $per_thread)) else { return REFUSED };
                // SAFETY: the arguments are the caller's, but for the stream; a call that succeeds writes the address.
                unsafe {
                    let status = next(target, bytes, stream.raw());
                    if status == 0 && bytes > 0 {
                        written_memory::allocated(*target as u64, bytes);
                    }
                    status
                }
            }
        }

        super::redirect! {
            /// Frees on the private stream where this thread captures.
            fn $free(address: *mut c_void, stream: *mut c_void) -> c_int,
            missing MISSING, refused REFUSED, stream stream
        }
    )*};
}

allocations! {
    cudaMallocAsync, cudaFreeAsync, false;
    cudaMallocAsync_ptsz, cudaFreeAsync_ptsz, true;
}

/// Defines both forms of a wait for a stream. Inside a capture there is nothing to wait for: what a C++ operator does next is
/// in the order of the stream all the same.
macro_rules! waits {
    ($($name:ident, $per_thread:literal;)*) => {$(
        super::interpose! {
            /// Waits for a stream, unless it is one that this thread captures.
            fn $name(stream: *mut c_void) -> c_int, missing MISSING;
            |next| {
                if thread_capture::is_captured(stream_of(stream, $per_thread).cast()) {
                    return 0;
                }
                // SAFETY: the arguments are the caller's.
                unsafe { next(stream) }
            }
        }
    )*};
}

waits! {
    cudaStreamSynchronize, false;
    cudaStreamSynchronize_ptsz, true;
}

super::interpose! {
    /// Waits for the whole device: not while another thread captures, and not inside a capture.
    fn cudaDeviceSynchronize() -> c_int, missing MISSING;
    |next| {
        if refuses(|| "a C++ operator waits for the device inside `forward`".into()) {
            return REFUSED;
        }
        // SAFETY: the call has no arguments.
        between_captures(|| unsafe { next() })
    }
}
