//! Interposed library functions: the functions of CUDA's driver, its runtime, cuBLAS, cuDNN and cuRAND that enqueue work,
//! defined here under their own names.
//!
//! Linked into a program, a definition here takes the place of the library's own for calls from Rust and from static C++
//! libraries; it passes the call on. On a thread that does not capture that is all that it does, at the price of one
//! read of a thread-local. On a thread that captures, each call is made twice: for a private stream, the one that is
//! being captured, and for the device's, where the work runs as ever ([`thread_capture`]). So a module that is captured does what it does in an
//! eager pass, and what other threads see of it, say a table that it keeps, is there. No other thread can reach the private
//! stream, so a capture holds the launches of its own thread and nothing else, and no other thread has to wait for it.
//! The exception is in [`gate`]: the driver breaks every capture off when a thread waits for the whole device.
//!
//! What is needed besides is noted at the same places: the bytes of uploads, which calls of libraries launch which nodes
//! of the graph and with which operands, what allocates and frees, and what a forward pass writes to memory that is older
//! than the pass ([`written_memory`]).
//!
//! Not seen: calls that a shared library makes itself (cuBLAS inside, or C++ operators that are linked against the static
//! CUDA runtime). Libraries are given the stream by their handle.

mod capture_pool;
mod cublas;
mod cublaslt;
#[cfg(feature = "cudnn")]
mod cudnn;
mod curand;
mod driver;
#[cfg(feature = "faults")]
mod faulty;
mod gate;
mod handover;
mod library_call;
mod modules;
mod noted;
mod private_stream;
mod restore;
mod runtime;
mod scale;
mod status;
mod thread_capture;
mod written_memory;

use std::ffi::c_void;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicPtr, Ordering};

use cudarc::driver::sys::CUstream;

pub(in crate::cuda) use self::capture_pool::CapturePool;
pub(in crate::cuda) use self::driver::is_interposed;
pub(crate) use self::handover::Handover;
pub(super) use self::library_call::LibraryCall;
pub(in crate::cuda) use self::library_call::{Call, Placed};
pub(super) use self::modules::code_of;
pub(super) use self::private_stream::PrivateStream;
pub(super) use self::thread_capture::{
    capture, is_capturing, without_events, MemoryEvent, MemoryEventKind, ThreadCapture,
};
pub(in crate::cuda) use self::thread_capture::{outside as outside_capture, position};
pub(crate) use self::written_memory::unwatched;
pub(in crate::cuda) use self::written_memory::WrittenMemory;

/// A capture that is under way, which keeps waits for the whole device off until it is dropped.
pub(super) use self::gate::Capturing;

/// Lets the handles of libraries that belong to this thread, and are meant for the stream `device`, work on `now` until the
/// result is dropped, and on `after` from then on.
fn library_handles_on(device: CUstream, now: CUstream, after: CUstream) -> impl Sized {
    #[cfg(feature = "cudnn")]
    return cudnn::handles_on(device, now, after);
    #[cfg(not(feature = "cudnn"))]
    return (device, now, after);
}

/// The library's own function behind one that is defined here, looked up once.
struct Next<F> {
    found: AtomicPtr<c_void>,
    function: PhantomData<F>,
}

impl<F: Copy> Next<F> {
    const fn new() -> Self {
        Self { found: AtomicPtr::new(std::ptr::null_mut()), function: PhantomData }
    }

    /// The function; `None` if no library of the program has it.
    ///
    /// # Safety
    /// `F` must be the type of the C function `name`, which ends in a zero byte.
    unsafe fn get(&self, name: &'static str) -> Option<F> {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        let mut found = self.found.load(Ordering::Relaxed);
        if found.is_null() {
            // SAFETY: `name` ends in a zero byte. The search begins behind this program, so it does not find the caller.
            found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr().cast()) };
            self.found.store(found, Ordering::Relaxed);
        }
        // SAFETY: a function pointer has the size of a pointer, and the caller vouches for its type.
        (!found.is_null()).then(|| unsafe { std::mem::transmute_copy(&found) })
    }
}

/// Defines a library's function: `next` is the library's own, `missing` is returned where there is none.
macro_rules! interpose {
    ($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) -> $return:ty, missing $missing:expr;
     |$next:ident| $body:expr) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// As the library documents.
        #[no_mangle]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> $return {
            static NEXT: super::Next<unsafe extern "C" fn($($type),*) -> $return> = super::Next::new();
            // SAFETY: the type is that of the function that is defined here, which the library declares alike.
            let Some($next) = (unsafe { NEXT.get(concat!(stringify!($name), "\0")) }) else { return $missing };
            #[cfg(feature = "faults")]
            return $crate::cuda::driver::faults::unless_failing(stringify!($name), || $body);
            #[cfg(not(feature = "faults"))]
            $body
        }
    };
}

/// Defines a library's function that enqueues work on `stream`, see [`thread_capture::enqueue`].
macro_rules! redirect {
    ($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) -> $return:ty, missing $missing:expr,
     stream $stream:ident) => {
        super::interpose! {
            $(#[$doc])*
            fn $name($($argument: $type),*) -> $return, missing $missing;
            |next| super::thread_capture::enqueue($stream.cast(), |on| {
                let $stream = on.stream();
                // SAFETY: the arguments are the caller's, but for the stream, which is of the same context.
                unsafe { next($($argument),*) }
            })
        }
    };
}

use {interpose, redirect};
