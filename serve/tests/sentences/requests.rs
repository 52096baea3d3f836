//! Requests for vectors of such folders: OpenAI's, and the Open Inference Protocol over HTTP and gRPC.

use std::sync::Arc;

use anyhow::{Context, Result};
use axum::body::Body;
use axum::http::Request;
use axum::Router;
use candle::{DType, Device};
use http_body_util::BodyExt;
use opara_serve::batch::{self, Batcher, Registry};
use opara_serve::model::{EmbeddingModel, Loader, Model, Models};
use opara_serve::pb::grpc_inference_service_client::GrpcInferenceServiceClient;
use opara_serve::pb::infer_parameter::ParameterChoice;
use opara_serve::pb::{model_infer_request::InferInputTensor, InferParameter, InferTensorContents, ModelInferRequest};
use opara_serve::protocol::Service;
use opara_serve::server::{router, Settings};
use serde_json::{json, Value};
use tower::ServiceExt;

use super::folder::{buckets, tokenizer, Folder};
use super::oracle::{assert_close, hidden, ids, pool};

fn serve(folder: &Folder) -> Result<Router> {
    serve_in(folder, DType::F32)
}

pub fn serve_in(folder: &Folder, dtype: DType) -> Result<Router> {
    let registry = Arc::new(Registry::default());
    let (model, metrics) = (folder.open()?, registry.model("m"));
    let loader: Loader = Arc::new(move || {
        let engine = model.embedder(&Device::Cpu, dtype, &buckets())?;
        let batcher = Batcher::start([engine], buckets(), batch::Settings::default().metrics(metrics.clone()));
        let (tokenizer, vocabulary) = (model.tokenizer().clone(), model.vocabulary());
        let served = EmbeddingModel::new(batcher, tokenizer, vocabulary, model.width(), metrics.clone());
        Ok(Arc::new(served.token_types(model.token_types())) as Arc<dyn Model>)
    });
    let models = Models::new([("m".to_owned(), loader)]);
    models.load("m").map_err(|failure| anyhow::anyhow!(failure.message))?;
    let settings = Settings::default();
    let service = Service { models: Arc::new(models), registry, limits: settings.limits(), may_control: false };
    router(&service, &settings)
}

pub async fn post(router: &Router, path: &str, body: Value) -> Result<(u16, Value)> {
    let request = Request::post(path).header("content-type", "application/json").body(Body::from(body.to_string()))?;
    let (parts, body) = router.clone().oneshot(request).await?.into_parts();
    let bytes = body.collect().await?.to_bytes();
    Ok((
        parts.status.as_u16(),
        serde_json::from_slice(&bytes).with_context(|| String::from_utf8_lossy(&bytes).into_owned())?,
    ))
}

fn floats(value: &Value) -> Vec<f32> {
    value.as_array().into_iter().flatten().filter_map(Value::as_f64).map(|x| x as f32).collect()
}

fn with(mut body: Value, fields: &Value) -> Value {
    for (name, value) in fields.as_object().into_iter().flatten() {
        body[name] = value.clone();
    }
    body
}

fn prompted() -> Result<Folder> {
    let folder = Folder::pooled()?;
    let config =
        json!({"prompts": {"query": "query : ", "document": "document : "}, "default_prompt_name": "document"});
    folder.json("config_sentence_transformers.json", &config)?;
    Ok(folder)
}

/// Fields of a request, and the text that is embedded instead of "the cat", or the words of its refusal.
fn cases() -> Vec<(Value, Result<&'static str, &'static str>)> {
    vec![
        (json!({}), Ok("document : the cat")),
        (json!({"prompt_name": "query"}), Ok("query : the cat")),
        (json!({"prompt": "a "}), Ok("a the cat")),
        (json!({"prompt": ""}), Ok("the cat")),
        (json!({"prompt": null, "prompt_name": null, "truncate": null}), Ok("document : the cat")),
        (json!({"truncate": false}), Ok("document : the cat")),
        (json!({"prompt_name": "passage"}), Err("there is no prompt \"passage\": the model has document, query")),
        (json!({"prompt_name": "query", "prompt": "a "}), Err("not both")),
        (json!({"prompt_name": 3}), Err("prompt_name")),
        (json!({"truncate": "END"}), Err("truncate")),
        (json!({"normalize": false}), Err("normalize")),
        (json!({"truncate_prompt_tokens": 4}), Err("truncate_prompt_tokens")),
    ]
}

