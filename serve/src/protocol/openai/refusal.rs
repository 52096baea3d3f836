//! Failures as this protocol says them.

use axum::response::{IntoResponse, Response};
use axum::Json;
use serde_json::{json, Value};

use crate::model::{Failure, Kind, Result};

use super::super::oip_http::{retry_after, status};
use super::super::service::Service;

/// The protocol's name in metrics.
pub(super) const PROTOCOL: &str = "openai";

/// A failure as this protocol says it.
pub(crate) fn refusal(failure: &Failure) -> Response {
    let mut response = (status(failure.kind), Json(error(failure))).into_response();
    retry_after(failure, response.headers_mut());
    response
}

/// The answer to a request, or its refusal: it is counted.
pub(super) fn answer(service: &Service, result: Result<Response>) -> Response {
    service.count(PROTOCOL, &result);
    result.unwrap_or_else(|failure| refusal(&failure))
}

pub(super) fn error(failure: &Failure) -> Value {
    let (class, code) = match failure.kind {
        Kind::Unauthorized => ("invalid_request_error", Some("invalid_api_key")),
        Kind::NotFound => ("invalid_request_error", Some("model_not_found")),
        Kind::ContextLength => ("invalid_request_error", Some("context_length_exceeded")),
        Kind::Full => ("rate_limit_error", Some("rate_limit_exceeded")),
        Kind::Deadline | Kind::Unavailable | Kind::Internal => ("server_error", None),
        _ => ("invalid_request_error", None),
    };
    // Messages about a field begin with its name.
    let param = failure.message.strip_prefix('`').and_then(|rest| Some(rest.split_once('`')?.0));
    json!({"error": {"message": failure.message, "type": class, "param": param, "code": code}})
}
