//! Texts to vectors, classes or words: tokenizer, transformer, head, and an executor with a plan for each bucket.
//!
//! ```
//! use candle::{DType, Device};
//! use opara_serve::batch::Buckets;
//! use opara_serve::embed::{Size, TextModel};
//!
//! let model = TextModel::random(Size::Tiny, 7);
//! let embedder = model.embedder(&Device::Cpu, DType::F32, &Buckets::new([1, 2], [16], 32)?)?;
//! let vectors = embedder.embed(&["a cat sleeps", "streams run kernels side by side", "bread"])?;
//! assert_eq!((vectors.len(), vectors[0].len()), (3, embedder.width()));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! An [`Embedder`] is an [`Engine`](crate::batch::Engine), so that a [`Batcher`](crate::batch::Batcher) can run it for many
//! clients; [`Embedder::embed`] runs it for one caller, who has many texts.

mod adapted;
mod architecture;
mod architectures;
mod dense;
mod embedder;
mod encoder;
mod error;
mod file_fields;
mod finish;
mod head;
mod labels;
mod layers;
mod module_norm;
mod module_weights;
mod modules;
mod packed;
mod padded;
mod pooling;
mod prompts;
mod row;
mod splade;
mod task;
mod text_end;
mod text_model;
mod tokenizer;
mod transformer;
mod words;

pub use architecture::{Architecture, Loader, PackedTokens, PackedTransformer, Padding, Sizes, Tokens, Transformer};
pub use architectures::Architectures;
pub use embedder::Embedder;
pub use error::{EmbedError, Result};
pub use finish::VectorOptions;
pub use labels::{Labels, Scores};
pub use modules::has_modules;
pub use pooling::{Pooling, PoolingMode};
pub use prompts::{PromptChoice, Prompts};
pub use row::TextRow;
pub use task::is_encoder;
pub use text_model::{Answers, Size, TextModel};
pub use tokenizer::{Side, TextOptions, TextTokenizer, Token};
