//! Where the weights of a model come from.
//!
//! - [`Checkpoint`] finds a trained model in a file, in a folder or on the hub
//!   and reads its configuration and its weights, safetensors or PyTorch's.
//! - [`seeded`] makes up weights from a seed, the same bits on every machine
//!   and in every framework, for comparing speed and results without a
//!   download.
//!
//! Both hand out a [`candle_nn::VarBuilder`], so a model does not see which of
//! them it was built from.

#![forbid(unsafe_code)]

mod checkpoint;
mod error;
mod format;
mod lfs;
mod loaded;
mod part;
mod patience;
mod seeded;
mod shard;
mod source;

pub use checkpoint::Checkpoint;
pub use error::WeightsError;
pub use loaded::Loaded;
pub use seeded::{seeded, seeded_with_gain};
