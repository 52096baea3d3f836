//! Why a text model is not loaded, or a text not embedded.

use std::path::PathBuf;

use opara_weights::WeightsError;

use crate::batch::EngineError;

/// Result of this module's functions.
pub type Result<T, E = EmbedError> = std::result::Result<T, E>;

/// Why a text model is not loaded, or a text not embedded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EmbedError {
    /// The checkpoint's files.
    #[error(transparent)]
    Weights(#[from] WeightsError),

    /// A checkpoint without a tokenizer.
    #[error("the checkpoint {model} has no tokenizer.json")]
    NoTokenizer {
        /// The checkpoint.
        model: String,
    },

    /// A checkpoint of another architecture.
    #[error("the checkpoint {model} is a {kind:?}: only \"bert\" is supported")]
    Architecture {
        /// The checkpoint.
        model: String,
        /// What its `config.json` says.
        kind: String,
    },

    /// A file beside the weights that is not sound.
    #[error("{}: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },

    /// A pooling that this crate does not have.
    #[error("{}: only mean and CLS pooling are supported", path.display())]
    Pooling {
        /// The file that asks for it.
        path: PathBuf,
    },

    /// The tokenizer failed on a text.
    #[error("the tokenizer failed: {0}")]
    Tokenizer(String),

    /// A text is longer than the model takes.
    #[error("text {text} has {tokens} tokens, and the model takes at most {limit}: shorten it, or have texts cut")]
    TooLong {
        /// Which text.
        text: usize,
        /// Its tokens.
        tokens: usize,
        /// The limit.
        limit: usize,
    },

    /// A token id outside the vocabulary.
    #[error("row {row} has token {id}, and the vocabulary ends at {limit}")]
    UnknownToken {
        /// Which row.
        row: usize,
        /// The id.
        id: u32,
        /// Tokens of the vocabulary.
        limit: usize,
    },

    /// The longest bucket exceeds the model's positions.
    #[error("buckets of {length} tokens exceed the model's {positions} positions")]
    Positions {
        /// Tokens of the longest bucket.
        length: usize,
        /// Positions of the model.
        positions: usize,
    },

    /// The executor.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

impl From<opara_candle::Error> for EmbedError {
    fn from(error: opara_candle::Error) -> Self {
        EngineError::from(error).into()
    }
}

impl From<candle::Error> for EmbedError {
    fn from(error: candle::Error) -> Self {
        EngineError::from(error).into()
    }
}
