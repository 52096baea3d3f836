//! The trace of one forward pass: its launches, the buffers that they access, and their places in the module.
//!
//! A [`Trace`] is plain data. On CUDA it is read back from a captured graph, on the CPU it is recorded by
//! [`ops`](crate::ops); every later stage works on it without knowing which.

pub mod scope;
#[cfg(feature = "span-labels")]
mod span_labels;

#[cfg(feature = "span-labels")]
pub use span_labels::SpanLabels;

pub use opara_plan::trace::*;
