//! The locks of types that a model checker runs in every order of their threads' steps. `opara-candle/tests/interleavings` compiles these
//! types once more, with locks of its own under this name.

pub(crate) use parking_lot::{Condvar, Mutex};
