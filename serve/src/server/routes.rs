//! All paths of the server, and what every request goes through.

use axum::extract::{Request, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::Router;
use tonic::service::Routes;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::trace::TraceLayer;

use crate::model::{self, Failure, Kind};
use crate::protocol::{oip_grpc, oip_http, openai, Service};

use super::access::{admit, refuse, Access};
use super::settings::Settings;

/// All paths. The same router answers HTTP/1, HTTP/2 and gRPC.
///
/// # Errors
/// A file of keys that cannot be read.
pub fn router(service: &Service, settings: &Settings) -> anyhow::Result<Router> {
    let access = Access::new(settings.api_keys.as_deref(), settings.max_requests.unwrap_or(4_096))?;
    let grpc = Routes::new(oip_grpc::service(service.clone())).into_axum_router().reset_fallback();
    let span = |request: &Request| {
        // Neither the query nor the headers, which may hold what is secret.
        tracing::info_span!("request", method = %request.method(), path = request.uri().path())
    };
    Ok(Router::new()
        .merge(oip_http::router(service.clone()))
        .merge(openai::router(service.clone()))
        .merge(grpc)
        .route("/metrics", get(metrics).with_state(service.clone()))
        .fallback(unknown)
        .method_not_allowed_fallback(wrong_method)
        .layer(axum::middleware::from_fn_with_state(access, admit))
        .layer(TraceLayer::new_for_http().make_span_with(span).on_failure(()))
        .layer(CatchPanicLayer::custom(panicked)))
}

async fn metrics(State(service): State<Service>) -> Response {
    // Executors may be building, which what they say of themselves waits for.
    let text = tokio::task::spawn_blocking(move || {
        for (name, state) in service.models.states() {
            if let model::State::Loaded(model) = state {
                service.registry.observe(name, &model.health());
            }
        }
        service.registry.text()
    });
    match text.await {
        Ok(text) => {
            let content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            ([(header::CONTENT_TYPE, content_type)], text).into_response()
        }
        Err(_) => oip_http::refusal(&Failure::new(Kind::Internal, "the metrics cannot be read")),
    }
}

async fn unknown(request: Request) -> Response {
    let is_grpc =
        request.headers().get(header::CONTENT_TYPE).is_some_and(|t| t.as_bytes().starts_with(b"application/grpc"));
    let kind = if is_grpc { Kind::Unimplemented } else { Kind::NotFound };
    refuse(&request, &Failure::new(kind, "this server does not offer that path"))
}

async fn wrong_method(request: Request) -> Response {
    refuse(&request, &Failure::new(Kind::Method, "this path does not take that method"))
}

fn panicked(_: Box<dyn std::any::Any + Send>) -> Response {
    oip_http::refusal(&Failure::new(Kind::Internal, "the server failed on this request"))
}