#[tokio::test]
async fn a_request_chooses_its_prompt() -> Result<()> {
    let folder = prompted()?;
    let router = serve(&folder)?;
    let mut grpc = GrpcInferenceServiceClient::new(router.clone());
    let expected = |text: &str| pool("mean", &hidden(&folder.weights, &ids(text), &[]), 0);
    for (fields, case) in cases() {
        let openai = with(json!({"model": "m", "input": "the cat"}), &fields);
        let (openai, answer) = post(&router, "/v1/embeddings", openai).await?;
        let text = json!({"name": "text", "datatype": "BYTES", "shape": [1], "data": ["the cat"]});
        let (oip, reply) = post(&router, "/v2/models/m/infer", json!({"inputs": [text], "parameters": fields})).await?;
        let sent = grpc.model_infer(grpc_request(&fields)).await;
        match case {
            Ok(text) => {
                assert_eq!((openai, oip), (200, 200), "{fields}: {answer} {reply}");
                assert_close(&floats(&answer["data"][0]["embedding"]), &expected(text), text);
                assert_close(&floats(&reply["outputs"][0]["data"]), &expected(text), text);
                let raw = sent?.into_inner().raw_output_contents.swap_remove(0);
                let got: Vec<f32> = raw.chunks_exact(4).map(|x| f32::from_le_bytes([x[0], x[1], x[2], x[3]])).collect();
                assert_close(&got, &expected(text), text);
            }
            Err(words) => {
                assert_eq!((openai, oip), (400, 400), "{fields}: {answer} {reply}");
                let status = sent.err().context("it is refused")?;
                let messages = [answer["error"]["message"].as_str(), reply["error"].as_str(), Some(status.message())];
                for message in messages {
                    assert!(message.is_some_and(|message| message.contains(words)), "{fields}: {message:?}");
                }
                assert_eq!(status.code(), tonic::Code::InvalidArgument);
            }
        }
    }
    Ok(())
}

pub fn grpc_request(fields: &Value) -> ModelInferRequest {
    let parameter = |value: &Value| InferParameter {
        parameter_choice: match value {
            Value::String(text) => Some(ParameterChoice::StringParam(text.clone())),
            Value::Bool(yes) => Some(ParameterChoice::BoolParam(*yes)),
            value => value.as_i64().map(ParameterChoice::Int64Param),
        },
    };
    let parameters = fields.as_object().into_iter().flatten().map(|(name, value)| (name.clone(), parameter(value)));
    let input = InferInputTensor {
        name: "text".into(),
        datatype: "BYTES".into(),
        shape: vec![1],
        contents: Some(InferTensorContents { bytes_contents: vec!["the cat".into()], ..Default::default() }),
        ..Default::default()
    };
    ModelInferRequest {
        model_name: "m".into(),
        inputs: vec![input],
        parameters: parameters.collect(),
        ..Default::default()
    }
}

#[tokio::test]
async fn tokens_are_taken_as_they_are_and_without_a_prompt() -> Result<()> {
    let folder = prompted()?;
    let router = serve(&folder)?;
    let tokens = ids("the cat");
    let body = json!({"model": "m", "input": tokens});
    let (_, answer) = post(&router, "/v1/embeddings", body.clone()).await?;
    let expected = pool("mean", &hidden(&folder.weights, &tokens, &[]), 0);
    assert_close(&floats(&answer["data"][0]["embedding"]), &expected, "no prompt");
    let (status, answer) = post(&router, "/v1/embeddings", with(body, &json!({"prompt_name": "query"}))).await?;
    assert_eq!(status, 400, "{answer}");
    Ok(())
}

