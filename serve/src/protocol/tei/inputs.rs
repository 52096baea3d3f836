//! What the routes read alike.

use serde::Deserialize;

use super::super::fields::Fields;
use crate::embed::{TextOptions, TextRow};
use crate::model::{Failure, Result, Texts};

/// Which model, and how it reads texts.
pub(super) struct Asked {
    pub model: Option<String>,
    pub options: TextOptions,
}

impl Asked {
    pub fn read(fields: &Fields) -> Result<Self> {
        Ok(Self { model: fields.take("model")?, options: options(fields)? })
    }
}

/// How texts are read.
pub(super) fn options(fields: &Fields) -> Result<TextOptions> {
    let (prompt, name) = (fields.take("prompt")?, fields.take("prompt_name")?);
    let options = TextOptions::of(prompt, name, fields.take("truncate")?)?;
    Ok(TextOptions { side: fields.take("truncation_direction")?, ..options })
}

/// One text or several, as texts or as token ids.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "must be a string, a list of strings, a list of tokens or a list of such lists")]
enum Input {
    Text(String),
    Texts(Vec<String>),
    Tokens(Vec<u32>),
    Rows(Vec<Vec<u32>>),
}

/// The field `inputs`, which has at least one text.
pub(super) fn texts(fields: &Fields) -> Result<Texts> {
    let texts = match fields.need("inputs")? {
        Input::Text(text) => Texts::Plain(vec![text]),
        Input::Texts(texts) => Texts::Plain(texts),
        Input::Tokens(ids) => Texts::Tokens(vec![ids.into()]),
        Input::Rows(rows) => Texts::Tokens(rows.into_iter().map(TextRow::from).collect()),
    };
    match texts.is_empty() {
        true => Err(Failure::invalid("`inputs` is empty")),
        false => Ok(texts),
    }
}
