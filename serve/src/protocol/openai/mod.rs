//! OpenAI's `/v1/embeddings`, `/v1/completions` and `/v1/chat/completions`, and the list of models that its clients ask for.

mod conversation;
mod embeddings;
mod events;
mod harmless;
mod refusal;
mod request;
mod texts;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{json, Value};

pub(crate) use self::refusal::refusal;
use super::service::Service;
use crate::model::Failure;

/// All paths below `/v1`.
pub fn router(service: Service) -> Router {
    Router::new()
        .route("/v1/embeddings", post(embeddings::embeddings))
        .route("/v1/completions", post(texts::completions))
        .route("/v1/chat/completions", post(texts::chat))
        .route("/v1/models", get(models))
        .route("/v1/models/{name}", get(model))
        .with_state(service)
}

async fn models(State(service): State<Service>) -> Json<Value> {
    let all: Vec<Value> = service.models.states().map(|(name, _)| told(name)).collect();
    Json(json!({"object": "list", "data": all}))
}

async fn model(State(service): State<Service>, name: Result<Path<String>, PathRejection>) -> Response {
    let name = match name {
        Ok(Path(name)) => name,
        Err(error) => return refusal(&Failure::invalid(error.body_text())),
    };
    match service.models.state(&name) {
        Ok(_) => Json(told(&name)).into_response(),
        Err(failure) => refusal(&failure),
    }
}

fn told(name: &str) -> Value {
    json!({"id": name, "object": "model", "created": 0, "owned_by": "opara-serve"})
}
