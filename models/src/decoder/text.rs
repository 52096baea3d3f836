//! Between text and tokens.

use std::path::{Path, PathBuf};

use opara_weights::Checkpoint;
use tokenizers::Tokenizer;

use super::conversation::Conversation;
use super::dependence::Dependence;
use super::error::{DecoderError, Result};
use super::sentencepiece::Sentencepiece;
use super::settings::Settings;
use super::syntax::Syntax;
use super::template::Templates;
use crate::tokenizer;

/// A model's tokenizer, and its chat templates, if it has some.
pub struct Text {
    pub(super) tokenizer: Tokenizer,
    pub(super) templates: Option<Templates>,
    /// Where they are from.
    pub(super) path: PathBuf,
    /// Whether the tokenizer adds the tokens that begin and end a text.
    pub(super) adds_special: bool,
    /// The token that every text begins with, where the tokenizer does not add it by itself.
    pub(super) bos: Option<u32>,
    /// The one that every text ends with.
    pub(super) eos: Option<u32>,
    /// Whether conversations begin with it, too, where their template does not write it.
    pub(super) begins_chats: bool,
    pub(super) dependence: Dependence,
    /// What splits texts, where `tokenizer` finds controls and decodes alone.
    pub(super) sentencepiece: Option<Sentencepiece>,
}

impl Text {
    pub(super) fn new(tokenizer: Tokenizer, templates: Option<Templates>, path: PathBuf) -> Result<Self> {
        let dependence = Dependence::of(&tokenizer);
        let (adds_special, begins_chats) = (true, false);
        let (bos, eos, sentencepiece) = (None, None, None);
        Ok(Self { tokenizer, templates, path, adds_special, bos, eos, begins_chats, dependence, sentencepiece })
    }

    /// Of `tokenizer.json` and of what lies beside it: `tokenizer_config.json`, `special_tokens_map.json`, `chat_template.jinja` and
    /// `additional_chat_templates`. A template that cannot be parsed costs conversations alone.
    ///
    /// # Errors
    /// [`DecoderError::NoTokenizer`], [`DecoderError::Tokenizer`], files that cannot be read.
    pub fn beside(tokenizer: &Path) -> Result<Self> {
        if !tokenizer.is_file() {
            let reason = "tokenizer.json is missing".into();
            return Err(DecoderError::NoTokenizer { path: tokenizer.into(), reason });
        }
        let loaded = tokenizer::load(tokenizer).map_err(DecoderError::Tokenizer)?;
        let settings = Settings::beside(tokenizer)?;
        let mut text = Self::new(loaded, settings.templates()?, tokenizer.into())?;
        if let [None, None] = settings.adds {
            return Ok(text);
        }
        // What the settings do not say is as the tokenizer has it.
        let own = text.encode("")?;
        let token = |name: &str, adds: Option<bool>, at: Option<&u32>| {
            let id = settings.tokens.get(name).and_then(|token| text.tokenizer.token_to_id(token));
            let lacks = || DecoderError::NoTokenizer {
                path: tokenizer.into(),
                reason: format!(
                    "tokenizer_config.json has texts begin or end with the `{name}`, which is none of its tokens"
                ),
            };
            match adds {
                Some(true) => id.ok_or_else(lacks).map(Some),
                Some(false) => Ok(None),
                None => Ok(id.filter(|id| at == Some(id))),
            }
        };
        let bos = token("bos_token", settings.adds[0], own.first())?;
        let eos = token("eos_token", settings.adds[1], own.last())?;
        (text.adds_special, text.bos, text.eos) = (false, bos, eos);
        Ok(text)
    }

    /// Of a checkpoint's `tokenizer.json` and what lies beside it.
    ///
    /// # Errors
    /// Those of [`beside`](Self::beside).
    pub fn of_checkpoint(checkpoint: &Checkpoint) -> Result<Self> {
        match checkpoint.tokenizer_path() {
            Some(path) => Self::beside(path),
            None => {
                let (path, reason) = (checkpoint.config_path().unwrap_or(Path::new("")), "tokenizer.json is missing");
                Err(DecoderError::NoTokenizer { path: path.into(), reason: reason.into() })
            }
        }
    }

