//! Serves models to many clients at once.
//!
//! - [`batch`] is the batcher: a queue whose rows become batches of a few shapes, for any executor. It needs no runtime and
//!   no network.
//! - [`embed`] is an encoder of texts on it: tokenizer, transformer, head, and an executor with one plan for each shape of a batch.
//! - [`generate`] writes texts with a decoder: tokenizer, chat template, and a batch that requests join and leave at every step.
//! - [`protocol`] and [`server`] answer the Open Inference Protocol over HTTP and gRPC, OpenAI's embeddings, completions and
//!   chat completions, and the routes of text-embeddings-inference. They are the feature `server`, which is on by default.
//!
//! Imports go from the bottom of this list to its top: `batch`, `embed`, `generate`, `model`, `protocol`, `server`.

#![forbid(unsafe_code)]

pub mod batch;
pub mod embed;
pub mod generate;
#[cfg(feature = "server")]
pub mod model;
#[cfg(feature = "server")]
pub mod pb;
#[cfg(feature = "server")]
pub mod protocol;
#[cfg(feature = "server")]
pub mod server;
mod threads;

pub use threads::bound_threads;
