#![doc = include_str!("../README.md")]

#[cfg(all(feature = "cuda", not(target_os = "linux")))]
compile_error!(
    "the features `cuda` and `cudnn` of opara-candle interpose functions of the CUDA driver as linkers on Linux \
                do: on other systems build without them, for the CPU"
);

// `test_device.rs` is a module of this crate's tests and of other programs'.
#[cfg(all(test, feature = "cuda"))]
extern crate self as opara_candle;

mod backend;
mod builder;
mod capture_thread;
pub mod check;
mod clock;
mod cpu;
#[cfg_attr(not(feature = "cuda"), path = "cuda_absent.rs")]
mod cuda;
mod device;
pub mod device_memory;
mod duration;
mod error;
mod examples;
mod executor;
mod fault;
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only launches on a GPU are fused"))]
mod fuse;
pub mod graph;
mod kept;
mod lending;
mod measure;
pub mod memory;
pub mod nn;
pub mod ops;
pub mod optimize;
mod plan;
mod plans;
pub mod prepared;
pub mod profile;
mod recheck;
mod report;
mod resident;
mod rivals;
pub mod schedule;
mod shapes;
pub mod simulate;
#[cfg(all(test, feature = "cuda"))]
#[allow(dead_code, reason = "tests of executors use the rest")]
mod test_device;
pub mod timeline;
#[cfg(all(feature = "testing", feature = "cuda"))]
#[doc(hidden)]
pub use cuda::faults as testing;
pub mod timing;
pub mod trace;
pub mod tune;
mod verify;

pub use builder::{Builder, OnStateful, OnUncapturable};
pub use cuda::cuda_device;
pub use error::{Error, Result};
pub use executor::OparaExecutor;
pub use prepared::Prepared;
pub use report::{Mode, Report};
pub use schedule::{Policy, Scheduler};
pub use timeline::Timeline;
pub use trace::scope::{scope, SpanLabels};
pub use tune::Tuning;
