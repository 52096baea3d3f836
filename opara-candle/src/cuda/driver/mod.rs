//! The FFI layer: every foreign call and every `unsafe` block of this crate.
//!
//! Three layers as in cudarc: `cudarc::driver::sys` declares, the functions here turn status codes into errors, and the
//! types here own and drop handles. No module above this one sees a raw handle.

#![allow(unsafe_code)]

mod allocation;
mod arguments;
mod block_product;
mod bound;
mod by_length;
mod capture;
mod captured_graph;
#[cfg(feature = "cudnn")]
pub(crate) mod convolution;
pub(crate) mod cublaslt;
#[cfg(feature = "cudnn")]
pub(crate) mod cudnn;
mod cupti;
mod download;
mod free_watch;
mod graph;
mod handover;
mod kernel;
pub(crate) mod kernels;
pub(crate) mod matmul;
mod memory;
mod nvrtc;
mod opaque;
mod out_of_memory;
mod quantized;
mod status;
mod stream;
mod upload;
mod versions;
mod watched_memory;
mod written_memory;

pub(super) use allocation::AllocationTable;
pub(super) use arguments::Arguments;
pub(crate) use block_product::block_product;
pub(crate) use by_length::Length;
pub(super) use capture::Broken;
pub(super) use captured_graph::{CapturedGraph, LaunchNode, MemcpyNode, MemsetNode, Node};
pub(super) use cupti::{Activity, Flush, Watch};
pub(crate) use download::Download;
pub(super) use graph::{Executable, GraphBuilder, Pointer};
pub(crate) use handover::Handover;
pub(super) use kernel::KernelNode;
pub(crate) use memory::{address_of, Lent};
pub(super) use memory::{aligned_input, bytes_of, copy_of, MemoryBlock, Relocation, ALIGNMENT};
pub(crate) use opaque::{
    is_opaque_at, launch_opaque, opaque_at_lengths, opaque_has_blocks_before, opaque_name, opaque_reads, HeldLaunch,
};
pub(super) use opaque::{noted_launches, opaque_launch, NotedLaunches};
#[cfg(feature = "faults")]
pub use opara_interpose::faults;
pub(crate) use opara_interpose::unwatched;
pub(super) use opara_interpose::{
    is_interposed, outside as outside_capture, position, unseen, Call, CapturePool, CapturedWork, Placed,
};
pub(super) use out_of_memory::lacks_memory;
pub(crate) use quantized::quantized_tensor;
pub(super) use stream::{Event, Stream, StreamId};
pub(crate) use upload::Upload;
pub(super) use versions::software;
pub(super) use watched_memory::WatchedMemory;
pub(super) use written_memory::WrittenMemory;

use self::status::{check, get, wrap};

#[cfg(all(test, feature = "cudnn", not(feature = "faults")))]
mod tests {
    use std::collections::BTreeSet;

    use object::{Object, ObjectSymbol};

    /// The functions of NVIDIA's libraries that a program with this library defines are those that `docs/interposed.md` lists.
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
