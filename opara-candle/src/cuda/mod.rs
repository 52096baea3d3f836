//! On a GPU: the trace is a captured CUDA graph, and a replay is a new graph with the schedule's edges.

mod arena;
mod backend;
mod buffers;
mod capture;
mod confirmed;
mod device;
pub(crate) mod driver;
mod eager;
mod fuse;
mod graph_to_trace;
pub(crate) mod kernels;
mod launches;
mod lift;
mod op_times;
mod opaque;
pub(crate) mod operator;
mod pass;
mod program;
mod record;
mod replay;
mod rewrite;
mod sample;
mod target;
mod whole;

#[cfg(feature = "faults")]
pub use self::driver::faults;

pub(crate) use self::arena::Arena;
pub use self::device::cuda_device;
pub(crate) use self::device::{
    device_name, driver_version, free_memory, hand_over, is_aligned, pool_in_use, pool_peak, reset_pool_peak, software,
    used_outside_pool,
};
pub(crate) use self::driver::kernels::CompilerAhead;
pub(crate) use self::driver::{address_of, unwatched, Download, Handover, Upload};
pub(crate) use self::record::record;
pub(crate) use self::sample::sample;
pub(crate) use self::whole::{Place, WholePass};
