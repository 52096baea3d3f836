//! Tokenizers of checkpoints.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value};
use tokenizers::{AddedToken, ModelWrapper, Result, Tokenizer};

/// The tokenizer of a `tokenizer.json`, without truncation and padding, which files keep of their last use: whoever wants them asks for
/// them.
///
/// # Errors
/// Those of [`open`].
pub fn load(path: &Path) -> Result<Tokenizer> {
    guarded(|| {
        let mut tokenizer = open(path)?;
        tokenizer.with_padding(None).with_truncation(None)?;
        Ok(tokenizer)
    })
}

/// The tokenizer of a `tokenizer.json`, with the tokens that `tokenizer_config.json` beside it adds, as transformers reads it. Merges
/// that are left out at random are for training: none are.
///
/// # Errors
/// A file that cannot be read, or that is no tokenizer; tokens that the two files give other numbers.
pub fn open(path: &Path) -> Result<Tokenizer> {
    let mut tokenizer = guarded(|| Tokenizer::from_file(path))?;
    if let ModelWrapper::BPE(model) = tokenizer.get_model() {
        if model.dropout.is_some() {
            let mut model = model.clone();
            model.dropout = None;
            tokenizer.with_model(model);
        }
    }
    let settings = path.with_file_name("tokenizer_config.json");
    if settings.is_file() {
        let settings: Value = serde_json::from_slice(&std::fs::read(settings)?)?;
        if let Some(tokens) = settings.get("added_tokens_decoder").and_then(Value::as_object) {
            guarded(|| add(&mut tokenizer, tokens))?;
        }
    }
    Ok(tokenizer)
}

/// A token of `tokenizer_config.json`.
#[derive(Deserialize)]
#[serde(default)]
struct Added {
    content: String,
    single_word: bool,
    lstrip: bool,
    rstrip: bool,
    normalized: Option<bool>,
    special: bool,
}

impl Default for Added {
    fn default() -> Self {
        Self {
            content: String::new(),
            single_word: false,
            lstrip: false,
            rstrip: false,
            normalized: None,
            special: false,
        }
    }
}

/// Adds tokens by their numbers. What they say of a token counts more than what the tokenizer says.
fn add(tokenizer: &mut Tokenizer, tokens: &Map<String, Value>) -> Result<()> {
    let read = |(id, token): (&String, &Value)| -> Result<(u32, AddedToken)> {
        let wrong = |error: &dyn std::fmt::Display| format!("tokenizer_config.json: token {id} is not sound: {error}");
        let number = id.parse().map_err(|error| wrong(&error))?;
        let Added { content, single_word, lstrip, rstrip, normalized, special } =
            Added::deserialize(token).map_err(|error| wrong(&error))?;
        let token = AddedToken::from(content, special).single_word(single_word).lstrip(lstrip).rstrip(rstrip);
        Ok((number, token.normalized(normalized.unwrap_or(!special))))
    };
    let mut added = tokens.iter().map(read).collect::<Result<Vec<_>>>()?;
    added.sort_by_key(|(id, _)| *id);
    tokenizer.add_tokens(added.iter().map(|(_, token)| token.clone()))?;
    match added
        .iter()
        .find(|(id, token)| !token.content.is_empty() && tokenizer.token_to_id(&token.content) != Some(*id))
    {
        Some((id, token)) => {
            let found = tokenizer.token_to_id(&token.content);
            let found = found.map_or("none".to_owned(), |found| found.to_string());
            let content = &token.content;
            Err(format!("`{content}` is token {id} in tokenizer_config.json, and {found} by tokenizer.json").into())
        }
        None => Ok(()),
    }
}

/// What a call of a tokenizer gives. Damaged files make `tokenizers` panic in places: that is an error here.
///
/// # Errors
/// Those of the call, and panics.
pub fn guarded<T>(call: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|_| Err("it panicked: its file is not sound".into()))
}
