//! The laboratory: schedulers of other papers, which Opara's is compared with, and a model of a device, which schedules run on without one.
//!
//! No stage of a build imports it. Its schedulers are reached by name, as a [`BuiltIn`](crate::schedule::BuiltIn), and by `opara`'s commands on
//! traces.

pub mod ios;
pub(crate) mod nimble;
pub(crate) mod rammer;
pub(crate) mod search;
pub mod simulate;

pub use nimble::stream_assignment;
