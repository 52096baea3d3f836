//! The routes of text-embeddings-inference, over checkpoints whose answers transformers computed.

#[path = "../encoders/checkpoint.rs"]
#[allow(dead_code, reason = "each test uses some of it")]
mod checkpoint;

mod refusals;
mod routes;

use std::sync::Arc;

use anyhow::Result;
use axum::body::Body;
use axum::http::Request;
use axum::Router;
use http_body_util::BodyExt;
use opara_serve::batch::Registry;
use opara_serve::protocol::Service;
use opara_serve::server::{models, router, Settings};
use serde_json::Value;
use tempfile::TempDir;
use tower::ServiceExt;

/// A server of these folders, by name.
fn serve(folders: &[(&str, &TempDir)]) -> Result<Router> {
    let model = folders.iter().map(|(name, folder)| format!("{name}={}", folder.path().display())).collect();
    let settings = Settings { model, cpu: true, max_rows: Some(8), ..Settings::default() };
    let registry = Arc::new(Registry::default());
    let models = Arc::new(models(&settings, &registry)?);
    for (name, _) in folders {
        models.load(name).map_err(|failure| anyhow::anyhow!(failure.message))?;
    }
    router(&Service { models, registry, limits: settings.limits(), may_control: false }, &settings)
}

async fn send(router: &Router, request: Request<Body>) -> Result<(u16, Value)> {
    let (parts, body) = router.clone().oneshot(request).await?.into_parts();
    let bytes = body.collect().await?.to_bytes();
    Ok((parts.status.as_u16(), serde_json::from_slice(&bytes).unwrap_or(Value::Null)))
}

async fn post(router: &Router, path: &str, body: Value) -> Result<(u16, Value)> {
    send(router, Request::post(path).body(Body::from(body.to_string()))?).await
}

async fn get(router: &Router, path: &str) -> Result<(u16, Value)> {
    send(router, Request::get(path).body(Body::empty())?).await
}

/// The text of these tokens.
fn text(ids: &[u32]) -> String {
    ids.iter().map(|id| format!("w{id}")).collect::<Vec<_>>().join(" ")
}

fn floats(value: &Value) -> Vec<f32> {
    value.as_array().into_iter().flatten().filter_map(Value::as_f64).map(|x| x as f32).collect()
}

fn unit(vector: &[f32]) -> Vec<f32> {
    let length = vector.iter().map(|x| x * x).sum::<f32>().sqrt();
    vector.iter().map(|x| x / length).collect()
}
