//! OpenAI's `/v1/embeddings`, `/v1/completions` and `/v1/chat/completions`, and the list of models that its clients ask for.

mod conversation;
mod embeddings;
mod events;
mod request;
mod texts;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{json, Value};

use crate::model::{Failure, Kind};

use super::oip_http::{retry_after, status};
use super::service::Service;

const PROTOCOL: &str = "openai";

/// Fields that change no answer: whose a request is, how it is paid for, and when it comes to its turn.
const HARMLESS: &[&str] = &[
    "metadata",
    "parallel_tool_calls",
    "priority",
    "prompt_cache_key",
    "prompt_cache_retention",
    "request_id",
    "safety_identifier",
    "service_tier",
    "store",
    "user",
];

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

/// A failure as this protocol says it.
pub(crate) fn refusal(failure: &Failure) -> Response {
    let mut response = (status(failure.kind), Json(error(failure))).into_response();
    retry_after(failure, response.headers_mut());
    response
}

fn error(failure: &Failure) -> Value {
    let (class, code) = match failure.kind {
        Kind::Unauthorized => ("invalid_request_error", Some("invalid_api_key")),
        Kind::NotFound => ("invalid_request_error", Some("model_not_found")),
        Kind::ContextLength => ("invalid_request_error", Some("context_length_exceeded")),
        Kind::Full => ("rate_limit_error", Some("rate_limit_exceeded")),
        Kind::Deadline | Kind::Unavailable | Kind::Internal => ("server_error", None),
        _ => ("invalid_request_error", None),
    };
    json!({"error": {"message": failure.message, "type": class, "param": null, "code": code}})
}
