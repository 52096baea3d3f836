//! Errors of loading a decoder from a checkpoint, and of turning a text into tokens and back.

use std::path::PathBuf;

use opara_weights::{FieldError, WeightsError};

use super::architecture::Architecture;
use super::gguf_types;

/// Why a decoder cannot be loaded, or a text has no tokens.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DecoderError {
    /// The configuration names an architecture that is not implemented.
    #[error("`{found}` is not an architecture that is known here: those are {}", Architecture::names())]
    UnknownArchitecture {
        /// `model_type` of `config.json`, or `general.architecture` of a GGUF file.
        found: String,
    },

    /// A configuration lacks a field, or a field has a value that no model can have.
    #[error("the configuration is not sound: {reason}")]
    Config {
        /// The field, and what is wrong with it.
        reason: String,
    },

    /// The checkpoint has no head, and its configuration does not say that the table of embeddings is the head.
    #[error(
        "{reason}: the model has no head. If the table of embeddings is the head, `tie_word_embeddings` in config.json must be \
         true"
    )]
    NoHead {
        /// Which tensor is missing.
        reason: String,
    },

    /// A GGUF file has parts that nothing here reads, and that may change the model's answer.
    #[error(
        "{} has {}, which nothing here reads and which may change the answer: use another file, or load it without them with \
         --allow-unread (`GgufFile::allow_unread`)",
        path.display(),
        parts.join(", ")
    )]
    UnreadGguf {
        /// The file.
        path: PathBuf,
        /// Keys of the metadata with their values, or tensors.
        parts: Vec<String>,
    },

    /// A GGUF file cannot be read, contradicts itself, or lacks something.
    #[error("{} is not a sound GGUF file: {reason}", path.display())]
    Gguf {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },

    /// A tensor of a GGUF file is of a type that is not known.
    #[error(
        "{}: tensor `{tensor}` is of type {}, which is not read here: use a file with types of {}",
        path.display(),
        gguf_types::name_of(*kind),
        gguf_types::names()
    )]
    GgufType {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The type's number in GGUF files.
        kind: u32,
    },

    /// A text that is so long that it has more tokens than the context for sure.
    #[error(
        "a prompt of {bytes} bytes has more than {context} tokens, which is the context: shorten the prompt, or load the model for a \
         longer context (at most {most})"
    )]
    TooManyBytes {
        /// Of the text.
        bytes: usize,
        /// Places of the cache.
        context: usize,
        /// The model's own limit.
        most: usize,
    },

    /// A model was to be loaded for longer texts than it was made for.
    #[error(
        "a context of {context} tokens, for prompt and answer together, is longer than the model's {most}: shorten the prompt, or \
         ask for fewer tokens"
    )]
    ContextTooLong {
        /// Tokens of a text.
        context: usize,
        /// The model's own limit.
        most: usize,
    },

    /// Weights and cache together are larger than the device's free memory.
    #[error(
        "the model needs {} MiB for weights and {} MiB for the keys and values of {batch} x {context} tokens, and the device \
         has {} MiB free: use a shorter context, a smaller type or, if there are several, fewer texts",
        weights >> 20,
        cache >> 20,
        free >> 20
    )]
    NoRoom {
        /// Bytes of the weights.
        weights: u64,
        /// Bytes of the cache.
        cache: u64,
        /// Bytes that the device has free.
        free: u64,
        /// Sequences.
        batch: usize,
        /// Places of each.
        context: usize,
    },

    /// There is no tokenizer beside the weights, nor one in them that can be used.
    #[error("{}: there is no tokenizer: {reason}", path.display())]
    NoTokenizer {
        /// The checkpoint.
        path: PathBuf,
        /// What was looked for.
        reason: String,
    },

    /// The tokenizer cannot be read, or refuses a text.
    #[error("the tokenizer: {0}")]
    Tokenizer(#[source] tokenizers::Error),

    /// A conversation was given to a model without a chat template.
    #[error(
        "{}: there is no chat template, neither in tokenizer_config.json nor in chat_template.jinja: give a plain prompt",
        path.display()
    )]
    NoTemplate {
        /// The checkpoint.
        path: PathBuf,
    },

    /// A conversation was given to a model whose chat template cannot be parsed.
    #[error("the model's chat template cannot be parsed: {reason}: give a plain prompt")]
    BadTemplate {
        /// What the parser says.
        reason: String,
    },

    /// A model has templates, and none for this conversation.
    #[error("the model has no chat template of the name `{name}`")]
    TemplateName {
        /// The name.
        name: &'static str,
    },

    /// A conversation has something that the template does not read.
    #[error("the model's chat template does not read `{name}`: leave it out")]
    UnreadName {
        /// What it would be called in the template.
        name: &'static str,
    },

    /// The tokenizer has tokens that the model does not have.
    #[error("the tokenizer gives `{token}` the id {id}, and the model's vocabulary has {vocab} tokens: they do not belong together")]
    TokenizerVocabulary {
        /// The token of the highest id.
        token: String,
        /// Its id.
        id: u32,
        /// Tokens of the vocabulary.
        vocab: usize,
    },

    /// A chat template that refuses a conversation.
    #[error("the chat template: {0:#}")]
    Template(#[from] minijinja::Error),

    /// A file that cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },

    /// A JSON file that does not hold what it should.
    #[error("cannot understand {}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// The parser's reason.
        source: serde_json::Error,
    },

    /// A checkpoint that cannot be found or read.
    #[error(transparent)]
    Weights(WeightsError),

    /// An error of the executor.
    #[error(transparent)]
    Executor(#[from] opara_candle::Error),

    /// An error of an operator.
    #[error(transparent)]
    Candle(#[from] candle::Error),
}

impl DecoderError {
    pub(super) fn config(reason: impl Into<String>) -> Self {
        Self::Config { reason: reason.into() }
    }
}

impl From<WeightsError> for DecoderError {
    fn from(error: WeightsError) -> Self {
        match error {
            WeightsError::Config { reason } => Self::Config { reason },
            error => Self::Weights(error),
        }
    }
}

impl From<FieldError> for DecoderError {
    fn from(error: FieldError) -> Self {
        WeightsError::from(error).into()
    }
}

/// The result of what may fail with a [`DecoderError`].
pub type Result<T, E = DecoderError> = std::result::Result<T, E>;
