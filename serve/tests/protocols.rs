//! The protocols: good requests have the executor's answers, bad ones the protocol's own error, and the server lives.

mod common;

use std::sync::Arc;

use anyhow::{Context, Result};
use axum::body::Body;
use axum::http::{header, Method, Request, StatusCode};
use axum::Router;
use candle::{DType, Device};
use common::Fake;
use http_body_util::BodyExt;
use opara_serve::batch::{self, Batcher, Buckets, Registry};
use opara_serve::embed::{Embedder, Size, TextModel};
use opara_serve::model::{EmbeddingModel, Loader, Model, Models};
use opara_serve::pb::grpc_inference_service_client::GrpcInferenceServiceClient;
use opara_serve::pb::*;
use opara_serve::protocol::Service;
use opara_serve::server::{router, Settings};
use serde_json::{json, Value};
use tonic::Code;
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

#[tokio::test]
async fn texts_as_json_have_the_executors_vectors() -> Result<()> {
    let setup = setup(small())?;
    let texts = ["a cat sleeps", "ünïcödé"];
    let body = json!({"id": "7", "inputs": [{"name": "text", "shape": [2], "datatype": "BYTES", "data": texts}]});
    let reply = post(&setup.router, INFER, body.to_string()).await?;
    let answer = reply.json()?;
    assert_eq!((reply.status, &answer["id"], &answer["model_version"]), (StatusCode::OK, &json!("7"), &json!("1")));
    let output = &answer["outputs"][0];
    assert_eq!(output["shape"], json!([2, setup.own.width()]));
    assert_eq!(floats(&output["data"]), setup.own.embed(&texts)?.concat());
    Ok(())
}

#[tokio::test]
async fn tensors_as_bytes_go_in_and_out() -> Result<()> {
    let setup = setup(small())?;
    let (ids, mask) = ([5i64, 6, 7, 8, 9, 0], [1i64, 1, 1, 1, 1, 0]);
    let raw: Vec<u8> = ids.iter().chain(&mask).flat_map(|id| id.to_le_bytes()).collect();
    let tensor =
        |name| json!({"name": name, "shape": [2, 3], "datatype": "INT64", "parameters": {"binary_data_size": 48}});
    let head = json!({
        "inputs": [tensor("input_ids"), tensor("attention_mask")],
        "outputs": [{"name": "embedding", "parameters": {"binary_data": true}}],
    });
    let head = head.to_string();
    let body = [head.as_bytes(), &raw].concat();
    let request = Request::post(INFER).header("inference-header-content-length", head.len()).body(body.into())?;
    let reply = send(&setup.router, request).await?;
    assert_eq!(reply.status, StatusCode::OK, "{}", String::from_utf8_lossy(&reply.body));
    let json_bytes: usize = reply.headers["inference-header-content-length"].to_str()?.parse()?;
    let head: Value = serde_json::from_slice(&reply.body[..json_bytes])?;
    assert_eq!(head["outputs"][0]["parameters"]["binary_data_size"], json!(2 * 4 * setup.own.width()));
    let got: Vec<f32> =
        reply.body[json_bytes..].chunks_exact(4).map(|x| f32::from_le_bytes([x[0], x[1], x[2], x[3]])).collect();
    use opara_serve::batch::Engine;
    let bucket = buckets().iter().find(|b| (b.batch, b.length) == (2, 16)).context("it is there")?;
    let expected = setup.own.run(bucket, &[&vec![5, 6, 7], &vec![8, 9]])?.concat();
    assert_eq!(got, expected);
    Ok(())
}

