//! Plans the replay of a recorded forward pass: which launches depend on each other, where their buffers live, on which
//! stream and in which order they run.
//!
//! Everything here is plain data and algorithms. The crate depends neither on candle nor on CUDA: a recorder gives it a
//! [`Trace`](trace::Trace), and it gives back a [`Schedule`](schedule::Schedule) and [`Layout`](memory::Layout)s. The
//! crate `opara-candle` records and replays; `opara`'s commands on traces need this crate alone.
//!
//! The modules from bottom to top (`tests/rooms` holds that none imports one above it):
//!
//! | module | holds |
//! |---|---|
//! | [`kernel_catalog`] | what is known of a kernel by its name |
//! | [`trace`] | launches, buffers, which bytes each launch reads and writes; the trace file |
//! | [`graph`] | dependencies between launches, transitively reduced |
//! | [`memory`], [`optimize`] | offsets of buffers in an arena; constant folding |
//! | [`fusion`] | groups of launches that one generated kernel can replace |
//! | [`rewrite`] | what runs of ops compute, and the operators that rules put in their place |
//! | [`device`], [`duration`], [`profile`] | the cost model |
//! | [`schedule`] | streams, launch order and waits |
//! | [`check`], [`prepared`] | proof of a schedule and its layouts; everything that is known before a schedule |
//! | [`timeline`] | when each launch runs, as SVG or JSON |
//! | [`tune`] | search for a faster schedule; plans on disk |
//! | [`lab`], [`simulate`] | published schedulers to compare with, one file each; a model of a device |

pub mod check;
pub mod device;
pub mod disk_cache;
pub mod duration;
mod error;
pub mod fusion;
pub mod graph;
pub mod kernel_catalog;
pub mod lab;
pub mod latency;
pub mod memory;
pub mod optimize;
pub mod prepared;
pub mod profile;
pub mod rewrite;
pub mod schedule;
mod schedulers;
pub mod stopwatch;
pub mod timeline;
pub mod trace;
pub mod tune;

pub use error::{Error, Result};
pub use lab::simulate;
pub use prepared::Prepared;
pub use schedule::{BuiltIn, Scheduler};
pub use timeline::Timeline;
pub use tune::Search;