#[tokio::test]
async fn texts_that_are_too_long_are_cut_where_a_request_says_so() -> Result<()> {
    let folder = Folder::pooled()?;
    folder.json("sentence_bert_config.json", &json!({"max_seq_length": 6}))?;
    let router = serve(&folder)?;
    let body = json!({"model": "m", "input": "the cat the dog the bird the fish"});
    for fields in [json!({}), json!({"truncate": false})] {
        let (status, answer) = post(&router, "/v1/embeddings", with(body.clone(), &fields)).await?;
        assert!(status == 413 && answer["error"]["message"].to_string().contains("at most 6"), "{answer}");
    }
    let (status, answer) = post(&router, "/v1/embeddings", with(body, &json!({"truncate": true}))).await?;
    assert_eq!(status, 200, "{answer}");
    let expected = pool("mean", &hidden(&folder.weights, &ids("the cat the dog"), &[]), 0);
    assert_close(&floats(&answer["data"][0]["embedding"]), &expected, "cut");
    assert_eq!(answer["usage"]["prompt_tokens"], 6);
    Ok(())
}

/// A request with these inputs of one row.
async fn infer(router: &Router, inputs: &[(&str, &str, Value)]) -> Result<(u16, Value)> {
    let input = |(name, datatype, data): &(&str, &str, Value)| json!({"name": name, "datatype": datatype, "shape": [1, data.as_array().map_or(0, Vec::len)], "data": data});
    post(router, "/v2/models/m/infer", json!({"inputs": inputs.iter().map(input).collect::<Vec<_>>()})).await
}

#[tokio::test]
async fn token_types_are_an_input() -> Result<()> {
    let folder = Folder::pooled()?;
    let router = serve(&folder)?;
    let tokens = [2, 5, 7, 3, 6, 8, 3];
    for (types, mask, datatype) in [
        (None, None, "INT64"),
        (Some([0, 0, 0, 0, 0, 0, 0]), None, "INT64"),
        (Some([0, 0, 0, 0, 1, 1, 1]), None, "INT64"),
        (Some([1, 0, 1, 0, 1, 0, 1]), Some([1, 1, 1, 1, 1, 0, 0]), "INT32"),
    ] {
        let mut inputs = vec![("input_ids", "INT64", json!(tokens))];
        inputs.extend(types.map(|types| ("token_type_ids", datatype, json!(types))));
        inputs.extend(mask.map(|mask| ("attention_mask", datatype, json!(mask))));
        let (status, answer) = infer(&router, &inputs).await?;
        assert_eq!(status, 200, "{answer}");
        let count = mask.map_or(7, |mask: [usize; 7]| mask.iter().sum());
        let expected = hidden(&folder.weights, &tokens[..count], &types.unwrap_or_default()[..count]);
        assert_close(&floats(&answer["outputs"][0]["data"]), &pool("mean", &expected, 0), &format!("{types:?}"));
    }
    // Rows with and without types in one batch.
    let rows = json!([[2, 5, 3], [2, 6, 3]]);
    let input = |name: &str, data: Value| json!({"name": name, "datatype": "INT64", "shape": [2, 3], "data": data});
    let body = json!({"inputs": [input("input_ids", rows), input("token_type_ids", json!([[0, 0, 0], [0, 1, 1]]))]});
    let (_, answer) = post(&router, "/v2/models/m/infer", body).await?;
    let of = |ids: &[u32], types: &[u32]| pool("mean", &hidden(&folder.weights, ids, types), 0);
    let expected = [of(&[2, 5, 3], &[]), of(&[2, 6, 3], &[0, 1, 1])].concat();
    assert_close(&floats(&answer["outputs"][0]["data"]), &expected, "two rows");
    let specs = json!(["text", "input_ids", "attention_mask", "token_type_ids"]);
    let request = Request::get("/v2/models/m").body(Body::empty())?;
    let body = router.clone().oneshot(request).await?.into_body().collect().await?.to_bytes();
    let metadata: Value = serde_json::from_slice(&body)?;
    let names: Vec<&Value> = metadata["inputs"].as_array().into_iter().flatten().map(|input| &input["name"]).collect();
    assert_eq!(json!(names), specs);
    Ok(())
}

