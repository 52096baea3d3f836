//! Traces reach a collector over gRPC, and hold nothing of a request's text.

use std::sync::{Arc, Mutex};

use anyhow::Result;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, Request, StatusCode};
use axum::response::Response;
use axum::routing::post;
use axum::Router;
use http_body_util::{BodyExt, Full};
use opara_serve::batch::Registry;
use opara_serve::model::Models;
use opara_serve::protocol::Service;
use opara_serve::server::{router, start_logs, LogFormat, Settings};
use prost::Message;
use tower::ServiceExt;

/// What the test reads of OpenTelemetry's `ExportTraceServiceRequest`.
#[derive(Clone, PartialEq, Message)]
struct Export {
    #[prost(message, repeated, tag = "1")]
    resource_spans: Vec<ResourceSpans>,
}

#[derive(Clone, PartialEq, Message)]
struct ResourceSpans {
    #[prost(message, repeated, tag = "2")]
    scope_spans: Vec<ScopeSpans>,
}

#[derive(Clone, PartialEq, Message)]
struct ScopeSpans {
    #[prost(message, repeated, tag = "2")]
    spans: Vec<Span>,
}

#[derive(Clone, PartialEq, Message)]
struct Span {
    #[prost(string, tag = "5")]
    name: String,
    #[prost(message, repeated, tag = "9")]
    attributes: Vec<Attribute>,
}

#[derive(Clone, PartialEq, Message)]
struct Attribute {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<Value>,
}

#[derive(Clone, PartialEq, Message)]
struct Value {
    #[prost(string, tag = "1")]
    text: String,
}

/// The bodies of the calls, as they came.
type Calls = Arc<Mutex<Vec<Bytes>>>;

/// Bytes before a message of gRPC: whether it is compressed, and its length.
const PREFIX: usize = 5;

/// Takes a call and gives an empty answer.
async fn take(State(calls): State<Calls>, body: Bytes) -> Response {
    calls.lock().expect("no test panics with it").push(body);
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    let empty = Full::new(Bytes::from_static(&[0; PREFIX])).with_trailers(async move { Some(Ok(trailers)) });
    let mut response = Response::new(Body::new(empty));
    response.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
    response
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_becomes_a_span_without_its_text() -> Result<()> {
    let calls = Calls::default();
    let collector = Router::new()
        .route("/opentelemetry.proto.collector.trace.v1.TraceService/Export", post(take))
        .with_state(calls.clone());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let endpoint = format!("http://{}", listener.local_addr()?);
    tokio::spawn(async move { axum::serve(listener, collector).await });
    let telemetry = start_logs(LogFormat::Json, Some(&endpoint))?;

    let settings = Settings::default();
    let service = Service {
        models: Arc::new(Models::new([])),
        registry: Arc::new(Registry::default()),
        limits: settings.limits(),
        may_control: false,
    };
    let request = Request::post("/v1/embeddings?secret=query").header("authorization", "Bearer secret-key");
    let request = request.body(Body::from(r#"{"model": "none", "input": "a secret text"}"#))?;
    let reply = router(&service, &settings)?.oneshot(request).await?;
    assert_eq!(reply.status(), StatusCode::NOT_FOUND);
    reply.into_body().collect().await?;
    // What was not sent yet is sent at the end.
    tokio::task::spawn_blocking(move || drop(telemetry)).await?;

    let calls = calls.lock().expect("no test panics with it");
    assert!(!calls.is_empty(), "no call came");
    let mut spans = Vec::new();
    for call in calls.iter() {
        assert!(!call.windows(6).any(|bytes| bytes == b"secret"), "a part of the request is in a trace");
        let export = Export::decode(&call[PREFIX..])?;
        spans.extend(export.resource_spans.into_iter().flat_map(|of| of.scope_spans).flat_map(|of| of.spans));
    }
    let request = spans.iter().find(|span| span.name == "request").expect("the request has a span");
    let text = |key: &str| {
        let attribute = request.attributes.iter().find(|attribute| attribute.key == key)?;
        attribute.value.as_ref().map(|value| value.text.as_str())
    };
    assert_eq!((text("method"), text("path")), (Some("POST"), Some("/v1/embeddings")));
    Ok(())
}
