//! The numbers of ops and buffers.

/// Index of an [`Op`](super::Op) in [`Trace::ops`](super::Trace::ops); the recorded order is a valid sequential order.
pub type OpId = usize;

/// Index of a [`Buffer`](super::Buffer) in [`Trace::buffers`](super::Trace::buffers).
pub type BufferId = usize;
