//! All paths of the server, and what every request goes through.

use anyhow::Context as _;
use axum::extract::{Request, State};
use axum::http::{header, HeaderName, HeaderValue, Method};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::Router;
use tonic::service::Routes;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::compression::CompressionLayer;
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};
use tower_http::decompression::RequestDecompressionLayer;
use tower_http::trace::TraceLayer;
use tower_http::CompressionLevel;

use crate::model::{self, Failure, Kind};
use crate::pb;
use crate::protocol::{health, oip_grpc, oip_http, openai, tei, Service};

use super::access::{admit, is_grpc, refuse, Access};
use super::settings::Settings;

/// All paths. The same router answers HTTP/1, HTTP/2 and gRPC.
///
/// # Errors
/// A file of keys that cannot be read.
pub fn router(service: &Service, settings: &Settings) -> anyhow::Result<Router> {
    let access = Access::new(settings.api_keys.as_deref(), service.limits)?;
    let described = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(pb::DESCRIPTIONS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let grpc = Routes::new(oip_grpc::service(service.clone()))
        .add_service(health::service(service.models.clone()))
        .add_service(described().build_v1()?)
        .add_service(described().build_v1alpha()?)
        .into_axum_router()
        .reset_fallback();
    let span = |request: &Request| {
        // Neither the query nor the headers, which may hold what is secret.
        tracing::info_span!("request", method = %request.method(), path = request.uri().path())
    };
    let router = Router::new()
        .merge(oip_http::router(service.clone()))
        .merge(openai::router(service.clone()))
        .merge(tei::router(service.clone()))
        .merge(grpc)
        .route("/metrics", get(metrics).with_state(service.clone()))
        .fallback(unknown)
        .method_not_allowed_fallback(wrong_method)
        // What is not encoded so is refused where the body is read.
        .layer(RequestDecompressionLayer::new().pass_through_unaccepted(true))
        .layer(CompressionLayer::new().quality(CompressionLevel::Fastest))
        .layer(axum::middleware::from_fn_with_state(access, admit));
    let router = match cors(settings)? {
        Some(cors) => router.layer(cors),
        None => router,
    };
    Ok(router
        .layer(TraceLayer::new_for_http().make_span_with(span).on_failure(()))
        .layer(CatchPanicLayer::custom(panicked)))
}

/// What browsers are told of pages from other origins, which may ask this server.
fn cors(settings: &Settings) -> anyhow::Result<Option<CorsLayer>> {
    let origins = &settings.cors_origin;
    if origins.is_empty() {
        return Ok(None);
    }
    let allowed = match origins.iter().any(|origin| origin == "*") {
        true => AllowOrigin::any(),
        false => {
            let origin =
                |origin: &String| HeaderValue::try_from(origin).with_context(|| format!("cors-origin {origin:?}"));
            AllowOrigin::list(origins.iter().map(origin).collect::<anyhow::Result<Vec<_>>>()?)
        }
    };
    let told = [header::RETRY_AFTER, HeaderName::from_static(oip_http::JSON_LENGTH)];
    let layer = CorsLayer::new()
        .allow_origin(allowed)
        .allow_methods([Method::GET, Method::POST])
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers(told);
    Ok(Some(layer))
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
    let kind = if is_grpc(&request) { Kind::Unimplemented } else { Kind::NotFound };
    refuse(&request, &Failure::new(kind, "this server does not offer that path"))
}

async fn wrong_method(request: Request) -> Response {
    refuse(&request, &Failure::new(Kind::Method, "this path does not take that method"))
}

fn panicked(_: Box<dyn std::any::Any + Send>) -> Response {
    oip_http::refusal(&Failure::new(Kind::Internal, "the server failed on this request"))
}
