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
//! is [probed](unseen), for each library.

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
mod cudnn_handles;
#[cfg(feature = "cudnn")]
mod cudnn_heuristics;
mod curand;
mod driver;
#[cfg(feature = "faults")]
mod faulty;
mod gate;
mod handover;
mod library_call;
mod library_handles;
mod modules;
mod next;
mod noted;
mod private_stream;
mod probe;
mod restore;
mod runtime;
mod scale;
mod status;
mod symbol;
mod thread_capture;
mod thread_end;
mod unseen;
mod written_memory;

pub(in crate::cuda) use self::capture_pool::{CapturePool, CapturedWork};
pub(in crate::cuda) use self::driver::is_interposed;
pub(crate) use self::handover::Handover;
pub(super) use self::library_call::LibraryCall;
pub(in crate::cuda) use self::library_call::{Call, Placed};
pub(super) use self::private_stream::PrivateStream;
pub(super) use self::thread_capture::{
    capture, is_capturing, without_events, MemoryEvent, MemoryEventKind, ThreadCapture,
};
pub(in crate::cuda) use self::thread_capture::{outside as outside_capture, position};
pub(in crate::cuda) use self::unseen::unseen;
pub(crate) use self::written_memory::unwatched;
pub(in crate::cuda) use self::written_memory::WrittenMemory;

/// A running capture. Until it is dropped, calls that wait for the whole device are delayed.
pub(super) use self::gate::Capturing;

use self::symbol::{interpose, redirect};

#[cfg(all(test, feature = "cudnn", not(feature = "faults")))]
mod tests {
    use std::collections::BTreeSet;

    use object::{Object, ObjectSymbol};

    /// The functions of NVIDIA's libraries that this program defines are those that `docs/interposed.md` lists.
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
