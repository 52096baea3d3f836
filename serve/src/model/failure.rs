//! Why a request fails, before a protocol says it in its own way.

use std::time::Duration;

use opara_models::decoder::DecoderError;
use opara_models::engine::TextError;
use opara_weights::FieldError;

use crate::batch;
use crate::embed::EmbedError;
use crate::generate::GenerateError;

/// Result of this module's functions.
pub type Result<T, E = Failure> = std::result::Result<T, E>;

/// Of what kind a failure is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// The request is wrong.
    Invalid,
    /// No key, or a wrong one.
    Unauthorized,
    /// The operator does not allow it.
    Forbidden,
    /// No such model or path.
    NotFound,
    /// The model has answers of another kind.
    OtherModel,
    /// The path takes other methods.
    Method,
    /// The body did not arrive in time.
    BodyTimeout,
    /// The request exceeds a limit.
    TooLarge,
    /// Prompt and answer exceed the model's context.
    ContextLength,
    /// The body has an encoding that is not supported.
    Encoding,
    /// The queue is full.
    Full,
    /// The deadline passed.
    Deadline,
    /// The model takes no requests now.
    Unavailable,
    /// Not what this server offers.
    Unimplemented,
    /// The server's fault.
    Internal,
}

/// Why a request fails. Its text goes to the client alone: it may quote the request.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// Of what kind.
    pub kind: Kind,
    /// For the client.
    pub message: String,
    /// When to try again.
    pub retry_after: Option<Duration>,
}

impl Failure {
    /// A failure of this kind.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        let retry_after = (kind == Kind::Unavailable).then_some(Duration::from_secs(1));
        Self { kind, message: message.into(), retry_after }
    }

    /// The request is wrong.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(Kind::Invalid, message)
    }

    /// Its name in metrics and logs.
    pub fn outcome(&self) -> &'static str {
        self.kind.name()
    }
}

impl Kind {
    /// Its name in metrics and logs.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Invalid => "invalid",
            Kind::Unauthorized => "unauthorized",
            Kind::Forbidden => "forbidden",
            Kind::NotFound => "not_found",
            Kind::OtherModel => "other_model",
            Kind::Method => "method",
            Kind::BodyTimeout => "body_timeout",
            Kind::TooLarge => "too_large",
            Kind::ContextLength => "context_length",
            Kind::Encoding => "encoding",
            Kind::Full => "full",
            Kind::Deadline => "deadline",
            Kind::Unavailable => "unavailable",
            Kind::Unimplemented => "unimplemented",
            Kind::Internal => "internal",
        }
    }
}

impl From<batch::Error> for Failure {
    fn from(error: batch::Error) -> Self {
        use batch::Error::*;
        let kind = match &error {
            Full { .. } => Kind::Full,
            TooManyRows { .. } | TooLong { .. } => Kind::TooLarge,
            Deadline => Kind::Deadline,
            Draining | NoDevice => Kind::Unavailable,
            _ => Kind::Internal,
        };
        let retry_after = match &error {
            Full { retry_after } => Some(*retry_after),
            Draining | NoDevice => Some(Duration::from_secs(1)),
            _ => None,
        };
        Self { kind, message: error.to_string(), retry_after }
    }
}

impl From<FieldError> for Failure {
    fn from(error: FieldError) -> Self {
        Self::invalid(error.to_string())
    }
}

impl From<EmbedError> for Failure {
    fn from(error: EmbedError) -> Self {
        let kind = match &error {
            EmbedError::TooLong { .. } => Kind::TooLarge,
            EmbedError::UnknownToken { .. }
            | EmbedError::UnknownType { .. }
            | EmbedError::Types { .. }
            | EmbedError::UnknownPrompt { .. }
            | EmbedError::TwoPrompts
            | EmbedError::PairPrompt
            | EmbedError::Untrained
            | EmbedError::NoTokens
            | EmbedError::Padding { .. }
            | EmbedError::Dimensions { .. }
            | EmbedError::Empty { .. } => Kind::Invalid,
            _ => Kind::Internal,
        };
        Self::new(kind, error.to_string())
    }
}

impl From<GenerateError> for Failure {
    fn from(error: GenerateError) -> Self {
        let error = match error {
            GenerateError::Queue(error) => return error.into(),
            GenerateError::Text(error @ TextError::TooLong { .. }) => {
                return Self::new(Kind::ContextLength, error.to_string())
            }
            GenerateError::Text(error @ (TextError::EmptyPrompt | TextError::UnknownToken { .. })) => {
                return Self::invalid(error.to_string())
            }
            GenerateError::Decoder(error) => error,
            error => return Self::new(Kind::Internal, error.to_string()),
        };
        match error {
            DecoderError::TooManyBytes { .. } => Self::new(Kind::ContextLength, error.to_string()),
            // Without the place of its files.
            DecoderError::NoTemplate { .. } => {
                Self::invalid("this model has no chat template: give it a prompt by /v1/completions")
            }
            DecoderError::BadTemplate { reason } => {
                let message = "this model's chat template cannot be parsed: give it a prompt by /v1/completions";
                Self::invalid(format!("{message}: {reason}"))
            }
            DecoderError::Template(_)
            | DecoderError::TemplateName { .. }
            | DecoderError::UnreadName { .. }
            | DecoderError::Tokenizer(_) => Self::invalid(error.to_string()),
            _ => Self::new(Kind::Internal, error.to_string()),
        }
    }
}
