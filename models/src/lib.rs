//! Models built on [`opara_candle::ops`], so that the executor can capture their operators on the CPU as well as on a
//! GPU.
//!
//! They use the tensor names and the `config.json` of the usual checkpoints. Operators that can run in parallel are
//! kept separate; the executor schedules them.

pub mod bert;
mod branches;
mod classifier;
pub mod decoder;
pub mod deepfm;
pub mod engine;
pub mod googlenet;
pub mod inception;
mod mask;
pub mod nasnet;
pub mod t5;
pub mod tokenizer;
