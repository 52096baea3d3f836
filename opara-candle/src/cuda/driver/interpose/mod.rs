//! Interposed library functions. The functions of the CUDA driver, the CUDA runtime, cuBLAS, cuBLASLt, cuDNN and cuRAND that enqueue
//! work are defined here under their own names.
//!
//! The linker resolves calls from Rust and from static C++ libraries to these definitions, which pass them on to the library. On a
//! thread that does not capture, a call costs one additional read of a thread-local. On a capturing thread each call is made on a private
//! stream, which is captured ([`thread_capture`]), and, if it is a module that is captured, once more on the device's stream, where it runs.
//! So a captured module also does everything that an eager pass does; a table that it shares with other threads, for example, has its
//! values. No other thread can reach the private stream. A capture therefore contains the launches of its own thread only, and other
//! threads do not wait for it. The exception is in [`gate`]: the driver aborts every capture when a thread waits for the whole device.
//!
//! The same functions record: the bytes of uploads; for each library call its nodes in the graph and its operands; allocations and
//! frees; and writes of a forward pass to memory that is older than the pass ([`written_memory`]).
//!
//! Calls from inside a shared library are not seen: calls of cuBLAS itself, and of C++ operators that are linked against the
//! static CUDA runtime. Library calls go to the private stream through the library's handle. Whether this program's own calls are seen
//! is [probed](probe), for each library.

#![cfg_attr(
    not(feature = "interpose"),
    allow(dead_code, non_snake_case, reason = "nothing calls what stands for no library's function")
)]

mod capture_pool;
mod cublas;
mod cublaslt;
#[cfg(feature = "cudnn")]
mod cudnn;
#[cfg(feature = "cudnn")]
mod cudnn_heuristics;
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
mod probe;
mod restore;
mod runtime;
mod scale;
mod status;
mod thread_capture;
mod thread_end;
mod written_memory;

use std::ffi::c_void;
use std::marker::PhantomData;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicPtr, Ordering};

use cudarc::driver::sys::CUstream;

pub(in crate::cuda) use self::capture_pool::{CapturePool, CapturedWork};
pub(in crate::cuda) use self::driver::is_interposed;
pub(crate) use self::handover::Handover;
pub(super) use self::library_call::LibraryCall;
pub(in crate::cuda) use self::library_call::{Call, Placed};
pub(super) use self::modules::code_of;
pub(super) use self::private_stream::PrivateStream;
pub(in crate::cuda) use self::probe::unseen;
pub(super) use self::thread_capture::{
    capture, is_capturing, without_events, MemoryEvent, MemoryEventKind, ThreadCapture,
};
pub(in crate::cuda) use self::thread_capture::{outside as outside_capture, position};
pub(crate) use self::written_memory::unwatched;
pub(in crate::cuda) use self::written_memory::WrittenMemory;

/// A running capture. Until it is dropped, calls that wait for the whole device are delayed.
pub(super) use self::gate::Capturing;

/// Moves this thread's library handles for the stream `device` to the stream `now`, and, when the result is dropped, to `after`.
fn library_handles_on(device: CUstream, now: CUstream, after: CUstream) -> impl Sized {
    #[cfg(feature = "cudnn")]
    return cudnn::handles_on(device, now, after);
    #[cfg(not(feature = "cudnn"))]
    return (device, now, after);
}

/// The library's function of the same name, looked up once.
struct Next<F> {
    found: AtomicPtr<c_void>,
    function: PhantomData<F>,
}

impl<F: Copy> Next<F> {
    const fn new() -> Self {
        Self { found: AtomicPtr::new(std::ptr::null_mut()), function: PhantomData }
    }

    /// The function; `None` if no loaded library has it.
    ///
    /// # Safety
    /// `F` must be the type of the C function `name`. `name` must end in a zero byte.
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

/// Makes a call whose panic does not cross into the caller, which may be foreign code: it gets `missing` instead.
fn without_panic<T>(name: &str, missing: T, call: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|_| {
        // The subscriber is the program's own.
        let _ = catch_unwind(|| tracing::error!(function = name, "a panic inside of an interposed function"));
        missing
    })
}

/// Defines an interposed function. `next` is the library's function; `missing` is returned if there is none, or after a panic. A function
/// with which its library is [probed](probe) returns `probed` then.
macro_rules! interpose {
    ($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) -> $return:ty, missing $missing:expr
     $(, probed $probed:expr)?; |$next:ident| $body:expr) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// As the library documents.
        #[cfg_attr(feature = "interpose", no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> $return {
            static NEXT: super::Next<unsafe extern "C" fn($($type),*) -> $return> = super::Next::new();
            $(if super::probe::is_probe() {
                return $probed;
            })?
            // SAFETY: the type is that of the function that is defined here, which the library declares alike.
            let Some($next) = (unsafe { NEXT.get(concat!(stringify!($name), "\0")) }) else { return $missing };
            super::without_panic(stringify!($name), $missing, || {
                #[cfg(feature = "faults")]
                return $crate::cuda::driver::faults::unless_failing(stringify!($name), || $body);
                #[cfg(not(feature = "faults"))]
                $body
            })
        }
    };
}

/// Defines an interposed function that enqueues work on `stream`, see [`thread_capture::enqueue`].
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use object::{Object, ObjectSymbol};

    #[test]
    fn a_panic_becomes_an_error_code() {
        assert_eq!(super::without_panic("cuLaunchKernel", 3, || 0), 0);
        assert_eq!(super::without_panic("cuLaunchKernel", 3, || panic!("of a test")), 3);
    }

    /// The functions of NVIDIA's libraries that this program defines are those that `docs/interposed.md` lists, or none.
    #[cfg(all(feature = "cudnn", not(feature = "faults")))]
    #[test]
    fn the_page_lists_what_a_program_defines() {
        let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/interposed.md")).unwrap();
        let listed = page.lines().filter(|_| cfg!(feature = "interpose"));
        let listed = listed.filter_map(|line| Some(line.strip_prefix("| ")?.split('`').nth(1)?.to_string()));
        let program = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let program = object::File::parse(&*program).unwrap();
        if program.symbols().next().is_none() {
            return println!("skipped: the program has no table of symbols");
        }
        let defined = program.symbols().filter(|symbol| symbol.is_definition() && symbol.is_global());
        let of_nvidia = |name: &&str| {
            let name = name.trim_start_matches('_');
            let prefixes = ["cublasLt", "cublas", "cudnn", "curand", "cuda", "cu"];
            let rest = prefixes.into_iter().find_map(|prefix| name.strip_prefix(prefix));
            rest.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_uppercase()))
        };
        let defined = defined.filter_map(|symbol| symbol.name().ok()).filter(of_nvidia).map(String::from);
        assert_eq!(listed.collect::<BTreeSet<_>>(), defined.collect::<BTreeSet<_>>());
    }
}
