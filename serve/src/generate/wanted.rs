//! What an answer shall be like.

use opara_models::decoder::Draws;

/// What an answer shall be like.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Wanted {
    /// Tokens at most. Default: as many as the context has left.
    pub tokens: Option<usize>,
    /// Tokens at least: before that no token that ends a text is drawn, and no string ends it.
    pub least: usize,
    /// How tokens are drawn. A missing setting is the checkpoint's, or else changes nothing.
    pub draws: Draws,
    /// The same seed gives the same text. Default: 0 for a [`Writer`](super::Writer), and another one for each text of a server.
    pub seed: Option<u64>,
    /// Added to the logits of these tokens.
    pub bias: Vec<(u32, f32)>,
    /// Subtracted from a token's logit for each time that it was written.
    pub frequency_penalty: f32,
    /// Subtracted from the logits of tokens that were written.
    pub presence_penalty: f32,
    /// Whether the likelihood of each token is told, and how many of the most likely tokens are told with theirs.
    pub alternatives: Option<usize>,
    /// The same of the tokens of the prompt.
    pub prompt_alternatives: Option<usize>,
    /// Strings that end the text, which are no part of it. None is empty.
    pub stops: Vec<String>,
    /// Tokens that end the text beside the model's own. They are no part of it.
    pub ends: Vec<u32>,
    /// Whether the model's own are tokens like others.
    pub ignores_ends: bool,
    /// Whether special tokens are told by their names, where otherwise they have no text.
    pub names_special: bool,
    /// Whose it is: texts of the same tenant share what was read of their prompts.
    pub tenant: u64,
    /// Whether the text is told as it comes: a deadline is then that of its beginning.
    pub is_streamed: bool,
}
