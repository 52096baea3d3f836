//! Tokens of texts, and texts of tokens.

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::Json;
use serde::{Deserialize, Serialize};

use super::answer::answer;
use super::inputs::Asked;
use crate::embed::Token;
use crate::model::{Failure, Kind, Result};

use super::super::openai::AskedTokens;
use super::super::service::Service;

/// One or several.
#[derive(Deserialize)]
#[serde(untagged, expecting = "must be one text or a list of texts, or one list of tokens or several")]
enum Several<T> {
    Many(Vec<T>),
    One(T),
}

impl<T> Several<T> {
    fn list(self) -> Vec<T> {
        match self {
            Self::Many(list) => list,
            Self::One(one) => vec![one],
        }
    }
}

#[derive(Serialize)]
struct Told {
    id: u32,
    text: String,
    special: bool,
    start: Option<usize>,
    stop: Option<usize>,
}

impl From<Token> for Told {
    fn from(token: Token) -> Self {
        let (start, stop) = token.place.unzip();
        Self { id: token.id, text: token.text, special: token.is_special, start, stop }
    }
}

/// What tokens are asked for.
enum Wanted {
    /// Of texts: the model, whether special tokens are added, and the texts.
    Texts(Asked, bool, Vec<String>),
    /// Of a prompt, as vLLM's clients ask.
    Prompt(AskedTokens),
}

/// `/tokenize`.
pub(super) async fn tokenize(State(service): State<Service>, request: Request) -> Response {
    answer(
        service,
        request,
        |fields| {
            if AskedTokens::is_of(fields) {
                return Ok(Wanted::Prompt(AskedTokens::read(fields)?));
            }
            let texts = fields.need::<Several<String>>("inputs")?.list();
            Ok(Wanted::Texts(Asked::read(fields)?, fields.take("add_special_tokens")?.unwrap_or(true), texts))
        },
        |service, wanted, context| async move {
            let (Asked { model, options }, adds, texts) = match wanted {
                Wanted::Texts(asked, adds, texts) => (asked, adds, texts),
                Wanted::Prompt(asked) => return asked.tokens(service, context).await,
            };
            let (_, found) = service.reader(model.as_deref(), |_| true, "a model that reads texts")?;
            service.check_rows(texts.len())?;
            let tokens = move || -> Result<Vec<Vec<Told>>> {
                let reader = found.reader().ok_or_else(|| Failure::new(Kind::Internal, "the model reads no texts"))?;
                let of = |text: &String| Ok(reader.tokenizer.tokens(text, adds, &options.prompt)?);
                let told = |tokens: Vec<Token>| tokens.into_iter().map(Told::from).collect();
                texts.iter().map(|text| of(text).map(told)).collect()
            };
            Ok(Json(blocking(tokens).await?).into_response())
        },
    )
    .await
}

/// `/decode`.
pub(super) async fn decode(State(service): State<Service>, request: Request) -> Response {
    answer(
        service,
        request,
        |fields| {
            let ids = fields.need::<Ids>("ids")?;
            let model: Option<String> = fields.take("model")?;
            Ok((model, ids, fields.take("skip_special_tokens")?.unwrap_or(true)))
        },
        |service, (model, ids, skips), _| async move {
            let (_, found) = service.reader(model.as_deref(), |_| true, "a model that reads texts")?;
            let rows = match ids {
                Ids::Row(row) => vec![row],
                Ids::Rows(rows) => rows,
            };
            service.check_rows(rows.len())?;
            let texts = move || -> Result<Vec<String>> {
                let reader = found.reader().ok_or_else(|| Failure::new(Kind::Internal, "the model reads no texts"))?;
                rows.iter().map(|ids| Ok(reader.tokenizer.decode(ids, skips)?)).collect()
            };
            Ok(Json(blocking(texts).await?).into_response())
        },
    )
    .await
}

/// Tokens of a text, or of several.
#[derive(Deserialize)]
#[serde(untagged, expecting = "must be a list of tokens or a list of such lists")]
enum Ids {
    Row(Vec<u32>),
    Rows(Vec<Vec<u32>>),
}

/// Runs a tokenizer beside the connections.
async fn blocking<T: Send + 'static>(run: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let done = tokio::task::spawn_blocking(run).await;
    done.unwrap_or_else(|_| Err(Failure::new(Kind::Internal, "the tokenizer panicked")))
}
