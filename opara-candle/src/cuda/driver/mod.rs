//! The FFI layer: every foreign call and every `unsafe` block of this crate, except launches of an operator's kernels
//! (`launch.rs` in the operator's folder).
//!
//! Three layers as in cudarc: `cudarc::driver::sys` declares, the functions here turn status codes into errors, and the
//! types here own and drop handles. No module above this one sees a raw handle.

#![allow(unsafe_code)]

mod allocation;
mod arguments;
mod bound;
mod capture;
mod captured_graph;
mod code;
#[cfg(feature = "cudnn")]
pub(crate) mod convolution;
pub(crate) mod cublaslt;
#[cfg(feature = "cudnn")]
pub(crate) mod cudnn;
mod cupti;
mod download;
#[cfg(feature = "faults")]
pub mod faults;
mod graph;
mod interpose;
mod kernel;
pub(crate) mod kernels;
pub(crate) mod matmul;
mod memory;
mod nvrtc;
mod out_of_memory;
mod status;
mod stream;
mod versions;
mod watched_memory;

pub(super) use allocation::AllocationTable;
pub(super) use arguments::Arguments;
pub(super) use capture::Broken;
pub(super) use captured_graph::{CapturedGraph, LaunchNode, MemcpyNode, MemsetNode, Node};
pub(super) use cupti::{Activity, Watch};
pub(crate) use download::Download;
pub(super) use graph::{Executable, GraphBuilder, Pointer};
pub(super) use interpose::{
    is_interposed, outside_capture, position, unseen, Call, CapturePool, CapturedWork, Placed, WrittenMemory,
};
pub(crate) use interpose::{unwatched, Handover};
pub(super) use kernel::KernelNode;
pub(crate) use memory::address_of;
pub(super) use memory::{aligned_input, bytes_of, copy_of, MemoryBlock, Relocation, ALIGNMENT};
pub(super) use out_of_memory::lacks_memory;
pub(super) use stream::{Event, Stream, StreamId};
pub(super) use versions::software;
pub(super) use watched_memory::WatchedMemory;

use self::status::{check, failure, get, wrap};
