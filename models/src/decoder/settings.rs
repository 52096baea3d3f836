//! What the files beside a tokenizer say of it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::error::{DecoderError, Result};
use super::template::Templates;

/// `tokenizer_config.json` and `special_tokens_map.json`.
pub(super) struct Settings {
    /// The tokenizer's file.
    path: PathBuf,
    json: Value,
    /// Tokens by what they are for: `bos_token`, `eos_token`.
    pub tokens: BTreeMap<String, String>,
    /// Whether texts begin with the first, and end with the second of them, if the files say so.
    pub adds: [Option<bool>; 2],
}

impl Settings {
    /// Reads the files in the folder of a tokenizer, none of which need be there.
    pub fn beside(tokenizer: &Path) -> Result<Self> {
        let read_json = |name: &str| -> Result<Value> {
            let path = tokenizer.with_file_name(name);
            match read(&path)? {
                Some(text) => serde_json::from_str(&text).map_err(|source| DecoderError::Json { path, source }),
                None => Ok(Value::Null),
            }
        };
        let (json, special) = (read_json("tokenizer_config.json")?, read_json("special_tokens_map.json")?);
        let mut tokens = BTreeMap::new();
        for name in ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"] {
            // A token is its text, or an object that has it.
            let token = json.get(name).or(special.get(name));
            if let Some(text) = token.and_then(|token| token.as_str().or_else(|| token.get("content")?.as_str())) {
                tokens.insert(name.to_owned(), text.to_owned());
            }
        }
        let adds = ["add_bos_token", "add_eos_token"].map(|name| json.get(name).and_then(Value::as_bool));
        Ok(Self { path: tokenizer.into(), json, tokens, adds })
    }

    /// The chat templates: of `tokenizer_config.json`, and of files of their own, which come first.
    pub fn templates(&self) -> Result<Option<Templates>> {
        let mut sources = BTreeMap::new();
        // A template is a text, or one of several by name.
        match self.json.get("chat_template") {
            Some(Value::Array(several)) => {
                let text = |one: &Value, field: &str| Some(one.get(field)?.as_str()?.to_owned());
                sources.extend(several.iter().filter_map(|one| Some((text(one, "name")?, text(one, "template")?))));
            }
            template => sources.extend(template.and_then(|one| Some(("default".to_owned(), one.as_str()?.to_owned())))),
        }
        let folder = self.path.with_file_name("additional_chat_templates");
        for name in ["default", "tool_use"] {
            let source = read(&folder.join(format!("{name}.jinja")))?;
            sources.extend(source.map(|source| (name.to_owned(), source)));
        }
        let source = read(&self.path.with_file_name("chat_template.jinja"))?;
        sources.extend(source.map(|source| ("default".to_owned(), source)));
        Ok(Templates::new(sources, self.tokens.clone()))
    }
}

/// The text of a file that need not be there.
fn read(path: &Path) -> Result<Option<String>> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(DecoderError::Read { path: PathBuf::from(path), source }),
    }
}
