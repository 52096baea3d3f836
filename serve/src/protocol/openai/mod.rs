//! OpenAI's `/v1/embeddings`, `/v1/completions`, `/v1/chat/completions` and `/v1/responses`, and the list of models that its clients ask for.

mod answer_parts;
mod choices;
mod conversation;
mod draws;
mod embeddings;
mod events;
mod form;
mod harmless;
mod likelihoods;
mod refusal;
mod request;
mod response_format;
mod responses;
mod streaming;
mod texts;
mod tokens;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{json, Value};

pub(crate) use self::refusal::refusal;
pub(crate) use self::tokens::Asked as AskedTokens;
use super::service::Service;
use crate::model::{self, Failure};

/// All paths below `/v1`, and the one that makes texts of tokens.
pub fn router(service: Service) -> Router {
    Router::new()
        .route("/v1/embeddings", post(embeddings::embeddings))
        .route("/v1/completions", post(texts::completions))
        .route("/v1/chat/completions", post(texts::chat))
        .route("/v1/responses", post(responses::responses))
        .route("/detokenize", post(tokens::detokenize))
        .route("/v1/models", get(models))
        .route("/v1/models/{name}", get(model))
        .with_state(service)
}

async fn models(State(service): State<Service>) -> Json<Value> {
    let all: Vec<Value> = service.models.states().map(|(name, state)| told(name, &state)).collect();
    Json(json!({"object": "list", "data": all}))
}

async fn model(State(service): State<Service>, name: Result<Path<String>, PathRejection>) -> Response {
    let name = match name {
        Ok(Path(name)) => name,
        Err(error) => return refusal(&Failure::invalid(error.body_text())),
    };
    match service.models.state(&name) {
        Ok(state) => Json(told(&name, &state)).into_response(),
        Err(failure) => refusal(&failure),
    }
}

fn told(name: &str, state: &model::State) -> Value {
    let mut told =
        json!({"id": name, "object": "model", "created": 0, "owned_by": "opara-serve", "root": name, "parent": null});
    if let model::State::Loaded(model) = state {
        told["max_model_len"] = json!(model.writer().map(|writer| writer.model().context()));
    }
    told
}
