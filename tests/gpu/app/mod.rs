//! Executors beside what else an application does: other threads, locks, kernels of its own. One program, since nearly each test starts
//! a process for itself; `gpu_app_memory` is another, which counts all allocations of its process.

mod drops;
mod ids;
mod kernels;
mod locks;
mod state;
mod thread_ends;
mod threads;
