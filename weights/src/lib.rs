//! Weights for models.
//!
//! - [`Checkpoint`] finds a trained model in a file, in a folder or on the Hugging Face hub, and reads its
//!   configuration and its weights in safetensors or PyTorch format.
//! - [`seeded`] generates weights from a seed. They have the same bits on every machine and in every framework, so that
//!   speed and results can be compared without a download.
//!
//! Both return a [`candle_nn::VarBuilder`], so a model does not depend on the source of its weights.

#![forbid(unsafe_code)]

mod checkpoint;
mod error;
mod fields;
mod floats;
mod format;
mod harmless;
mod json;
mod lfs;
mod loaded;
mod part;
mod quantization;
mod scale;
mod seeded;
mod settings;
mod shard;
mod source;
mod timeout;
mod unread;

pub use checkpoint::Checkpoint;
pub use error::WeightsError;
pub use fields::{FieldError, Fields};
pub use floats::Floats;
pub use harmless::{Harmless, TRANSFORMERS};
pub use json::{Json, Misread};
pub use loaded::Loaded;
pub use seeded::{seeded, seeded_with_gain};
pub use unread::Unread;
