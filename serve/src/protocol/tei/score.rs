//! Scores of texts, of pairs of texts, and of texts for a query.

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::Json;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::answer::answer;
use super::inputs::Asked;
use crate::embed::{Answers, Labels, TextOptions};
use crate::model::{Context, Failure, Kind, Result, Texts};

use super::super::service::Service;

/// The scores of a model, or the logits that they are made of.
struct Scoring {
    service: Service,
    model: String,
    labels: Labels,
    is_raw: bool,
}

impl Scoring {
    fn of(service: Service, model: Option<&str>, is_raw: bool, fits: fn(&Answers) -> bool, kind: &str) -> Result<Self> {
        let (name, found) = service.reader(model, fits, kind)?;
        let answers = found.reader().map(|reader| reader.answers.clone());
        let Some(Answers::Classes(labels)) = answers else {
            return Err(Failure::new(Kind::Internal, "a classifier has no classes"));
        };
        Ok(Self { service, model: name, labels, is_raw })
    }

    /// One list a text or pair, with a number for each class.
    async fn scores(&self, texts: Texts, options: TextOptions, context: Context) -> Result<Vec<Vec<f32>>> {
        if texts.is_empty() {
            return Ok(Vec::new());
        }
        let logits = self.service.embed(&self.model, texts, options, context).await?.vectors;
        Ok(match self.is_raw {
            true => logits,
            false => logits.iter().map(|logits| self.labels.scores(logits)).collect(),
        })
    }
}

#[derive(Serialize)]
struct Rank {
    index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    score: f32,
}

/// `/rerank`: texts by how well they fit to a query, the best first.
pub(super) async fn rerank(State(service): State<Service>, request: Request) -> Response {
    answer(
        service,
        request,
        |fields| {
            let (query, texts): (String, Vec<String>) = (fields.need("query")?, fields.need("texts")?);
            if texts.is_empty() {
                return Err(Failure::invalid("`texts` is empty"));
            }
            let flag = |name: &str| fields.take(name).map(|flag: Option<bool>| flag.unwrap_or(false));
            Ok((Asked::read(fields)?, query, texts, flag("raw_scores")?, flag("return_text")?))
        },
        |service, (asked, query, texts, is_raw, has_text), context| async move {
            let fits = |answers: &Answers| matches!(answers, Answers::Classes(labels) if labels.is_reranker());
            let scoring = Scoring::of(service, asked.model.as_deref(), is_raw, fits, "a re-ranker")?;
            let pairs = texts.iter().map(|text| (query.clone(), text.clone())).collect();
            let scores = scoring.scores(Texts::Pairs(pairs), asked.options, context).await?;
            let rank = |(index, (scores, text)): (usize, (&Vec<f32>, String))| Rank {
                index,
                text: has_text.then_some(text),
                score: scores.first().copied().unwrap_or_default(),
            };
            let mut ranks: Vec<Rank> = scores.iter().zip(texts).enumerate().map(rank).collect();
            ranks.sort_by(|a, b| b.score.total_cmp(&a.score));
            Ok(Json(ranks).into_response())
        },
    )
    .await
}

/// A text, or two that are read together.
enum Sequence {
    One(String),
    Pair(String, String),
}

/// What `/predict` takes: a text, two of them, or a list of lists of these.
#[derive(Deserialize)]
#[serde(untagged, expecting = "must be a string, a pair of strings, or a list of lists of one or two strings")]
enum Inputs {
    Text(String),
    Strings(Vec<String>),
    Batch(Vec<Vec<String>>),
}

impl Sequence {
    fn of(strings: Vec<String>) -> Result<Self> {
        match <[String; 2]>::try_from(strings) {
            Ok([first, second]) => Ok(Self::Pair(first, second)),
            Err(mut strings) => match (strings.len(), strings.pop()) {
                (1, Some(text)) => Ok(Self::One(text)),
                (count, _) => {
                    Err(Failure::invalid(format!("`inputs` has {count} strings where one or a pair belongs")))
                }
            },
        }
    }
}

#[derive(Serialize)]
struct Prediction<'a> {
    score: f32,
    label: &'a str,
}

/// `/predict`: the classes of texts with their scores, the highest first.
pub(super) async fn predict(State(service): State<Service>, request: Request) -> Response {
    answer(
        service,
        request,
        |fields| {
            let (inputs, is_single) = match fields.need("inputs")? {
                Inputs::Text(text) => (vec![Sequence::One(text)], true),
                Inputs::Strings(strings) => (vec![Sequence::of(strings)?], true),
                Inputs::Batch(batch) => (batch.into_iter().map(Sequence::of).collect::<Result<_>>()?, false),
            };
            if inputs.is_empty() {
                return Err(Failure::invalid("`inputs` is empty"));
            }
            Ok((Asked::read(fields)?, inputs, is_single, fields.take("raw_scores")?.unwrap_or(false)))
        },
        |service, (asked, inputs, is_single, is_raw), context| async move {
            let fits = |answers: &Answers| matches!(answers, Answers::Classes(_));
            let scoring = Scoring::of(service, asked.model.as_deref(), is_raw, fits, "a classifier")?;
            let (mut places, mut texts, mut pairs) = (Vec::new(), Vec::new(), Vec::new());
            for input in inputs {
                match input {
                    Sequence::One(text) => {
                        places.push((false, texts.len()));
                        texts.push(text);
                    }
                    Sequence::Pair(first, second) => {
                        places.push((true, pairs.len()));
                        pairs.push((first, second));
                    }
                }
            }
            let texts = scoring.scores(Texts::Plain(texts), asked.options.clone(), context.clone()).await?;
            let pairs = scoring.scores(Texts::Pairs(pairs), asked.options, context).await?;
            let of = |&(is_pair, place): &(bool, usize)| {
                let scores = if is_pair { &pairs[place] } else { &texts[place] };
                let named = scores.iter().zip(&scoring.labels.names);
                let mut all: Vec<Prediction> = named.map(|(&score, label)| Prediction { score, label }).collect();
                all.sort_by(|a, b| b.score.total_cmp(&a.score));
                serde_json::to_value(all)
            };
            let failed = |error: serde_json::Error| Failure::new(Kind::Internal, error.to_string());
            let mut all = places.iter().map(of).collect::<Result<Vec<Value>, _>>().map_err(failed)?;
            Ok(match is_single {
                true => Json(all.swap_remove(0)).into_response(),
                false => Json(all).into_response(),
            })
        },
    )
    .await
}
