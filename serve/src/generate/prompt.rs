//! Prompts to answers: tokenizer, defaults, and the queue.

use opara_models::decoder::{Conversation, DecoderError, Value};
use opara_models::engine::{Request, TextError};

use super::guide::Guide;
use super::{Answer, Encoded, Result, Wanted, Writer};

/// What to go on from.
#[derive(Debug, Clone, PartialEq)]
pub enum Prompt {
    /// UTF-8.
    Text(String),
    /// The same without the tokens that begin and end a text.
    Bare(String),
    /// Token ids of the model's vocabulary.
    Tokens(Vec<u32>),
    /// A conversation, which the model's chat template writes as a prompt.
    Chat(Conversation),
}

impl Writer {
    /// A prompt, as tokens. Takes time that grows with the text.
    ///
    /// # Errors
    /// A text that the tokenizer or the template refuses, a model without a template.
    pub fn encode(&self, prompt: Prompt) -> Result<Encoded> {
        let tokens = match prompt {
            Prompt::Text(text) => {
                self.check_bytes(&text)?;
                self.text.encode(&text)?
            }
            Prompt::Bare(text) => {
                self.check_bytes(&text)?;
                self.text.encode_bare(&text)?
            }
            Prompt::Tokens(tokens) => tokens,
            Prompt::Chat(conversation) => {
                let prompt = self.text.prompt(&conversation)?;
                self.check_bytes(&prompt)?;
                let has_tools = conversation.names.get("tools").is_some_and(Value::is_true);
                let syntax = self.text.syntax(has_tools);
                let is_thinking = syntax.is_some_and(|syntax| syntax.ends_within_reasoning(&prompt));
                return Ok(Encoded { tokens: self.text.encode_prompt(&prompt)?, is_thinking });
            }
        };
        Ok(Encoded { tokens, is_thinking: false })
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

    /// Begins to write, as a guide says, if there is one. Clients take turns.
    ///
    /// # Errors
    /// A prompt that is empty, has tokens that the model does not have, or is too long for what is asked for; a queue that takes no
    /// more.
    pub fn answer(
        &self,
        prompt: impl Into<Encoded>,
        wanted: Wanted,
        guide: Option<Box<dyn Guide>>,
        client: u64,
    ) -> Result<Answer> {
        let prompt = prompt.into();
        let model = self.model();
        // A token at least, so that a prompt that fills the context is too long.
        let left = model.context().saturating_sub(prompt.tokens.len()).max(1);
        let most = wanted.tokens.unwrap_or(left.max(wanted.least));
        let vocab = model.config().vocab;
        if let Some(&token) = wanted.ends.iter().find(|end| **end as usize >= vocab) {
            return Err(TextError::UnknownToken { token, vocab }.into());
        }
        let own = if wanted.ignores_ends { &[][..] } else { &model.config().eos };
        let ends = own.iter().copied().chain(wanted.ends.iter().copied()).collect();
        let request = Request {
            prompt: prompt.tokens.clone(),
            most,
            least: wanted.least,
            ends,
            sampling: wanted.draws.or(model.config().draws).sampling(wanted.seed.unwrap_or(0)),
            bias: wanted.bias.clone(),
            frequency_penalty: wanted.frequency_penalty,
            presence_penalty: wanted.presence_penalty,
            alternatives: wanted.alternatives,
            prompt_alternatives: wanted.prompt_alternatives,
            is_guided: guide.is_some(),
            tenant: wanted.tenant,
        };
        request.check(model)?;
        let receiver = self.submit(request, guide, client)?;
        Ok(Answer::new(self.text.clone(), receiver, &wanted, prompt))
    }
}
