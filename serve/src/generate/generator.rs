//! Prompts to answers: tokenizer, defaults, and the writer.

use std::sync::Arc;

use opara_candle::ops::Sampling;
use opara_models::decoder::{Conversation, Request, Text};

use super::{Answer, Result, Writer};

/// What to go on from.
#[derive(Debug, Clone, PartialEq)]
pub enum Prompt {
    /// UTF-8.
    Text(String),
    /// Token ids of the model's vocabulary.
    Tokens(Vec<u32>),
    /// A conversation, which the model's chat template writes as a prompt.
    Chat(Conversation),
}

/// What an answer shall be like.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Wanted {
    /// Tokens at most. Default: as many as the context has left.
    pub tokens: Option<usize>,
    /// How tokens are drawn.
    pub sampling: Sampling,
    /// Strings that end the text, which are no part of it. None is empty.
    pub stops: Vec<String>,
    /// Whether the text is told as it comes: a deadline is then that of its beginning.
    pub is_streamed: bool,
}

/// A decoder and its tokenizer, for many requests.
pub struct Generator {
    writer: Writer,
    text: Arc<Text>,
}

impl Generator {
    /// Of a writer and the tokenizer of its model.
    pub fn new(writer: Writer, text: Arc<Text>) -> Self {
        Self { writer, text }
    }

    /// What writes.
    pub fn writer(&self) -> &Writer {
        &self.writer
    }

    /// The tokens of a prompt. Takes time that grows with the text.
    ///
    /// # Errors
    /// A text that the tokenizer or the template refuses, a model without a template.
    pub fn encode(&self, prompt: Prompt) -> Result<Vec<u32>> {
        Ok(match prompt {
            Prompt::Text(text) => self.text.encode(&text)?,
            Prompt::Tokens(tokens) => tokens,
            Prompt::Chat(conversation) => self.text.encode_chat(&conversation)?,
        })
    }

    /// Begins to write. Clients take turns.
    ///
    /// # Errors
    /// A prompt that is empty, has tokens that the model does not have, or is too long for what is asked for; a queue that takes no
    /// more.
    pub fn answer(&self, prompt: Vec<u32>, wanted: Wanted, client: u64) -> Result<Answer> {
        let model = self.writer.model();
        // A token at least, so that a prompt that fills the context is too long.
        let most = wanted.tokens.unwrap_or(model.context().saturating_sub(prompt.len()).max(1));
        let (ends, length) = (model.config().eos.clone(), prompt.len());
        let request = Request { prompt, most, ends, sampling: wanted.sampling };
        request.check(model)?;
        let receiver = self.writer.submit(request, client)?;
        Ok(Answer::new(self.text.clone(), receiver, wanted.stops, length))
    }
}
