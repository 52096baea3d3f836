//! Tokenizers of checkpoints.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value};
use tokenizers::{AddedToken, ModelWrapper, PreTokenizerWrapper, Result, Tokenizer};

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

/// The tokenizer of a `tokenizer.json`, with the tokens that `tokenizer_config.json` beside it adds or names, as transformers reads
/// it. Merges that are left out at random are for training: none are.
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
    let json = |name: &str| -> Result<Value> {
        let file = path.with_file_name(name);
        match file.is_file() {
            true => Ok(serde_json::from_slice(&std::fs::read(file)?).map_err(|error| format!("{name}: {error}"))?),
            false => Ok(Value::Null),
        }
    };
    let settings = json("tokenizer_config.json")?;
    match settings.get("added_tokens_decoder").and_then(Value::as_object) {
        Some(tokens) => guarded(|| add(&mut tokenizer, tokens))?,
        None => check_added(&tokenizer, &json("added_tokens.json")?)?,
    }
    guarded(|| name(&mut tokenizer, &settings))?;
    split(&mut tokenizer, &settings);
    Ok(tokenizer)
}

/// Splits texts as the settings say, whatever the tokenizer's own file has.
fn split(tokenizer: &mut Tokenizer, settings: &Value) {
    let flag = |name: &str| settings.get(name).and_then(Value::as_bool);
    if let (Some(PreTokenizerWrapper::ByteLevel(bytes)), Some(adds)) =
        (tokenizer.get_pre_tokenizer(), flag("add_prefix_space"))
    {
        let bytes = bytes.add_prefix_space(adds);
        tokenizer.with_pre_tokenizer(Some(bytes));
    }
    tokenizer.set_encode_special_tokens(flag("split_special_tokens").unwrap_or(false));
}

/// Has tokens of the vocabulary that the settings name be special, as transformers has it.
fn name(tokenizer: &mut Tokenizer, settings: &Value) -> Result<()> {
    const NAMES: [&str; 7] =
        ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];
    let text = |token: &Value| token.as_str().or_else(|| token.get("content")?.as_str()).map(str::to_owned);
    // A list, or tokens by names of their own.
    let more = ["additional_special_tokens", "extra_special_tokens"].iter().filter_map(|name| settings.get(name));
    let more = more.flat_map(|more| match more {
        Value::Array(tokens) => tokens.iter().collect::<Vec<_>>(),
        Value::Object(tokens) => tokens.values().collect(),
        _ => Vec::new(),
    });
    let named = NAMES.iter().filter_map(|name| settings.get(name)).chain(more).filter_map(text);
    let added = tokenizer.get_added_vocabulary().get_vocab();
    let is_new = |token: &String| !added.contains_key(token) && tokenizer.token_to_id(token).is_some();
    let new: Vec<_> = named.filter(is_new).map(|token| AddedToken::from(token, true)).collect();
    tokenizer.add_special_tokens(new)?;
    Ok(())
}

/// Refuses tokens of older files that the tokenizer does not have.
fn check_added(tokenizer: &Tokenizer, added: &Value) -> Result<()> {
    let is_other = |(token, id): &(&String, &Value)| tokenizer.token_to_id(token).map(u64::from) != id.as_u64();
    match added.as_object().into_iter().flatten().find(is_other) {
        Some((token, id)) => {
            Err(format!("`{token}` is token {id} in added_tokens.json, and not by tokenizer.json").into())
        }
        None => Ok(()),
    }
}

/// A token of `tokenizer_config.json`.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Added {
    content: String,
    single_word: bool,
    lstrip: bool,
    rstrip: bool,
    normalized: Option<bool>,
    special: bool,
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
