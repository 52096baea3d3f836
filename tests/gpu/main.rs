//! Executors on a GPU. One program, since each links candle and CUDA's libraries. What counts the memory of its process, or has driver
//! calls fail in it, is a program of its own beside this folder. Tests skip without a GPU or the feature `cuda`, and say so.

mod app;
mod backward;
mod building;
#[path = "../common/mod.rs"]
mod common;
mod decoder;
mod decoders;
mod executor;
mod fuse;
mod graphs;
mod lifted;
mod loader;
mod ops;
mod optim;
mod quantized;
mod random;
mod refused;
mod required;
mod rewrite;
mod runtime;
mod state;
mod step;
mod step_ops;
mod threads;
mod trainer;
mod tune;
mod usage;
