//! Executors on the CPU: one program, since each one links candle. `cpu_memory` is another, which counts all allocations of its process.

#[path = "../common/mod.rs"]
mod common;

mod backward;
mod decoder;
mod executor;
mod faults;
mod gradients;
mod kv_cache;
mod loader;
mod lora;
mod optim;
mod reads;
mod runtime;
mod schedulers;
mod stages;
mod state;
mod step;
mod threads;
mod trainer;
mod unnoticed_reads;
mod usage;
mod values;