    /// The tokens of a prompt, with those that begin and end a text, if the model has such.
    ///
    /// # Errors
    /// [`DecoderError::Tokenizer`].
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        Ok(self.bos.into_iter().chain(self.tokens(text, self.adds_special)?).chain(self.eos).collect())
    }

    /// The tokens of a text alone, without those that begin and end one.
    ///
    /// # Errors
    /// [`DecoderError::Tokenizer`].
    pub fn encode_bare(&self, text: &str) -> Result<Vec<u32>> {
        self.tokens(text, false)
    }

    /// The tokens of a conversation, mostly up to where the assistant answers.
    ///
    /// # Errors
    /// [`DecoderError::NoTemplate`], [`DecoderError::BadTemplate`], [`DecoderError::Template`], [`DecoderError::UnreadName`],
    /// [`DecoderError::Tokenizer`].
    pub fn encode_chat(&self, conversation: &Conversation) -> Result<Vec<u32>> {
        self.encode_prompt(&self.prompt(conversation)?)
    }

    /// The tokens of what [`prompt`](Self::prompt) gives.
    ///
    /// # Errors
    /// [`DecoderError::Tokenizer`].
    pub fn encode_prompt(&self, prompt: &str) -> Result<Vec<u32>> {
        // Templates have the special tokens in them.
        let tokens = self.tokens(prompt, false)?;
        let bos = self.bos.filter(|bos| self.begins_chats && tokens.first() != Some(bos));
        Ok(bos.into_iter().chain(tokens).collect())
    }

    fn tokens(&self, text: &str, adds_special: bool) -> Result<Vec<u32>> {
        let tokens = tokenizer::guarded(|| match &self.sentencepiece {
            Some(sentencepiece) => Ok(sentencepiece.encode(text, &self.tokenizer)),
            None => Ok(self.tokenizer.encode(text, adds_special)?.get_ids().to_vec()),
        });
        tokens.map_err(DecoderError::Tokenizer)
    }

    /// The text that the model's template makes of a conversation.
    ///
    /// # Errors
    /// Those of [`encode_chat`](Self::encode_chat).
    pub fn prompt(&self, conversation: &Conversation) -> Result<String> {
        let templates = self.templates.as_ref().ok_or_else(|| DecoderError::NoTemplate { path: self.path.clone() })?;
        templates.render(conversation)
    }

    /// Refuses a tokenizer whose texts have tokens that a model of this vocabulary does not have. Tokens that were added by hand may be
    /// such: a prompt with one of them is refused.
    ///
    /// # Errors
    /// [`DecoderError::TokenizerVocabulary`].
    pub fn check_vocabulary(&self, vocab: usize) -> Result<()> {
        let added = self.tokenizer.get_added_vocabulary().get_vocab();
        let words = self.tokenizer.get_vocab(false).into_iter().filter(|(token, _)| !added.contains_key(token));
        let most = words.max_by_key(|(_, id)| *id).filter(|(_, id)| *id as usize >= vocab);
        match most {
            Some((token, id)) => Err(DecoderError::TokenizerVocabulary { token, id, vocab }),
            None => Ok(()),
        }
    }

    /// How answers to conversations with tools, or without any, have calls and reasoning in them.
    pub fn syntax(&self, has_tools: bool) -> Option<&Syntax> {
        self.templates.as_ref()?.syntax(has_tools)
    }

    /// Whether conversations have a template.
    pub fn has_template(&self) -> bool {
        self.templates.is_some()
    }

    /// The text of tokens, without special ones.
    ///
    /// # Errors
    /// [`DecoderError::Tokenizer`].
    pub fn decode(&self, tokens: &[u32]) -> Result<String> {
        tokenizer::guarded(|| self.tokenizer.decode(tokens, true)).map_err(DecoderError::Tokenizer)
    }
}
