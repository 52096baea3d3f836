#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

#[cfg(all(feature = "cuda", not(target_os = "linux")))]
compile_error!(
    "the features `cuda` and `cudnn` of opara-candle interpose functions of the CUDA driver as linkers on Linux \
                do: on other systems build without them, for the CPU"
);

// `test_device.rs` is a module of this crate's tests and of other programs'.
#[cfg(all(test, feature = "cuda"))]
extern crate self as opara_candle;

mod activation;
mod arguments;
mod backend;
mod builder;
mod capture_thread;
mod challengers;
mod choice_folder;
mod construct;
mod cpu;
#[cfg_attr(not(feature = "cuda"), path = "cuda_absent.rs")]
mod cuda;
mod decoder;
#[cfg(feature = "testing")]
pub mod device_memory;
#[cfg(not(feature = "testing"))]
#[allow(dead_code, reason = "it is public with the feature `testing`")]
mod device_memory;
mod eager_calls;
mod empty;
mod environment;
mod error;
mod examples;
mod executor;
mod fault;
mod gradient;
mod host_copies;
mod inspect;
mod loader;
mod measure;
pub mod nn;
pub mod ops;
pub mod optim;
mod options;
mod output_lock;
mod panics;
mod pipeline;
mod plans;
pub mod prelude;
mod recheck;
mod reentrancy;
mod report;
#[cfg(any(feature = "cuda", test))]
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only launches on a GPU are rewritten"))]
mod rewrite;
mod scheduling;
mod shapes;
mod stage;
mod state;
mod step;
mod step_stream;
mod subscriber;
mod sync;
#[cfg(all(test, feature = "cuda"))]
#[allow(dead_code, reason = "tests of executors use the rest")]
mod test_device;
mod thread_bound;
mod zero_copy;
#[cfg(all(feature = "faults", feature = "cuda"))]
#[doc(hidden)]
pub use cuda::faults;
#[cfg(feature = "testing")]
pub mod timing;
#[cfg(not(feature = "testing"))]
#[allow(dead_code, reason = "the rest is public with the feature `testing`")]
mod timing;
mod trace;
mod train;
mod verify;

/// The version of candle that this crate works with.
pub use candle;
/// The version of `candle-nn` whose `VarBuilder` and layers [`nn`] works with.
pub use candle_nn;

pub use builder::Builder;
pub use cuda::cuda_device;
pub use decoder::DecoderExecutor;
pub use device_memory::free_memory;
pub use error::{DecoderError, Error, Mismatch, Result, StateError, TrainError};
pub use executor::OparaExecutor;
/// Traces, graphs, schedulers and the search, as plain data and algorithms. Less stable than the rest.
pub use loader::Loader;
pub use opara_plan as plan;
pub use opara_plan::{BuiltIn, Scheduler, Search};
pub use options::{Numerics, OnStateful, OnUncapturable};
pub use report::{Counts, Match, Mode, Report, Rewrite};
pub use stage::Stage;
pub use state::{Snapshot, StepState};
pub use step::StepExecutor;
pub use step_stream::StepStream;
pub use trace::scope::scope;
#[cfg(feature = "span-labels")]
pub use trace::SpanLabels;
pub use train::{GradientError, Trainer};
