//! Texts that a model wants before those that it embeds.

use std::collections::BTreeMap;
use std::path::Path;

use opara_weights::Unread;

use super::file_fields::FileFields;
use super::{EmbedError, Result};

/// Which prompt stands before a text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum PromptChoice {
    /// The model's default, if it has one.
    #[default]
    Default,
    /// One of the model's, by its name.
    Named(String),
    /// This one.
    Text(String),
}

/// The prompts of a model by name, and which stands before texts where none is chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompts {
    named: BTreeMap<String, String>,
    default: Option<String>,
}

/// As sentence-transformers has it: these names exist for every model, and are empty unless it says otherwise.
impl Default for Prompts {
    fn default() -> Self {
        Self { named: ["query", "document"].map(|name| (name.to_owned(), String::new())).into(), default: None }
    }
}

/// What `config_sentence_transformers.json` says.
#[derive(Default)]
pub(super) struct SentenceConfig {
    pub prompts: Prompts,
    /// To how many elements vectors are cut.
    pub truncate: Option<usize>,
    /// The function of a classifier's logits.
    pub activation: Option<String>,
}

impl SentenceConfig {
    /// The file in this folder, of a model of this kind; nothing if there is none.
    pub fn read(folder: &Path, kind: &str, unread: Unread) -> Result<Self> {
        let Some(fields) = FileFields::read(&folder.join("config_sentence_transformers.json"), unread)? else {
            return Ok(Self::default());
        };
        fields.expect("model_type", kind)?;
        let activation = match kind {
            "CrossEncoder" => fields.take("activation_fn")?,
            _ => None,
        };
        let mut prompts = Prompts::default();
        for (name, text) in fields.take::<BTreeMap<String, Option<String>>>("prompts")?.unwrap_or_default() {
            prompts.named.insert(name, text.unwrap_or_default());
        }
        if let Some(name) = fields.take::<String>("default_prompt_name")? {
            prompts.find(&name).map_err(|error| fields.wrong(format!("`default_prompt_name`: {error}")))?;
            prompts.default = Some(name);
        }
        let truncate = fields.take("truncate_dim")?;
        if truncate == Some(0) {
            return Err(fields.wrong("`truncate_dim` is 0".into()));
        }
        // How vectors are compared is the client's affair, and versions are no part of an answer.
        fields.finish(&["__version__", "similarity_fn_name", "requirements"])?;
        Ok(Self { prompts, truncate, activation })
    }
}

impl Prompts {
    /// The text of a choice, which may be empty.
    ///
    /// # Errors
    /// [`EmbedError::UnknownPrompt`].
    pub fn text<'a>(&'a self, choice: &'a PromptChoice) -> Result<&'a str> {
        match choice {
            PromptChoice::Default => self.default.as_deref().map_or(Ok(""), |name| self.find(name)),
            PromptChoice::Named(name) => self.find(name),
            PromptChoice::Text(text) => Ok(text),
        }
    }

    fn find(&self, name: &str) -> Result<&str> {
        let unknown =
            || EmbedError::UnknownPrompt { name: name.to_owned(), known: self.named.keys().cloned().collect() };
        self.named.get(name).map(String::as_str).ok_or_else(unknown)
    }
}
