//! `/v1/embeddings`.

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::Json;
use base64::prelude::{Engine as _, BASE64_STANDARD};
use opara_weights::Harmless;
use serde::{Deserialize, Serialize};

use crate::batch::Stage;
use crate::embed::{Answers, TextOptions, TextRow, VectorOptions};
use crate::model::{Embeddings, Failure, Result, Texts};

use super::super::fields::{of_body, Unread};
use super::super::service::Service;
use super::harmless::HARMLESS;
use super::refusal::answer;

/// A request for vectors.
struct Body {
    model: String,
    input: Input,
    format: Format,
    dimensions: Option<usize>,
    options: TextOptions,
}

impl Body {
    fn read(bytes: &[u8], allows_unread: bool) -> Result<Self> {
        let fields = of_body(bytes)?;
        let (model, input) = (fields.need("model")?, fields.need("input")?);
        let format = fields.take("encoding_format")?.unwrap_or_default();
        let dimensions = fields.take("dimensions")?;
        let (prompt, name) = (fields.take("prompt")?, fields.take("prompt_name")?);
        let options = TextOptions::of(prompt, name, fields.take("truncate")?)?;
        let harmless = Harmless { names: HARMLESS, neutral: &[("add_special_tokens", "true")] };
        Unread { harmless, is_allowed: allows_unread }.check(&fields)?;
        Ok(Self { model, input, format, dimensions, options })
    }
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "`input` must be a string, a list of strings, a list of tokens or a list of such lists")]
enum Input {
    Text(String),
    Texts(Vec<String>),
    Tokens(Vec<u32>),
    Rows(Vec<Vec<u32>>),
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Format {
    #[default]
    Float,
    Base64,
}

#[derive(Serialize)]
struct Answer<'a> {
    object: &'static str,
    data: Vec<Item<'a>>,
    model: &'a str,
    usage: Usage,
}

#[derive(Serialize)]
struct Item<'a> {
    object: &'static str,
    index: usize,
    embedding: Vector<'a>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Vector<'a> {
    Floats(&'a [f32]),
    Base64(String),
}

#[derive(Serialize)]
struct Usage {
    prompt_tokens: usize,
    total_tokens: usize,
}

pub(super) async fn embeddings(State(service): State<Service>, request: Request) -> Response {
    answer(&service, embedded(&service, request).await)
}

async fn embedded(service: &Service, request: Request) -> Result<Response> {
    let (parts, body) = request.into_parts();
    let bytes = service.body(&parts, body).await?;
    let Body { model, input, format, dimensions, options } = Body::read(&bytes, service.limits.allows_unread)?;
    let context = service.context(&parts.extensions, None)?;
    let texts = match input {
        Input::Text(text) => Texts::Plain(vec![text]),
        Input::Texts(texts) => Texts::Plain(texts),
        Input::Tokens(tokens) => Texts::Tokens(vec![tokens.into()]),
        Input::Rows(rows) => Texts::Tokens(rows.into_iter().map(TextRow::from).collect()),
    };
    if matches!(&texts, Texts::Plain(texts) if texts.is_empty()) {
        return Err(Failure::invalid("`input` is empty"));
    }
    service.reader(Some(&model), |answers| matches!(answers, Answers::Vectors(_)), "an embedder")?;
    let options = TextOptions { vector: VectorOptions { dimensions, ..VectorOptions::default() }, ..options };
    let Embeddings { vectors, tokens } = service.embed(&model, texts, options, context).await?;
    let vector =
        |vector: &'_ [f32]| BASE64_STANDARD.encode(vector.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>());
    let item = |(index, floats)| Item {
        object: "embedding",
        index,
        embedding: match format {
            Format::Float => Vector::Floats(floats),
            Format::Base64 => Vector::Base64(vector(floats)),
        },
    };
    service.registry.model(&model).timed(Stage::Respond, || {
        let data = vectors.iter().map(Vec::as_slice).enumerate().map(item).collect();
        let usage = Usage { prompt_tokens: tokens, total_tokens: tokens };
        let answer = Answer { object: "list", data, model: &model, usage };
        Ok(Json(answer).into_response())
    })
}
