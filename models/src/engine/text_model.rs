//! A model as an engine needs it.

use candle::{DType, Device, Result, Tensor};
use opara_candle::ops::{self, PAGE};

use super::error;
use super::memory::Memory;

/// A model that an [`Engine`](super::Engine) writes texts with. It computes logits; the engine draws tokens.
///
/// Its memory of several texts is tensors whose first dimension is the text, or the page. [`read`](Self::read) and [`step`](Self::step)
/// are recorded once and replayed for all texts: they write to that memory by operators that write in place.
pub trait TextModel: Send + Sync + 'static {
    /// Where it computes.
    fn device(&self) -> &Device;

    /// Tokens of its vocabulary.
    fn vocab(&self) -> usize;

    /// Tokens of a prompt that are read at once.
    fn part(&self) -> usize;

    /// Pages of [`PAGE`] tokens that the longest text takes, where the memory of a token does not depend on those behind it. Then
    /// texts whose prompts begin alike share pages. Without pages a text's memory is one piece.
    fn pages(&self) -> Option<usize>;

    /// Where the first token stands that is written behind a prompt of this many tokens.
    fn first_position(&self, prompt: usize) -> usize;

    /// Fails for a text that is too long.
    ///
    /// # Errors
    /// A text of these numbers of tokens is longer than the model's room.
    fn fits(&self, prompt: usize, answer: usize) -> error::Result<()>;

    /// The empty memory of `count` texts or, where there are any, [pages](Self::pages).
    ///
    /// # Errors
    /// No memory left.
    fn memory(&self, count: usize) -> Result<Vec<Tensor>>;

    /// The empty memory of `texts` texts, of whose prompts `parts` parts are read at once. Where the model has pages, it has `pages` pages, and
    /// those that are no text's.
    ///
    /// # Errors
    /// No memory left.
    fn empty(&self, texts: usize, parts: usize, pages: usize) -> Result<Memory> {
        let Some(of_text) = self.pages() else { return Ok(Memory::of_texts(self.memory(texts)?)) };
        // A part is filled up with tokens that are behind the text. What is read while graphs are built is in pages of its own.
        let of_part = self.part().div_ceil(PAGE);
        let table = Tensor::zeros((texts, of_text + of_part), DType::U32, self.device())?;
        let nobodys = parts * of_part;
        Ok(Memory::in_pages(self.memory(nobodys + pages)?, table, of_part, nobodys))
    }

    /// Reads a part of the prompt of each text: the logits of the tokens behind it, `(texts, vocab)`. Where the model has
    /// [pages](Self::pages), texts of this call may be parts of one prompt that follow one another, with the same pages: what each writes to the
    /// memory must be there before any of them looks at it.
    ///
    /// # Errors
    /// Those of the operators.
    fn read(&self, part: &Part, memory: &Memory) -> Result<Tensor>;

    /// Adds a token, `(texts, 1)`, to each text at its position, `(texts)`: the logits of the next tokens, `(texts, vocab)`.
    ///
    /// # Errors
    /// Those of the operators.
    fn step(&self, tokens: &Tensor, positions: &Tensor, memory: &Memory) -> Result<Tensor>;
}

/// A part of the prompt of each of several texts, filled up with other tokens. A text that nothing is read of keeps what it has before its
/// start.
pub struct Part<'a> {
    /// `(texts, tokens)`.
    pub ids: &'a Tensor,
    /// Where the first token of each stands, `(texts)`.
    pub starts: &'a Tensor,
    /// How many tokens are each text's own, `(texts)`.
    pub counts: &'a Tensor,
    /// Where those whose logits are given are among the tokens of all: the last one of each text, `(texts)`, or several of one text.
    pub last: &'a Tensor,
}

impl Part<'_> {
    /// One for the texts' own tokens, `(texts, tokens)` of u8.
    ///
    /// # Errors
    /// Those of the operators.
    pub fn own(&self) -> Result<Tensor> {
        let tokens = self.ids.dim(1)? as u32;
        ops::custom("own_tokens", &[&ops::unsqueeze(self.counts, 1)?], move |t| {
            Tensor::arange(0, tokens, t[0].device())?.unsqueeze(0)?.broadcast_lt(t[0])
        })
    }
}
