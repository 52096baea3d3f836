//! Models over [`opara_candle::ops`], so that the executor sees their operators on the CPU as well as on a GPU.
//!
//! They take the tensor names and the `config.json` of the usual checkpoints. What can run at the same time is left in
//! separate operators: finding it is the executor's business.

pub mod bert;
mod branches;
mod classifier;
pub mod decoder;
pub mod deepfm;
pub mod googlenet;
pub mod inception;
mod mask;
pub mod nasnet;
pub mod t5;
