//! Chat templates: conversations as the text that a model was trained with.

use std::path::{Path, PathBuf};

use minijinja::{context, Environment, Error, ErrorKind};
use minijinja_contrib::pycompat::unknown_method_callback;
use serde::Serialize;

use super::error::{DecoderError, Result};

/// One turn of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Message {
    /// `system`, `user`, `assistant`, or whatever else the template knows.
    pub role: String,
    /// What was said.
    pub content: String,
}

/// A template of Jinja, as checkpoints have them.
pub(super) struct Template {
    environment: Environment<'static>,
    bos: Option<String>,
    eos: Option<String>,
}

/// What the environment calls it.
const NAME: &str = "chat";

impl Template {
    /// Parses a template, which may name the tokens that begin and end a text.
    pub fn new(source: String, bos: Option<String>, eos: Option<String>) -> Result<Self> {
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_unknown_method_callback(unknown_method_callback);
        let raise = |reason: String| -> Result<String, Error> { Err(Error::new(ErrorKind::InvalidOperation, reason)) };
        environment.add_function("raise_exception", raise);
        environment.add_template_owned(NAME, source)?;
        Ok(Self { environment, bos, eos })
    }

    /// The prompt that asks for the next turn of the assistant.
    pub fn render(&self, messages: &[Message]) -> Result<String> {
        let (bos_token, eos_token) = (self.bos.as_deref().unwrap_or(""), self.eos.as_deref().unwrap_or(""));
        let given = context! { messages, bos_token, eos_token, add_generation_prompt => true };
        Ok(self.environment.get_template(NAME)?.render(given)?)
    }
}

/// The tokens that begin and end a text, and the template, as the files beside a tokenizer say.
pub(super) fn beside(tokenizer: &Path) -> Result<Option<Template>> {
    let json = |name: &str| -> Result<serde_json::Value> {
        let path = tokenizer.with_file_name(name);
        match read(&path)? {
            Some(text) => serde_json::from_str(&text).map_err(|source| DecoderError::Json { path, source }),
            None => Ok(serde_json::Value::Null),
        }
    };
    let settings = json("tokenizer_config.json")?;
    // A token is its text, or an object that has it.
    let token = |name: &str| {
        let token = settings.get(name)?;
        token.as_str().or_else(|| token.get("content")?.as_str()).map(str::to_owned)
    };
    // A template is a text, or one of several by name.
    let of_settings = settings.get("chat_template").and_then(|template| match template.as_array() {
        None => template.as_str(),
        Some(several) => {
            let default = several.iter().find(|one| one.get("name").and_then(|name| name.as_str()) == Some("default"));
            default.or(several.first())?.get("template")?.as_str()
        }
    });
    let source = match read(&tokenizer.with_file_name("chat_template.jinja"))? {
        Some(source) => Some(source),
        None => of_settings.map(str::to_owned),
    };
    source.map(|source| Template::new(source, token("bos_token"), token("eos_token"))).transpose()
}

/// The text of a file that need not be there.
fn read(path: &Path) -> Result<Option<String>> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(DecoderError::Read { path: PathBuf::from(path), source }),
    }
}
