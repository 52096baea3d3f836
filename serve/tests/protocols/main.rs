//! The protocols: good requests have the executor's answers, bad ones the protocol's own error, and the server lives.

#[path = "../common/mod.rs"]
mod common;

mod calls;
mod choices;
mod grpc;
mod http;
mod mutations;
mod not_finite;
mod openai;
mod operation;
mod requests;
mod responses;
mod shapes;
#[path = "../../../models/tests/spoiled/mod.rs"]
mod spoiled;
mod templated;
mod texts;
mod transport;
mod writing;

use std::sync::Arc;

use anyhow::{Context, Result};
use axum::body::Body;
use axum::http::{Request, StatusCode};
use axum::Router;
use candle::{DType, Device};
use http_body_util::BodyExt;
use opara_serve::batch::{self, Batcher, Buckets, Registry};
use opara_serve::embed::{Embedder, Size, TextModel};
use opara_serve::model::{EmbeddingModel, Loader, Model, Models};
use opara_serve::protocol::Service;
use opara_serve::server::{router, Settings};
use serde_json::{json, Value};
use tower::ServiceExt;

/// A server with a tiny model, and an embedder of the same weights.
struct Setup {
    router: Router,
    service: Service,
    own: Embedder,
}

fn buckets() -> Buckets {
    Buckets::new([1, 2], [16, 64], 128).expect("they are sound")
}

fn setup(settings: Settings) -> Result<Setup> {
    let text_model = TextModel::random(Size::Tiny, 5);
    let own = text_model.embedder(&Device::Cpu, DType::F32, &buckets())?;
    let registry = Arc::new(Registry::default());
    let metrics = registry.model("bert");
    let loader: Loader = Arc::new(move || {
        let engine = text_model.embedder(&Device::Cpu, DType::F32, &buckets())?;
        let batcher = Batcher::start([engine], buckets(), batch::Settings::default().metrics(metrics.clone()));
        let (tokenizer, vocabulary) = (text_model.tokenizer().clone(), text_model.vocabulary());
        let model = EmbeddingModel::new(batcher, tokenizer, vocabulary, text_model.width(), metrics.clone());
        Ok(Arc::new(model) as Arc<dyn Model>)
    });
    let broken: Loader = Arc::new(|| anyhow::bail!("its files are gone"));
    let models = Models::new([("bert".to_owned(), loader), ("broken".to_owned(), broken)]);
    models.load("bert").map_err(|failure| anyhow::anyhow!(failure.message))?;
    let service =
        Service { models: Arc::new(models), registry, limits: settings.limits(), may_control: settings.model_control };
    Ok(Setup { router: router(&service, &settings)?, service, own })
}

fn small() -> Settings {
    Settings { max_body_bytes: Some(4_096), max_rows: Some(8), model_control: true, ..Settings::default() }
}

struct Reply {
    status: StatusCode,
    headers: axum::http::HeaderMap,
    body: Vec<u8>,
}

impl Reply {
    fn json(&self) -> Result<Value> {
        serde_json::from_slice(&self.body).with_context(|| String::from_utf8_lossy(&self.body).into_owned())
    }
}

async fn send(router: &Router, request: Request<Body>) -> Result<Reply> {
    let (parts, body) = router.clone().oneshot(request).await?.into_parts();
    let body = body.collect().await?.to_bytes().to_vec();
    Ok(Reply { status: parts.status, headers: parts.headers, body })
}

async fn get(router: &Router, path: &str) -> Result<Reply> {
    send(router, Request::get(path).body(Body::empty())?).await
}

async fn post(router: &Router, path: &str, body: impl Into<Body>) -> Result<Reply> {
    send(router, Request::post(path).body(body.into())?).await
}

const INFER: &str = "/v2/models/bert/infer";

fn floats(value: &Value) -> Vec<f32> {
    value.as_array().into_iter().flatten().filter_map(Value::as_f64).map(|x| x as f32).collect()
}

/// A body of one input.
fn one(name: &str, datatype: &str, shape: Value, data: Value) -> String {
    json!({"inputs": [{"name": name, "datatype": datatype, "shape": shape, "data": data}]}).to_string()
}
