//! Interposed library functions. The functions of the CUDA driver, the CUDA runtime, cuBLAS, cuBLASLt, cuDNN and cuRAND that enqueue
//! work are defined here under their own names.
//!
//! The linker resolves calls from Rust and from static C++ libraries to these definitions, which pass them on to the library. On a
//! thread that does not capture, a call costs one additional read of a thread-local. On a capturing thread each call is made on a private
//! stream, which is captured (`thread_capture`), and, if it is a module that is captured, once more on the device's stream, where it runs.
//! So a captured module also does everything that an eager pass does; a table that it shares with other threads, for example, has its
//! values. No other thread can reach the private stream. A capture therefore contains the launches of its own thread only, and other
//! threads do not wait for it. The exception is in `gate`: the driver aborts every capture when a thread waits for the whole device.
//!
//! The same functions record: the bytes of uploads; for each library call its nodes in the graph and its operands; allocations and
//! frees; and writes of a forward pass to memory that is older than the pass, if somebody watches them (`watch`).
//!
//! Calls from inside a shared library are not seen: calls of cuBLAS itself, and of C++ operators that are linked against the
//! static CUDA runtime. Library calls go to the private stream through the library's handle. Whether this program's own calls are seen
//! is probed (`unseen`), for each library.

#![cfg(feature = "cuda")]
#![cfg_attr(
    not(feature = "interpose"),
    allow(dead_code, non_snake_case, reason = "nothing calls what stands for no library's function")
)]

mod capture;
mod capture_pool;
mod code;
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
mod error;
#[cfg(feature = "faults")]
pub mod faults;
#[cfg(feature = "faults")]
mod faulty;
mod frees;
mod gate;
mod handover;
mod held;
mod library_call;
mod library_handles;
mod modules;
mod next;
mod noted;
mod ongoing;
mod private_stream;
mod probe;
mod restore;
mod runtime;
mod scale;
mod status;
mod symbol;
mod sync;
mod thread_capture;
mod thread_end;
mod unseen;
mod watch;

pub use self::capture::{capture, Captured};
pub use self::capture_pool::{CapturePool, CapturedWork};
pub use self::code::code_of;
pub use self::driver::is_interposed;
pub use self::error::{Error, Refusal};
pub use self::frees::on_free;
pub use self::handover::Handover;
pub use self::held::Held;
pub use self::library_call::{Call, Computed, LibraryCall, Matmul, Meaning, Operand, Placed};
pub use self::thread_capture::{outside, position, without_events, MemoryEvent, MemoryEventKind, Recorded};
pub use self::unseen::unseen;
pub use self::watch::{unwatched, watch, WriteWatch};

use self::symbol::{interpose, redirect};
