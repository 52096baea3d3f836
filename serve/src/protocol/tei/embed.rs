//! Vectors of texts or of their tokens, weights of words, and how near texts are to one.

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::Json;
use serde::Serialize;

use super::answer::answer;
use super::inputs::{options, texts, Asked};
use crate::batch::Stage;
use crate::embed::{Answers, TextOptions, VectorOptions};
use crate::model::{Embeddings, Failure, Kind, Result, Texts};

use super::super::fields::Unread;
use super::super::service::Service;

fn has_vectors(answers: &Answers) -> bool {
    matches!(answers, Answers::Vectors(_))
}

/// `/embed`.
pub(super) async fn vectors(State(service): State<Service>, request: Request) -> Response {
    answer(
        service,
        request,
        |fields| {
            let Asked { model, options } = Asked::read(fields)?;
            let normalize = Some(fields.take("normalize")?.unwrap_or(true));
            let vector = VectorOptions { normalize, dimensions: fields.take("dimensions")? };
            Ok((model, TextOptions { vector, ..options }, texts(fields)?))
        },
        |service, (model, options, texts), context| async move {
            let (name, _) = service.reader(model.as_deref(), has_vectors, "an embedder")?;
            let Embeddings { vectors, .. } = service.embed(&name, texts, options, context).await?;
            Ok(service.registry.model(&name).timed(Stage::Respond, || Json(vectors).into_response()))
        },
    )
    .await
}

/// `/embed_all`: the hidden states of all tokens.
pub(super) async fn all_tokens(State(service): State<Service>, request: Request) -> Response {
    answer(
        service,
        request,
        |fields| Ok((Asked::read(fields)?, texts(fields)?)),
        |service, (Asked { model, options }, texts), context| async move {
            let (name, found) = service.reader(model.as_deref(), has_vectors, "an embedder")?;
            let hidden = found.reader().map_or(1, |reader| reader.hidden);
            let options = TextOptions { has_tokens: true, ..options };
            let Embeddings { vectors, .. } = service.embed(&name, texts, options, context).await?;
            let rows: Vec<Vec<&[f32]>> = vectors.iter().map(|vector| vector.chunks(hidden).collect()).collect();
            Ok(Json(rows).into_response())
        },
    )
    .await
}

/// A word of the vocabulary and its weight.
#[derive(Serialize)]
struct Weight {
    index: usize,
    value: f32,
}

/// `/embed_sparse`: the weights that are not zero.
pub(super) async fn words(State(service): State<Service>, request: Request) -> Response {
    answer(
        service,
        request,
        |fields| Ok((Asked::read(fields)?, texts(fields)?)),
        |service, (Asked { model, options }, texts), context| async move {
            let fits = |answers: &Answers| *answers == Answers::Words;
            let (name, _) = service.reader(model.as_deref(), fits, "an encoder to words (SPLADE)")?;
            let Embeddings { vectors, .. } = service.embed(&name, texts, options, context).await?;
            let weights = |vector: Vec<f32>| -> Vec<Weight> {
                let weights = vector.into_iter().enumerate().map(|(index, value)| Weight { index, value });
                weights.filter(|weight| weight.value != 0.).collect()
            };
            Ok(Json(vectors.into_iter().map(weights).collect::<Vec<_>>()).into_response())
        },
    )
    .await
}

/// `/similarity`: the cosines between a text and others.
pub(super) async fn similarity(State(service): State<Service>, request: Request) -> Response {
    answer(
        service,
        request,
        |fields| {
            let (inputs, parameters) = (fields.object("inputs")?, fields.object("parameters")?);
            let (source, sentences): (String, Vec<String>) =
                (inputs.need("source_sentence")?, inputs.need("sentences")?);
            if sentences.is_empty() {
                return Err(Failure::invalid("`inputs.sentences` is empty"));
            }
            let model: Option<String> = fields.take("model")?;
            let vector = VectorOptions { normalize: Some(true), dimensions: None };
            let options = TextOptions { vector, ..options(&parameters)? };
            for inner in [&inputs, &parameters] {
                Unread::default().check(inner)?;
            }
            Ok((model, options, std::iter::once(source).chain(sentences).collect::<Vec<_>>()))
        },
        |service, (model, options, texts), context| async move {
            let (name, _) = service.reader(model.as_deref(), has_vectors, "an embedder")?;
            let Embeddings { vectors, .. } = service.embed(&name, Texts::Plain(texts), options, context).await?;
            Ok(Json(cosines(&vectors)?).into_response())
        },
    )
    .await
}

/// Of the first vector with each other one. All have length 1.
fn cosines(vectors: &[Vec<f32>]) -> Result<Vec<f32>> {
    let [first, others @ ..] = vectors else {
        return Err(Failure::new(Kind::Internal, "a text has no vector"));
    };
    let dot = |other: &Vec<f32>| first.iter().zip(other).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>();
    Ok(others.iter().map(|other| dot(other) as f32).collect())
}
