//! Why a text is not written.

/// Why a text is not written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    /// There is nothing to continue.
    #[error("the prompt has no tokens")]
    EmptyPrompt,

    /// A token that the vocabulary does not have.
    #[error("token {token} is not one of the vocabulary's {vocab}")]
    UnknownToken {
        /// The token.
        token: u32,
        /// Tokens of the vocabulary.
        vocab: usize,
    },

    /// Prompt and answer together are longer than the context.
    #[error(
        "a prompt of {prompt} tokens and an answer of {answer} need a context of {}, and this one has {context}: shorten the \
         prompt, ask for fewer tokens, or load the model for a longer context (at most {most})",
        prompt.saturating_add(*answer)
    )]
    TooLong {
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens asked for.
        answer: usize,
        /// Places of the cache.
        context: usize,
        /// The model's own limit.
        most: usize,
    },

    /// Fewer pages than the longest text takes.
    #[error(
        "{pages} pages of {} tokens are too few for a text of the longest context, which takes {needed}: give keys and values more memory, or \
         load the model for a shorter context",
        opara_candle::ops::PAGE
    )]
    FewPages {
        /// Pages that were asked for.
        pages: usize,
        /// Pages that are needed.
        needed: usize,
    },

    /// A request for a slot while all are in use.
    #[error("all {slots} slots are in use: wait until a text has ended")]
    NoSlot {
        /// Texts at once.
        slots: usize,
    },

    /// The model gives no numbers from which a token could be drawn.
    #[error(
        "the model's logits are not finite: its weights are not, or its numbers leave the range of their type. Run it in f32 or bf16, \
         or use another checkpoint"
    )]
    NotFinite,

    /// An error of the executor.
    #[error(transparent)]
    Executor(#[from] opara_candle::Error),

    /// An error of an operator.
    #[error(transparent)]
    Candle(#[from] candle::Error),
}

/// The result of what may fail with a [`TextError`].
pub type Result<T, E = TextError> = std::result::Result<T, E>;
