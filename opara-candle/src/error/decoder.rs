//! Errors of texts that a decoder cannot go on with.

use candle::Shape;

/// Why a [`DecoderExecutor`](crate::DecoderExecutor) cannot add tokens to its text.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DecoderError {
    /// The tokens are for another position than the end of the text.
    #[error(
        "tokens for position {got}, but the text has {expected} tokens: go on there, or begin a text at position 0"
    )]
    Position {
        /// Tokens of the text.
        expected: usize,
        /// Where the new ones were said to stand.
        got: usize,
    },

    /// The text would be longer than what the decoder was built for.
    #[error("a text of {tokens} tokens, but the decoder was built for {capacity}: build it with a larger capacity")]
    Capacity {
        /// Tokens of the text with the new ones.
        tokens: usize,
        /// What it was built for.
        capacity: usize,
    },

    /// Several tokens were given for a text whose latest tokens the module has not seen.
    #[error(
        "{tokens} tokens at once for a text that goes on by replays: give them one by one, or begin a text at position 0"
    )]
    Several {
        /// How many there are.
        tokens: usize,
    },

    /// An earlier call failed when it may already have added its tokens.
    #[error("an earlier call failed, and it is not known what the text has of its tokens: begin a text at position 0")]
    Broken,

    /// Tokens of a shape that no text has.
    #[error("tokens of shape {got:?}, not (1, tokens), or (rows, tokens) with the rows of the example")]
    Tokens {
        /// The shape.
        got: Shape,
    },

    /// A mask of another shape than the tokens'.
    #[error("a mask of shape {got:?} for tokens of shape {tokens:?}: it has one number for each of them")]
    Mask {
        /// The mask's shape.
        got: Shape,
        /// The tokens' shape.
        tokens: Shape,
    },

    /// A mask of padding for a module that takes none.
    #[error(
        "a mask for a module that takes none: build it with `build_padded_decoder`, if its attention can be given one; else give \
         texts of one length, or write texts of several lengths by `opara_models::engine`"
    )]
    NoMask,

    /// The example is too long for the capacity, or too short.
    #[error(
        "an example of {tokens} tokens for a capacity of {capacity}: there must be 2 at least, and room for 4 more"
    )]
    Example {
        /// Tokens of the example.
        tokens: usize,
        /// What the decoder is to be built for.
        capacity: usize,
    },
}