#[tokio::test]
async fn openai_embeddings_of_all_kinds_of_input() -> Result<()> {
    let setup = setup(small())?;
    let texts = ["a cat sleeps", "bread"];
    let expected = setup.own.embed(&texts)?;
    let tokens = setup.own.tokenizer().encode(&texts)?;
    for (input, expected) in [
        (json!(texts[0]), &setup.own.embed(&texts[..1])?),
        (json!(texts), &expected),
        (json!(tokens), &expected),
        (json!(tokens[1]), &setup.own.embed(&texts[1..])?),
    ] {
        let reply = post(&setup.router, "/v1/embeddings", json!({"model": "bert", "input": input}).to_string()).await?;
        let answer = reply.json()?;
        assert_eq!(reply.status, StatusCode::OK, "{answer}");
        let got: Vec<Vec<f32>> =
            answer["data"].as_array().into_iter().flatten().map(|item| floats(&item["embedding"])).collect();
        assert_eq!(&got, expected);
    }
    let base64 = json!({"model": "bert", "input": texts[0], "encoding_format": "base64", "user": "someone"});
    let answer = post(&setup.router, "/v1/embeddings", base64.to_string()).await?.json()?;
    use base64::prelude::{Engine as _, BASE64_STANDARD};
    let raw = BASE64_STANDARD.decode(answer["data"][0]["embedding"].as_str().context("text")?)?;
    let got: Vec<f32> = raw.chunks_exact(4).map(|x| f32::from_le_bytes([x[0], x[1], x[2], x[3]])).collect();
    assert_eq!(got, setup.own.embed(&texts[..1])?[0]);
    assert_eq!(answer["usage"]["total_tokens"], json!(tokens[0].len()));
    Ok(())
}

