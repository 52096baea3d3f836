//! Texts from a decoder, for many requests at once, by continuous batching.
//!
//! A [`Writer`] owns a tokenizer, a bounded queue and a thread for each device, with an [`Engine`](opara_models::engine::Engine) of so
//! many slots, and of pages of keys and values. Requests join its batch and leave it at every step. An [`Answer`] is the text as it comes.
//!
//! ```
//! use candle::{DType, Device};
//! use opara_serve::batch::TextMetrics;
//! use opara_serve::generate::{Prompt, KvBudget, TextDecoder, Wanted, Writer};
//!
//! let decoder = TextDecoder::random(7)?; // or TextDecoder::open("model.gguf".as_ref())?
//! let budget = KvBudget { sequences: 4, context: 256, bytes: None, parts: None, models: 1, dtype: DType::F32 };
//! let engine = decoder.engine(budget, &Device::Cpu, None)?;
//! let writer = Writer::start(vec![engine], decoder.text().clone(), 100, TextMetrics::default());
//! let prompt = writer.encode(Prompt::Text("once upon".into()))?;
//! let mut answer = writer.answer(prompt, Wanted { tokens: Some(5), ..Wanted::default() }, None, 0)?;
//! # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
//! while let Some(piece) = answer.next().await? {
//!     print!("{}", piece.text);
//! }
//! # Ok::<(), opara_serve::generate::GenerateError>(()) })?;
//! assert_eq!(answer.usage().prompt, 9);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Promises
//! - The same seed gives the same text, whatever else is written at the time.
//! - Each request gets one end or one error. An error of the device fails the texts that are under way, and no others.
//! - An [`Answer`] that is dropped cancels its request: it takes no further step.
//! - Requests get slots in fair order among clients, and in order of arrival for each.

mod answer;
mod calls;
mod delivery;
mod encoded;
mod error;
mod guide;
mod marks;
mod parts;
mod prompt;
mod shared;
mod source;
mod stop;
mod wanted;
mod worker;
mod writer;

pub use answer::{Answer, Piece, Usage, Written};
#[cfg(test)]
pub(crate) use calls::syntaxes;
pub use calls::{Call, Tool};
pub use delivery::Finish;
pub use encoded::Encoded;
pub use error::{GenerateError, Result};
pub use guide::Guide;
#[cfg(feature = "server")]
pub(crate) use marks::common;
pub use parts::{Part, Parts};
pub use prompt::Prompt;
#[cfg(feature = "server")]
pub(crate) use source::is_gguf;
pub use source::{KvBudget, TextDecoder};
pub use wanted::Wanted;
pub use writer::Writer;
