//! Why a text model is not loaded, or a text not embedded.

use std::path::PathBuf;

use opara_weights::{FieldError, WeightsError};

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
    #[error("the checkpoint {model} is a {kind:?}, and only {} are known: a program may add it (`Architectures::with`)", known.join(", "))]
    Architecture {
        /// The checkpoint.
        model: String,
        /// What its `config.json` says.
        kind: String,
        /// Those that are known.
        known: Vec<String>,
    },

    /// A type in which a module does not compute.
    #[error("the checkpoint {model} is a {kind:?}, whose module computes in f32 alone, not in {}: run it in f32 (`--dtype f32`)", dtype.as_str())]
    Dtype {
        /// The checkpoint.
        model: String,
        /// What its `config.json` says.
        kind: String,
        /// What was asked for.
        dtype: candle::DType,
    },

    /// Buckets of rows side by side, for a model that takes padded rows alone.
    #[error("texts of a {kind:?} with this head, on this device and in this type, do not lie side by side: give padded buckets")]
    Packing {
        /// What its `config.json` says.
        kind: String,
    },

    /// A vector of more elements than the model's have, or of none.
    #[error("`dimensions` is {dimensions}, and this model's vectors have 1 to {width} elements")]
    Dimensions {
        /// What was asked for.
        dimensions: usize,
        /// Elements of the model's vectors.
        width: usize,
    },

    /// A file beside the weights that is not sound.
    #[error("{}: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },

    /// A part of a checkpoint that changes its vectors and that this crate does not have.
    #[error("{}: {name} is not supported: {advice}", path.display())]
    Unsupported {
        /// The file that asks for it.
        path: PathBuf,
        /// Its name.
        name: String,
        /// What is supported, or what to do.
        advice: String,
    },

    /// A checkpoint whose answers this crate does not have for its architecture.
    #[error("the checkpoint {model} has a head that is not known for its `model_type`: classifiers and encoders to words are listed in docs/read-and-refused.md")]
    NoHead {
        /// The checkpoint.
        model: String,
    },

    /// A checkpoint of another kind of model, which gives no vectors.
    #[error("the checkpoint {model} is a {architecture}, whose answers are no vectors of texts: it is not served as an embedder")]
    Head {
        /// The checkpoint.
        model: String,
        /// One of the architectures that its `config.json` names.
        architecture: String,
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

    /// A text without tokens to pool.
    #[error("text {text} has no tokens")]
    Empty {
        /// Which text.
        text: usize,
    },

    /// Hidden states of a model that gives none.
    #[error("this model gives a vector a text, and no hidden states of its tokens")]
    NoTokens,

    /// A vector that is none.
    #[error("the vector of text {text} has NaN or infinity: the model overflowed its type, or its weights are damaged. Run it in bf16 or f32 (`--dtype f32`)")]
    NotFinite {
        /// Which text.
        text: usize,
    },

    /// A prompt that the model does not have.
    #[error("there is no prompt {name:?}: the model has {}", known.join(", "))]
    UnknownPrompt {
        /// The name.
        name: String,
        /// The names of the model's prompts.
        known: Vec<String>,
    },

    /// A prompt, and the name of one.
    #[error("give `prompt` or `prompt_name`, not both")]
    TwoPrompts,

    /// A prompt before pairs of texts.
    #[error("`prompt` and `prompt_name` are for single texts, not for pairs")]
    PairPrompt,

    /// A token that has another meaning for the model.
    #[error("text {text} has token {id}, which is padding: leave it out of the text")]
    Padding {
        /// Which text.
        text: usize,
        /// The token.
        id: u32,
    },

    /// A tokenizer that only hashes words.
    #[error("this model has random weights and no tokenizer")]
    Untrained,

    /// A token type that the model does not have.
    #[error("row {row} has token type {token_type}, and the model has types below {limit}")]
    UnknownType {
        /// Which row.
        row: usize,
        /// The type.
        token_type: u32,
        /// Types of the model.
        limit: usize,
    },

    /// A row whose ids and types are not equally many.
    #[error("row {row} has {ids} tokens and {types} token types")]
    Types {
        /// Which row.
        row: usize,
        /// Its tokens.
        ids: usize,
        /// Its token types.
        types: usize,
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

    /// Shapes of batches that cannot be.
    #[error(transparent)]
    Buckets(#[from] crate::batch::Error),

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

impl From<EmbedError> for EngineError {
    fn from(error: EmbedError) -> Self {
        match error {
            EmbedError::Engine(error) => error,
            other => Self::new(other),
        }
    }
}

impl From<FieldError> for EmbedError {
    fn from(error: FieldError) -> Self {
        WeightsError::from(error).into()
    }
}
