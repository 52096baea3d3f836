//! What the server says of itself and of a model.

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::Json;
use serde_json::{json, Map, Value};

use super::refusal::refusal;
use crate::embed::{Answers, Labels, PoolingMode};
use crate::model::{Failure, Kind, Reader};

use super::super::service::Service;
use super::super::VERSION;

/// `/health`.
pub(super) async fn health(State(service): State<Service>) -> Response {
    match service.models.is_ready() {
        true => StatusCode::OK.into_response(),
        false => refusal(&Failure::new(Kind::Unavailable, "unhealthy")),
    }
}

/// `/info`, of the model that the query's `model` names.
pub(super) async fn info(State(service): State<Service>, request: Request) -> Response {
    let name = request
        .uri()
        .query()
        .and_then(|query| query.split('&').find_map(|part| part.strip_prefix("model=")).map(str::to_owned));
    match service.reader(name.as_deref(), |_| true, "a model that reads texts") {
        Ok((name, model)) => match model.reader() {
            Some(reader) => Json(told(&service, &name, reader)).into_response(),
            None => refusal(&Failure::new(Kind::Internal, "the model reads no texts")),
        },
        Err(failure) => refusal(&failure),
    }
}

fn told(service: &Service, name: &str, reader: Reader) -> Value {
    let (rows, tokens) = reader.batch;
    json!({
        "model_id": name, "model_sha": null, "model_type": kind(reader.answers), "architecture": reader.kind,
        "max_concurrent_requests": service.limits.requests, "max_input_length": reader.tokenizer.limit(),
        "max_batch_tokens": tokens, "max_batch_requests": rows, "max_client_batch_size": service.limits.rows,
        "auto_truncate": reader.tokenizer.cuts(), "tokenization_workers": rayon::current_num_threads(),
        "version": VERSION, "sha": null, "docker_label": null,
    })
}

fn kind(answers: &Answers) -> Value {
    match answers {
        Answers::Vectors(pooling) => {
            let names: Vec<&str> = pooling.modes.iter().copied().map(PoolingMode::name).collect();
            json!({"embedding": {"pooling": names.join(",")}})
        }
        Answers::Words => json!({"embedding": {"pooling": "splade"}}),
        Answers::Classes(labels) if labels.is_reranker() => json!({"reranker": classes(labels)}),
        Answers::Classes(labels) => json!({"classifier": classes(labels)}),
    }
}

fn classes(Labels { names, .. }: &Labels) -> Value {
    let by_id: Map<String, Value> = names.iter().enumerate().map(|(id, name)| (id.to_string(), json!(name))).collect();
    let by_name: Map<String, Value> = names.iter().enumerate().map(|(id, name)| (name.clone(), json!(id))).collect();
    json!({"id2label": by_id, "label2id": by_name})
}
