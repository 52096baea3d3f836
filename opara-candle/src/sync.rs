//! The locks of types that a model checker runs in every order of their threads' steps. `tests/interleavings` compiles these
//! types once more, with locks of its own under this name.

#[cfg_attr(not(feature = "cuda"), allow(unused_imports, reason = "only captures watch memory"))]
pub(crate) use std::sync::atomic::AtomicBool;

#[cfg_attr(not(feature = "cuda"), allow(unused_imports, reason = "only captures watch memory"))]
pub(crate) use parking_lot::RwLock;
pub(crate) use parking_lot::{Condvar, Mutex};
