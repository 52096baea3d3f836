//! What operators ask for: keys, loading, a full queue, draining.

use std::sync::Arc;

use anyhow::{Context, Result};
use axum::http::{header, Request, StatusCode};
use opara_serve::batch::{self, Batcher, Registry};
use opara_serve::embed::{Size, TextModel};
use opara_serve::model::{EmbeddingModel, Loader, Model, Models};
use opara_serve::pb::grpc_inference_service_client::GrpcInferenceServiceClient;
use opara_serve::pb::ServerLiveRequest;
use opara_serve::protocol::Service;
use opara_serve::server::{router, Settings};
use serde_json::json;
use tonic::Code;

use super::common::Fake;
use super::grpc::text_request;
use super::{buckets, get, one, post, send, setup, small, INFER};

#[tokio::test]
async fn models_are_loaded_anew_and_taken_out() -> Result<()> {
    let setup = setup(small())?;
    assert_eq!(post(&setup.router, "/v2/repository/models/bert/load", "").await?.status, StatusCode::OK);
    let failed = post(&setup.router, "/v2/repository/models/broken/load", "").await?;
    assert_eq!(failed.status, StatusCode::INTERNAL_SERVER_ERROR);
    let index = post(&setup.router, "/v2/repository/index", "").await?.json()?;
    assert_eq!((&index[0]["state"], &index[1]["state"]), (&json!("READY"), &json!("UNAVAILABLE")));
    assert_eq!(post(&setup.router, "/v2/repository/models/bert/unload", "").await?.status, StatusCode::OK);
    let reply = post(&setup.router, "/v1/embeddings", json!({"model": "bert", "input": "a"}).to_string()).await?;
    assert_eq!(reply.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(reply.headers.contains_key(header::RETRY_AFTER));
    let refused = self::setup(Settings { model_control: false, ..small() })?;
    assert_eq!(post(&refused.router, "/v2/repository/models/bert/unload", "").await?.status, StatusCode::FORBIDDEN);
    Ok(())
}

#[tokio::test]
async fn keys_are_asked_for_in_every_protocol() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let keys = folder.path().join("keys");
    std::fs::write(&keys, "first\nsecond\n")?;
    let setup = setup(Settings { api_keys: Some(keys), ..small() })?;
    let body = json!({"model": "bert", "input": "a"}).to_string();
    for (key, status) in
        [(None, 401), (Some("Bearer third"), 401), (Some("Basic first"), 401), (Some("Bearer second"), 200)]
    {
        let request = Request::post("/v1/embeddings");
        let request = key.into_iter().fold(request, |request, key| request.header(header::AUTHORIZATION, key));
        assert_eq!(send(&setup.router, request.body(body.clone().into())?).await?.status.as_u16(), status);
    }
    assert_eq!(get(&setup.router, "/v2/health/live").await?.status, StatusCode::OK);
    assert_eq!(get(&setup.router, "/v2/models/bert").await?.status, StatusCode::UNAUTHORIZED);
    assert_eq!(get(&setup.router, "/metrics").await?.status, StatusCode::UNAUTHORIZED);
    let mut client = GrpcInferenceServiceClient::new(setup.router.clone());
    assert!(client.server_live(ServerLiveRequest {}).await.is_ok());
    let status = client.model_infer(text_request(&["a"])).await.expect_err("there is no key");
    assert_eq!(status.code(), Code::Unauthenticated);
    let mut request = tonic::Request::new(text_request(&["a"]));
    request.metadata_mut().insert("authorization", "Bearer first".parse()?);
    assert!(client.model_infer(request).await.is_ok());
    Ok(())
}

#[tokio::test]
async fn a_full_queue_is_429_with_a_time() -> Result<()> {
    let (fake, orders, started) = Fake::new();
    let fake = parking_lot::Mutex::new(Some(fake));
    let loader: Loader = Arc::new(move || {
        let engine = fake.lock().take().context("it is loaded once")?;
        let batcher = Batcher::start([engine], buckets(), batch::Settings::default().queue_rows(1));
        let text_model = TextModel::random(Size::Tiny, 5);
        let (tokenizer, vocabulary) = (text_model.tokenizer().clone(), text_model.vocabulary());
        Ok(Arc::new(EmbeddingModel::new(batcher, tokenizer, vocabulary, 2, Default::default())) as Arc<dyn Model>)
    });
    let models = Arc::new(Models::new([("bert".to_owned(), loader)]));
    models.load("bert").map_err(|failure| anyhow::anyhow!(failure.message))?;
    let (settings, registry) = (small(), Arc::new(Registry::default()));
    let service = Service { models, registry, limits: settings.limits(), may_control: false };
    let router = router(&service, &settings)?;
    let body = |tokens: &[u32]| json!({"model": "bert", "input": tokens}).to_string();
    let first = tokio::spawn({
        let (router, body) = (router.clone(), body(&[1]));
        async move { post(&router, "/v1/embeddings", body).await }
    });
    tokio::task::spawn_blocking(move || started.recv().map(|_| started)).await??;
    // The queue has one place: one of two further requests waits, and the other one is answered at once.
    let (second, third) = (post(&router, "/v1/embeddings", body(&[2])), post(&router, "/v1/embeddings", body(&[3])));
    tokio::pin!(second, third);
    let (refused, waiting) = tokio::select! {
        reply = &mut second => (reply?, third),
        reply = &mut third => (reply?, second),
    };
    assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(refused.headers[header::RETRY_AFTER], "1");
    assert_eq!(refused.json()?["error"]["type"], "rate_limit_error");
    drop(orders);
    for reply in [first.await??, waiting.await?] {
        assert_eq!(reply.status, StatusCode::OK);
    }
    Ok(())
}

#[tokio::test]
async fn a_draining_server_is_not_ready_and_refuses() -> Result<()> {
    let setup = setup(small())?;
    let models = setup.service.models.clone();
    tokio::task::spawn_blocking(move || models.drain()).await?;
    assert_eq!(get(&setup.router, "/v2/health/ready").await?.status, StatusCode::SERVICE_UNAVAILABLE);
    let reply = post(&setup.router, INFER, one("text", "BYTES", json!([1]), json!(["a"]))).await?;
    assert_eq!(reply.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(get(&setup.router, "/v2/health/live").await?.status, StatusCode::OK);
    Ok(())
}
