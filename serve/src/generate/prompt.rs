//! Prompts to answers: tokenizer, defaults, and the queue.

use opara_candle::ops::Sampling;
use opara_models::decoder::{Conversation, DecoderError};
use opara_models::engine::{Request, TextError};

use super::stop::StopStrings;
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
    /// Tokens at least: before that no token that ends a text is drawn, and no string ends it.
    pub least: usize,
    /// How tokens are drawn.
    pub sampling: Sampling,
    /// Strings that end the text, which are no part of it. None is empty.
    pub stops: Vec<String>,
    /// Tokens that end the text beside the model's own. They are no part of it.
    pub ends: Vec<u32>,
    /// Whether the model's own are tokens like others.
    pub ignores_ends: bool,
    /// Whose it is: texts of the same tenant share what was read of their prompts.
    pub tenant: u64,
    /// Whether the text is told as it comes: a deadline is then that of its beginning.
    pub is_streamed: bool,
}

impl Writer {
    /// The tokens of a prompt. Takes time that grows with the text.
    ///
    /// # Errors
    /// A text that the tokenizer or the template refuses, a model without a template.
    pub fn encode(&self, prompt: Prompt) -> Result<Vec<u32>> {
        Ok(match prompt {
            Prompt::Text(text) => {
                self.check_bytes(&text)?;
                self.text.encode(&text)?
            }
            Prompt::Tokens(tokens) => tokens,
            Prompt::Chat(conversation) => {
                let prompt = self.text.prompt(&conversation)?;
                self.check_bytes(&prompt)?;
                self.text.encode_prompt(&prompt)?
            }
        })
    }

    /// Refuses a text that cannot fit before its tokens are made, which takes a hundred times its memory.
    fn check_bytes(&self, text: &str) -> Result<()> {
        let (bytes, model) = (text.len(), self.model());
        let (context, most) = (model.context(), model.config().max_positions);
        match bytes <= self.most_bytes {
            true => Ok(()),
            false => Err(DecoderError::TooManyBytes { bytes, context, most }.into()),
        }
    }

    /// Begins to write. Clients take turns.
    ///
    /// # Errors
    /// A prompt that is empty, has tokens that the model does not have, or is too long for what is asked for; a queue that takes no
    /// more.
    pub fn answer(&self, prompt: Vec<u32>, wanted: Wanted, client: u64) -> Result<Answer> {
        let model = self.model();
        // A token at least, so that a prompt that fills the context is too long.
        let left = model.context().saturating_sub(prompt.len()).max(1);
        let most = wanted.tokens.unwrap_or(left.max(wanted.least));
        let vocab = model.config().vocab;
        if let Some(&token) = wanted.ends.iter().find(|end| **end as usize >= vocab) {
            return Err(TextError::UnknownToken { token, vocab }.into());
        }
        let own = if wanted.ignores_ends { &[][..] } else { &model.config().eos };
        let ends = own.iter().copied().chain(wanted.ends).collect();
        let Wanted { least, sampling, tenant, .. } = wanted;
        let length = prompt.len();
        let request = Request { prompt, most, least, ends, sampling, tenant };
        request.check(model)?;
        let receiver = self.submit(request, client)?;
        let stops = StopStrings::new(wanted.stops);
        Ok(Answer::new(self.text.clone(), receiver, stops, least, length))
    }
}
