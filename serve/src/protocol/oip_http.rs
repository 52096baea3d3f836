//! The Open Inference Protocol over HTTP, with the extensions of binary tensors and of the model repository.

use axum::extract::{FromRequestParts, Path, Request, State};
use axum::http::request::Parts;
use axum::http::{header, HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use opara_weights::Harmless;
use serde_json::{json, Value};

use crate::batch::Stage;
use crate::model::{self, Failure, Kind, Result};

use super::fields::{of_body, Fields, Unread};
use super::service::Service;
use super::{oip_json, EXTENSIONS, HARMLESS_TO_MODELS, MODEL_VERSION, NAME, VERSION};

/// Says how many bytes of a body are JSON where tensors follow it.
pub(crate) const JSON_LENGTH: &str = "inference-header-content-length";

const PROTOCOL: &str = "oip_http";

/// All paths below `/v2`.
pub fn router(service: Service) -> Router {
    Router::new()
        .route("/v2", get(server))
        .route("/v2/health/live", get(live))
        .route("/v2/health/ready", get(ready))
        .route("/v2/models/{name}", get(metadata))
        .route("/v2/models/{name}/versions/{version}", get(metadata))
        .route("/v2/models/{name}/ready", get(model_ready))
        .route("/v2/models/{name}/versions/{version}/ready", get(model_ready))
        .route("/v2/models/{name}/infer", post(infer))
        .route("/v2/models/{name}/versions/{version}/infer", post(infer))
        .route("/v2/repository/index", post(index))
        .route("/v2/repository/models/{name}/load", post(load))
        .route("/v2/repository/models/{name}/unload", post(unload))
        .with_state(service)
}

/// Name of a model, and its version where the path has one.
#[derive(serde::Deserialize)]
struct Target {
    name: String,
    #[serde(default)]
    version: String,
}

impl<S: Send + Sync> FromRequestParts<S> for Target {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Response> {
        let target = Path::from_request_parts(parts, state).await;
        target.map(|Path(target)| target).map_err(|error| refusal(&Failure::invalid(error.body_text())))
    }
}

async fn server() -> Json<Value> {
    Json(json!({"name": NAME, "version": VERSION, "extensions": EXTENSIONS}))
}

async fn live(State(service): State<Service>) -> Response {
    health("live", !service.models.is_lost())
}

async fn ready(State(service): State<Service>) -> Response {
    health("ready", service.models.is_ready())
}

fn health(name: &str, is_well: bool) -> Response {
    let status = if is_well { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(json!({name: is_well}))).into_response()
}

async fn model_ready(State(service): State<Service>, target: Target) -> Response {
    match service.model(&target.name, &target.version) {
        Ok(model) if model.is_ready() => Json(json!({"name": target.name, "ready": true})).into_response(),
        Ok(_) => (StatusCode::SERVICE_UNAVAILABLE, Json(json!({"name": target.name, "ready": false}))).into_response(),
        Err(failure) => refusal(&failure),
    }
}

async fn metadata(State(service): State<Service>, target: Target) -> Response {
    let model = match service.model(&target.name, &target.version) {
        Ok(model) => model,
        Err(failure) => return refusal(&failure),
    };
    let specs = |specs: Vec<model::TensorSpec>| specs.iter().map(oip_json::spec).collect::<Vec<_>>();
    let (inputs, outputs) = (specs(model.inputs()), specs(model.outputs()));
    let platform = model.platform();
    Json(json!({
        "name": target.name, "versions": [MODEL_VERSION], "platform": platform, "inputs": inputs, "outputs": outputs,
    }))
    .into_response()
}

async fn infer(State(service): State<Service>, target: Target, request: Request) -> Response {
    let result = inferred(&service, &target, request).await;
    service.count(PROTOCOL, &result);
    result.unwrap_or_else(|failure| refusal(&failure))
}

async fn inferred(service: &Service, target: &Target, request: Request) -> Result<Response> {
    let (parts, body) = request.into_parts();
    let json_bytes = parts.headers.get(JSON_LENGTH).map(json_length).transpose()?;
    // An unknown model is told before its tensors are looked at.
    service.model(&target.name, &target.version)?;
    let metrics = service.registry.model(&target.name);
    let body = service.body(&parts, body).await?;
    let allows_unread = service.limits.allows_unread;
    let mut request = metrics.timed(Stage::Parse, || oip_json::Request::read(body, json_bytes, allows_unread))?;
    let context = service.context(&parts.extensions, request.timeout)?;
    let asked = (std::mem::take(&mut request.inputs), std::mem::take(&mut request.options));
    let names: Vec<&str> = request.outputs.iter().map(|(name, _)| name.as_str()).collect();
    let outputs = service.infer((&target.name, &target.version), asked, &names, context).await?;
    let answer = || oip_json::answer((&target.name, MODEL_VERSION), &request, &outputs);
    let (body, json_bytes) = metrics.timed(Stage::Respond, answer)?;
    let mut headers = HeaderMap::new();
    let content_type = if json_bytes.is_some() { "application/octet-stream" } else { "application/json" };
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    if let Some(json_bytes) = json_bytes {
        headers.insert(JSON_LENGTH, json_bytes.into());
    }
    Ok((headers, body).into_response())
}

fn json_length(value: &HeaderValue) -> Result<usize> {
    let number = value.to_str().ok().and_then(|text| text.parse().ok());
    number.ok_or_else(|| Failure::invalid(format!("the header {JSON_LENGTH} must be a number of bytes")))
}

async fn index(State(service): State<Service>, request: Request) -> Response {
    let only_ready = match control_fields(&service, request, |fields| Ok(fields.take("ready")?)).await {
        Ok(ready) => ready.flatten().unwrap_or(false),
        Err(failure) => return refusal(&failure),
    };
    let row = |(name, state): (&str, model::State)| {
        let (state, reason) = state.told();
        json!({"name": name, "version": MODEL_VERSION, "state": state, "reason": reason})
    };
    let rows = service.models.states().map(row).filter(|row| !only_ready || row["state"] == "READY");
    Json(Value::from_iter(rows)).into_response()
}

/// What `read` takes from a body that may be empty. What is left over is refused.
async fn control_fields<T>(
    service: &Service,
    request: Request,
    read: impl FnOnce(&Fields) -> Result<T>,
) -> Result<Option<T>> {
    let (parts, body) = request.into_parts();
    let body = service.body(&parts, body).await?;
    if body.trim_ascii().is_empty() {
        return Ok(None);
    }
    let fields = of_body(&body)?;
    let taken = read(&fields)?;
    Unread { is_allowed: service.limits.allows_unread, ..Unread::default() }.check(&fields)?;
    Ok(Some(taken))
}

/// Refuses parameters of loading and unloading.
async fn refuse_parameters(service: &Service, request: Request) -> Result<()> {
    let unread = Unread {
        harmless: Harmless { names: HARMLESS_TO_MODELS, neutral: &[] },
        is_allowed: service.limits.allows_unread,
    };
    control_fields(service, request, |fields| unread.check(&fields.object("parameters")?)).await.map(|_| ())
}

async fn load(State(service): State<Service>, target: Target, request: Request) -> Response {
    match refuse_parameters(&service, request).await {
        Ok(()) => control(service.load(target.name).await),
        Err(failure) => refusal(&failure),
    }
}

async fn unload(State(service): State<Service>, target: Target, request: Request) -> Response {
    match refuse_parameters(&service, request).await {
        Ok(()) => control(service.unload(target.name).await),
        Err(failure) => refusal(&failure),
    }
}

fn control(result: Result<()>) -> Response {
    match result {
        Ok(()) => StatusCode::OK.into_response(),
        Err(failure) => refusal(&failure),
    }
}

/// A failure as this protocol says it.
pub(crate) fn refusal(failure: &Failure) -> Response {
    let mut response = (status(failure.kind), Json(json!({"error": failure.message}))).into_response();
    retry_after(failure, response.headers_mut());
    response
}

pub(super) fn retry_after(failure: &Failure, headers: &mut HeaderMap) {
    if let Some(time) = failure.retry_after {
        headers.insert(header::RETRY_AFTER, time.as_secs().max(1).into());
    }
}

pub(super) fn status(kind: Kind) -> StatusCode {
    match kind {
        Kind::Invalid | Kind::OtherModel | Kind::ContextLength => StatusCode::BAD_REQUEST,
        Kind::Unauthorized => StatusCode::UNAUTHORIZED,
        Kind::Forbidden => StatusCode::FORBIDDEN,
        Kind::NotFound => StatusCode::NOT_FOUND,
        Kind::Method => StatusCode::METHOD_NOT_ALLOWED,
        Kind::BodyTimeout => StatusCode::REQUEST_TIMEOUT,
        Kind::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        Kind::Encoding => StatusCode::UNSUPPORTED_MEDIA_TYPE,
        Kind::Full => StatusCode::TOO_MANY_REQUESTS,
        Kind::Deadline => StatusCode::GATEWAY_TIMEOUT,
        Kind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        Kind::Unimplemented => StatusCode::NOT_IMPLEMENTED,
        Kind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
    }
}
