//! The library's own locks under loom, which runs a test in every order of its threads' steps. A thread that nobody wakes is a deadlock,
//! which loom reports.

#![allow(dead_code, reason = "parts of the library's files are for the library alone")]

#[path = "../../src/cuda/driver/free_watch.rs"]
mod free_watch;
mod frees;
#[path = "../../interpose/src/gate.rs"]
mod gate;
mod gates;
#[path = "../../src/output_lock.rs"]
mod output_lock;
mod outputs;
/// loom's locks, for the types that are tested.
mod sync;
