//! Failures as this protocol says them.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::Json;
use serde_json::json;

use crate::model::{Failure, Kind};

use super::super::oip_http::{retry_after, status};

/// A failure as this protocol says it.
pub(crate) fn refusal(failure: &Failure) -> Response {
    let (status, kind) = match failure.kind {
        Kind::Invalid | Kind::NotFound => (StatusCode::UNPROCESSABLE_ENTITY, "Tokenizer"),
        Kind::TooLarge | Kind::ContextLength => (StatusCode::PAYLOAD_TOO_LARGE, "Validation"),
        Kind::OtherModel | Kind::Internal => (StatusCode::FAILED_DEPENDENCY, "Backend"),
        Kind::Full => (StatusCode::TOO_MANY_REQUESTS, "Overloaded"),
        Kind::Unavailable => (StatusCode::SERVICE_UNAVAILABLE, "Unhealthy"),
        Kind::Deadline => (status(failure.kind), "Backend"),
        kind => (status(kind), "Validation"),
    };
    let mut response = (status, Json(json!({"error": failure.message, "error_type": kind}))).into_response();
    retry_after(failure, response.headers_mut());
    response
}