#[tokio::test]
async fn metadata_and_health() -> Result<()> {
    let setup = setup(small())?;
    let server = get(&setup.router, "/v2").await?.json()?;
    assert_eq!(server["name"], "opara-serve");
    for path in ["/v2/models/bert", "/v2/models/bert/versions/1"] {
        let metadata = get(&setup.router, path).await?.json()?;
        assert_eq!(metadata["inputs"][0], json!({"name": "text", "datatype": "BYTES", "shape": [-1]}));
        assert_eq!(metadata["outputs"][0]["shape"], json!([-1, setup.own.width()]));
    }
    assert_eq!(get(&setup.router, "/v2/health/live").await?.json()?, json!({"live": true}));
    // The broken model was not loaded.
    assert_eq!(get(&setup.router, "/v2/health/ready").await?.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(get(&setup.router, "/v2/models/bert/ready").await?.status, StatusCode::OK);
    assert_eq!(get(&setup.router, "/v2/models/broken/ready").await?.status, StatusCode::SERVICE_UNAVAILABLE);
    let metrics = String::from_utf8(get(&setup.router, "/metrics").await?.body)?;
    for name in ["opara_queue_rows", "opara_stage_seconds_bucket", "opara_graphs", "opara_rechecks"] {
        assert!(metrics.contains(name), "{name}: {metrics}");
    }
    assert!(metrics.contains(&format!("opara_graphs{{model=\"bert\"}} {}", buckets().len())), "{metrics}");
    Ok(())
}

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

/// A body of one input.
fn one(name: &str, datatype: &str, shape: Value, data: Value) -> String {
    json!({"inputs": [{"name": name, "datatype": datatype, "shape": shape, "data": data}]}).to_string()
}

#[tokio::test]
async fn bad_requests_over_http_are_this_protocols_errors() -> Result<()> {
    let setup = setup(small())?;
    let text = |shape: Value, data: Value| one("text", "BYTES", shape, data);
    let deep = "[".repeat(1_000);
    let huge = json!([1u64 << 40, 1u64 << 40]);
    let with = |parameters: Value| {
        json!({"parameters": parameters, "inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["a"]}]}).to_string()
    };
    let bad = [
        (400, String::new()),
        (400, "{".into()),
        (400, "[]".into()),
        (400, "{}".into()),
        (400, deep),
        (400, json!({"inputs": []}).to_string()),
        (400, text(json!([2]), json!(["a"]))),
        (400, text(json!([-1]), json!(["a"]))),
        (413, text(huge, json!(["a"]))),
        (400, text(json!([1, 2]), json!(["a", "b"]))),
        (400, text(json!([1.5]), json!(["a"]))),
        (400, text(json!([1]), json!([1]))),
        (400, one("text", "FP32", json!([1]), json!([1.]))),
        (400, one("text", "STRING", json!([1]), json!(["a"]))),
        (400, one("txt", "BYTES", json!([1]), json!(["a"]))),
        (400, one("input_ids", "INT64", json!([1, 1]), json!([-1]))),
        (400, one("input_ids", "INT64", json!([1, 1]), json!([100]))),
        (400, one("input_ids", "INT64", json!([1, 1]), json!([1u64 << 40]))),
        (400, one("input_ids", "INT64", json!([1, 0]), json!([]))),
        (400, one("input_ids", "INT32", json!([1, 1]), json!([1u64 << 40]))),
        (413, one("input_ids", "INT64", json!([1, 65]), json!(vec![1; 65]))),
        (413, text(json!([1]), json!(["a ".repeat(100)]))),
        (413, text(json!([9]), json!(vec!["a"; 9]))),
        (413, text(json!([1]), json!(["a".repeat(5_000)]))),
        (400, with(json!({"timeout": 0}))),
        (400, with(json!({"timeout": -5}))),
        (400, with(json!({"timeout": "x"}))),
        (504, with(json!({"timeout": 1}))),
        (400, with(json!({"binary_data_output": 3}))),
        (400, json!({"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 8}}]}).to_string()),
        (501, json!({"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "parameters": {"shared_memory_region": "x"}}]}).to_string()),
        (400, json!({"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["a"]}], "outputs": [{"name": "x"}]}).to_string()),
    ];
    for (status, body) in bad {
        let shown: String = body.chars().take(120).collect();
        let reply = post(&setup.router, INFER, body).await?;
        assert_eq!(reply.status.as_u16(), status, "{shown}: {}", String::from_utf8_lossy(&reply.body));
        assert!(reply.json()?["error"].is_string(), "{shown}");
    }
    let good = one("text", "BYTES", json!([1]), json!(["a"]));
    let request = |path: &str, header: (&str, &str)| Request::post(path).header(header.0, header.1);
    for (status, request) in [
        (404, request("/v2/models/other/infer", ("x", "y")).body(good.clone().into())?),
        (404, request("/v2/models/bert/versions/2/infer", ("x", "y")).body(good.clone().into())?),
        (404, request("/v2/models/..%2F..%2Fetc%2Fpasswd/infer", ("x", "y")).body(good.clone().into())?),
        (503, request("/v2/models/broken/infer", ("x", "y")).body(good.clone().into())?),
        (400, request(INFER, ("inference-header-content-length", "1000")).body(good.clone().into())?),
        (400, request(INFER, ("inference-header-content-length", "-1")).body(good.clone().into())?),
        (400, request(INFER, ("inference-header-content-length", "5")).body(good.clone().into())?),
        (415, request(INFER, ("content-encoding", "gzip")).body(good.clone().into())?),
        (404, request("/v2/nothing", ("x", "y")).body(good.clone().into())?),
        (405, Request::builder().method(Method::DELETE).uri(INFER).body(Body::empty())?),
    ] {
        let shown = format!("{request:?}");
        let reply = send(&setup.router, request).await?;
        assert_eq!(reply.status.as_u16(), status, "{shown}: {}", String::from_utf8_lossy(&reply.body));
        assert!(reply.json()?["error"].is_string(), "{shown}");
    }
    assert_eq!(post(&setup.router, INFER, good).await?.status, StatusCode::OK, "the server lives");
    Ok(())
}

#[tokio::test]
async fn text_that_is_not_utf8_is_named() -> Result<()> {
    let setup = setup(small())?;
    let head =
        json!({"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 6}}]});
    let head = head.to_string();
    let body = [head.as_bytes(), &2u32.to_le_bytes(), &[0xff, 0xfe]].concat();
    let request = Request::post(INFER).header("inference-header-content-length", head.len()).body(body.into())?;
    let reply = send(&setup.router, request).await?;
    assert_eq!(reply.status, StatusCode::BAD_REQUEST);
    assert_eq!(reply.json()?["error"], "element 0 of \"text\" is not UTF-8");
    Ok(())
}

#[tokio::test]
async fn bad_requests_to_openai_are_its_errors() -> Result<()> {
    let setup = setup(small())?;
    for (status, body) in [
        (400, "{".to_owned()),
        (400, json!({"model": "bert"}).to_string()),
        (400, json!({"model": "bert", "input": []}).to_string()),
        (400, json!({"model": "bert", "input": [[]]}).to_string()),
        (400, json!({"model": "bert", "input": {"a": 1}}).to_string()),
        (400, json!({"model": "bert", "input": [-1]}).to_string()),
        (400, json!({"model": "bert", "input": [100]}).to_string()),
        (400, json!({"model": "bert", "input": "a", "encoding_format": "hex"}).to_string()),
        (400, json!({"model": "bert", "input": "a", "dimensions": 7}).to_string()),
        (404, json!({"model": "other", "input": "a"}).to_string()),
        (413, json!({"model": "bert", "input": vec!["a"; 9]}).to_string()),
        (413, json!({"model": "bert", "input": "a ".repeat(100)}).to_string()),
    ] {
        let reply = post(&setup.router, "/v1/embeddings", body.clone()).await?;
        assert_eq!(reply.status.as_u16(), status, "{body}: {}", String::from_utf8_lossy(&reply.body));
        assert!(reply.json()?["error"]["message"].is_string());
    }
    assert_eq!(get(&setup.router, "/v1/models/other").await?.json()?["error"]["code"], "model_not_found");
    assert_eq!(get(&setup.router, "/v1/nothing").await?.status, StatusCode::NOT_FOUND);
    Ok(())
}

fn text_request(texts: &[&str]) -> ModelInferRequest {
    let input = model_infer_request::InferInputTensor {
        name: "text".into(),
        datatype: "BYTES".into(),
        shape: vec![texts.len() as i64],
        contents: Some(InferTensorContents {
            bytes_contents: texts.iter().map(|text| text.as_bytes().to_vec().into()).collect(),
            ..Default::default()
        }),
        ..Default::default()
    };
    ModelInferRequest { model_name: "bert".into(), id: "8".into(), inputs: vec![input], ..Default::default() }
}

#[tokio::test]
async fn grpc_answers_and_refuses() -> Result<()> {
    let setup = setup(small())?;
    let mut client = GrpcInferenceServiceClient::new(setup.router.clone());
    assert!(client.server_live(ServerLiveRequest {}).await?.into_inner().live);
    let reply = client.model_infer(text_request(&["a cat sleeps", "bread"])).await?.into_inner();
    let got: Vec<f32> =
        reply.raw_output_contents[0].chunks_exact(4).map(|x| f32::from_le_bytes([x[0], x[1], x[2], x[3]])).collect();
    assert_eq!((reply.id.as_str(), got), ("8", setup.own.embed(&["a cat sleeps", "bread"])?.concat()));

    type Change = fn(&mut ModelInferRequest);
    let bad: [(Code, Change); 10] = [
        (Code::NotFound, |r| r.model_name = "other".into()),
        (Code::NotFound, |r| r.model_version = "3".into()),
        (Code::Unavailable, |r| r.model_name = "broken".into()),
        (Code::InvalidArgument, |r| r.inputs[0].shape = vec![2]),
        (Code::InvalidArgument, |r| r.inputs[0].shape = vec![i64::MAX, i64::MAX]),
        (Code::InvalidArgument, |r| r.inputs[0].datatype = "FP16".into()),
        (Code::InvalidArgument, |r| r.inputs.clear()),
        (Code::InvalidArgument, |r| r.raw_input_contents = vec![vec![1u8, 2].into()]),
        (Code::InvalidArgument, |r| r.inputs.push(r.inputs[0].clone())),
        (Code::DeadlineExceeded, |r| {
            let choice = Some(infer_parameter::ParameterChoice::Int64Param(1));
            r.parameters.insert("timeout".into(), InferParameter { parameter_choice: choice });
        }),
    ];
    for (code, change) in bad {
        let mut request = text_request(&["a"]);
        change(&mut request);
        let status = client.model_infer(request.clone()).await.err().with_context(|| format!("{request:?}"))?;
        assert_eq!(status.code(), code, "{status}");
    }
    let large = "a".repeat(5_000);
    let status = client.model_infer(text_request(&[&large])).await.expect_err("it is too large");
    assert_eq!(status.code(), Code::OutOfRange, "{status}");

    let mut wrong = text_request(&["a"]);
    wrong.model_name = "other".into();
    let requests = tokio_stream::iter([text_request(&["a"]), wrong, text_request(&["b"])]);
    let mut stream = client.model_stream_infer(requests).await?.into_inner();
    let mut errors = Vec::new();
    while let Some(reply) = stream.message().await? {
        errors.push(reply.error_message);
    }
    assert_eq!(errors, ["", "there is no model \"other\"", ""]);
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
