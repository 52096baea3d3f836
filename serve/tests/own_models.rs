//! A module of a program's own over the Open Inference Protocol: requests of any number of rows have the module's answers.

use anyhow::Result;
use axum::body::Body;
use axum::http::Request;
use axum::Router;
use candle::{DType, Device, Tensor};
use http_body_util::BodyExt;
use opara_serve::pb::grpc_inference_service_client::GrpcInferenceServiceClient;
use opara_serve::pb::{model_infer_request::InferInputTensor, InferTensorContents, ModelInferRequest};
use opara_serve::server::{OwnModels, Settings};
use serde_json::{json, Value};
use tower::ServiceExt;

/// Two inputs, floats and integers, and two outputs.
fn module(x: &[Tensor]) -> candle::Result<Vec<Tensor>> {
    let scaled = (&x[0] * 2.)?;
    let counts = x[1].to_dtype(DType::F32)?.sum_keepdim(1)?;
    Ok(vec![scaled.broadcast_add(&counts)?, (&x[1] + 1.)?])
}

fn serve() -> Result<Router> {
    let example = [Tensor::zeros((1, 3), DType::F32, &Device::Cpu)?, Tensor::zeros((1, 2), DType::U32, &Device::Cpu)?];
    OwnModels::new(Settings::default()).module("m", module, &example, [1, 2, 4])?.router()
}

async fn post(router: &Router, body: Value) -> Result<(u16, Value)> {
    let request = Request::post("/v2/models/m/infer").body(Body::from(body.to_string()))?;
    let (parts, body) = router.clone().oneshot(request).await?.into_parts();
    Ok((parts.status.as_u16(), serde_json::from_slice(&body.collect().await?.to_bytes())?))
}

fn body(rows: usize) -> (Value, Vec<f32>) {
    let floats: Vec<f32> = (0..3 * rows).map(|n| n as f32 - 2.).collect();
    let counts: Vec<u32> = (0..2 * rows as u32).collect();
    let sums: Vec<f32> = counts.chunks(2).map(|row| row.iter().sum::<u32>() as f32).collect();
    let expected = floats.iter().enumerate().map(|(at, x)| 2. * x + sums[at / 3]).collect();
    let inputs = json!([
        {"name": "input_1", "datatype": "INT64", "shape": [rows, 2], "data": counts},
        {"name": "input_0", "datatype": "FP32", "shape": [rows, 3], "data": floats},
    ]);
    (json!({"inputs": inputs}), expected)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_of_many_requests_have_the_modules_answers() -> Result<()> {
    let router = serve()?;
    let requests = (1..12).map(|rows| {
        let router = router.clone();
        tokio::spawn(async move {
            let (body, expected) = body(rows);
            let (status, answer) = post(&router, body).await?;
            assert_eq!(status, 200, "{answer}");
            let outputs = &answer["outputs"];
            assert_eq!((&outputs[0]["name"], &outputs[0]["shape"]), (&json!("output_0"), &json!([rows, 3])));
            let floats: Vec<f32> = serde_json::from_value(outputs[0]["data"].clone())?;
            assert_eq!(floats, expected);
            let counts: Vec<u32> = serde_json::from_value(outputs[1]["data"].clone())?;
            assert_eq!((counts, &outputs[1]["datatype"]), ((1..=2 * rows as u32).collect(), &json!("INT64")));
            anyhow::Ok(())
        })
    });
    for request in requests.collect::<Vec<_>>() {
        request.await??;
    }
    Ok(())
}

#[tokio::test]
async fn bad_tensors_are_refused() -> Result<()> {
    let router = serve()?;
    let ints = |data: Value| json!({"name": "input_1", "datatype": "INT64", "shape": [1, 2], "data": data});
    let floats =
        |shape: Value, data: Value| json!({"name": "input_0", "datatype": "FP32", "shape": shape, "data": data});
    let good = floats(json!([1, 3]), json!([1, 2, 3]));
    for (inputs, words) in [
        (json!([good]), "\"input_1\" is missing"),
        (json!([good, good, ints(json!([1, 2]))]), "twice"),
        (
            json!([good, ints(json!([1, 2])), {"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}]),
            "no input \"x\"",
        ),
        (json!([good, ints(json!([-1, 2]))]), "has -1"),
        (json!([good, ints(json!([4294967296u64, 2]))]), "has 4294967296"),
        (json!([floats(json!([2, 3]), json!([1, 2, 3, 4, 5, 6])), ints(json!([1, 2]))]), "1 rows"),
        (json!([floats(json!([3]), json!([1, 2, 3])), ints(json!([1, 2]))]), "has shape [3]"),
        (json!([floats(json!([1, 2]), json!([1, 2])), ints(json!([1, 2]))]), "has shape [1, 2]"),
        (
            json!([{"name": "input_0", "datatype": "INT64", "shape": [1, 3], "data": [1, 2, 3]}, ints(json!([1, 2]))]),
            "must be FP32",
        ),
    ] {
        let (status, answer) = post(&router, json!({"inputs": inputs})).await?;
        assert_eq!(status, 400, "{answer}");
        assert!(answer["error"].as_str().is_some_and(|error| error.contains(words)), "{words}: {answer}");
    }
    let empty = json!([floats(json!([0, 3]), json!([])), {"name": "input_1", "datatype": "INT64", "shape": [0, 2], "data": []}]);
    assert_eq!(post(&router, json!({"inputs": empty})).await?.0, 400);
    Ok(())
}

#[tokio::test]
async fn grpc_has_the_same_answers() -> Result<()> {
    let mut client = GrpcInferenceServiceClient::new(serve()?);
    let floats = InferTensorContents { fp32_contents: vec![1., 2., 3.], ..Default::default() };
    let counts = InferTensorContents { int64_contents: vec![4, 5], ..Default::default() };
    let input = |name: &str, datatype: &str, width: i64, contents| InferInputTensor {
        name: name.into(),
        datatype: datatype.into(),
        shape: vec![1, width],
        contents: Some(contents),
        ..Default::default()
    };
    let inputs = vec![input("input_0", "FP32", 3, floats), input("input_1", "INT64", 2, counts)];
    let request = ModelInferRequest { model_name: "m".into(), inputs, ..Default::default() };
    let raw = client.model_infer(request).await?.into_inner().raw_output_contents;
    let got: Vec<f32> = raw[0].chunks_exact(4).map(|x| f32::from_le_bytes([x[0], x[1], x[2], x[3]])).collect();
    assert_eq!(got, [11., 13., 15.]);
    Ok(())
}

#[test]
fn modules_that_have_no_rows_are_refused() -> Result<()> {
    let (one, two) =
        (Tensor::zeros((1, 2), DType::F32, &Device::Cpu)?, Tensor::zeros((2, 2), DType::F32, &Device::Cpu)?);
    let of = |example: &[Tensor]| {
        OwnModels::new(Settings::default()).module("m", |x| Ok(vec![x[0].sum_all()?]), example, [1])
    };
    for example in [&[one.clone(), two][..], &[one]] {
        let error = of(example).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains("same number of rows"), "{error}");
    }
    Ok(())
}