#[tokio::test]
async fn inputs_that_no_model_can_take_are_refused() -> Result<()> {
    let router = serve(&Folder::pooled()?)?;
    let ids = ("input_ids", "INT64", json!([2, 5, 3]));
    let types = |types: Value| ("token_type_ids", "INT64", types);
    for (inputs, words) in [
        (vec![ids.clone(), types(json!([0, 1, 2]))], "token type 2"),
        (vec![ids.clone(), types(json!([0, -1, 0]))], "token type -1"),
        (vec![ids.clone(), types(json!([0, 1u64 << 40, 0]))], "token type 1099511627776"),
        (vec![ids.clone(), types(json!([0, 1]))], "`token_type_ids` must have the shape"),
        (vec![ids.clone(), ("attention_mask", "INT64", json!([1, 1]))], "`attention_mask` must have the shape"),
        (vec![ids.clone(), ("attention_mask", "INT64", json!([0, 0, 0]))], "no tokens"),
        (vec![ids.clone(), ("attention_mask", "INT64", json!([0, 1, 1]))], "ones followed by zeros"),
        (vec![ids.clone(), ("position_ids", "INT64", json!([0, 1, 2]))], "\"position_ids\""),
        (vec![types(json!([0, 0, 0]))], "give either"),
        (vec![("input_ids", "INT64", json!([2, 24]))], "token 24"),
        (vec![("input_ids", "INT64", json!([2, -1]))], "token -1"),
        (vec![("input_ids", "FP32", json!([2., 1.]))], "INT64 or INT32"),
    ] {
        let (status, answer) = infer(&router, &inputs).await?;
        assert_eq!(status, 400, "{words}: {answer}");
        assert!(answer["error"].as_str().is_some_and(|message| message.contains(words)), "{words}: {answer}");
    }
    Ok(())
}

#[tokio::test]
async fn an_empty_text_without_special_tokens_is_refused_by_all_protocols() -> Result<()> {
    let folder = Folder::pooled()?;
    folder.json("tokenizer.json", &tokenizer(true, false))?;
    let router = serve(&folder)?;
    let (openai, answer) = post(&router, "/v1/embeddings", json!({"model": "m", "input": ["the cat", ""]})).await?;
    let text = json!({"name": "text", "datatype": "BYTES", "shape": [1], "data": ["  "]});
    let (oip, reply) = post(&router, "/v2/models/m/infer", json!({"inputs": [text]})).await?;
    assert_eq!((openai, oip), (400, 400));
    assert_eq!(answer["error"]["message"], "text 1 has no tokens");
    assert_eq!(reply["error"], "text 0 has no tokens");
    let mut request = grpc_request(&json!({}));
    request.inputs[0].contents =
        Some(InferTensorContents { bytes_contents: vec![bytes::Bytes::new()], ..Default::default() });
    let status = GrpcInferenceServiceClient::new(router).model_infer(request).await.err().context("it is refused")?;
    assert_eq!((status.code(), status.message()), (tonic::Code::InvalidArgument, "text 0 has no tokens"));
    Ok(())
}

#[tokio::test]
async fn fields_of_openai_requests_are_read_or_refused() -> Result<()> {
    let router = serve(&Folder::pooled()?)?;
    let body = json!({"model": "m", "input": "the cat"});
    for fields in [
        json!({"encoding_format": null, "dimensions": null, "user": null}),
        json!({"encoding_format": "float", "dimensions": 16, "user": "someone"}),
        json!({"dimensions": 8}),
        json!({"truncate_prompt_tokens": null, "unknown": null}),
    ] {
        let (status, answer) = post(&router, "/v1/embeddings", with(body.clone(), &fields)).await?;
        assert_eq!(status, 200, "{fields}: {answer}");
    }
    for (fields, words) in [
        (json!({"dimensions": 17}), "dimensions"),
        (json!({"dimensions": 0}), "dimensions"),
        (json!({"dimensions": "16"}), "dimensions"),
        (json!({"encoding_format": 3}), "encoding_format"),
        (json!({"encoding_format": "hex"}), "encoding_format"),
        (json!({"input_type": "query"}), "input_type"),
        (json!({"task": "retrieval"}), "task"),
        (json!({"input": null}), "input"),
        (json!({"model": null}), "model"),
    ] {
        let (status, answer) = post(&router, "/v1/embeddings", with(body.clone(), &fields)).await?;
        let message = answer["error"]["message"].as_str().unwrap_or_default();
        assert!(status == 400 && message.contains(words), "{fields}: {status} {message}");
    }
    Ok(())
}
