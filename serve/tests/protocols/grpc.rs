//! The Open Inference Protocol over gRPC.

use anyhow::{Context, Result};
use axum::body::Body;
use axum::http::Request;
use http_body_util::BodyExt;
use opara_serve::pb::grpc_inference_service_client::GrpcInferenceServiceClient;
use opara_serve::pb::*;
use prost::Message;
use tonic::Code;
use tower::ServiceExt;

use super::{setup, small};

pub fn text_request(texts: &[&str]) -> ModelInferRequest {
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
    let bad: [(Code, Change); 11] = [
        (Code::InvalidArgument, |r| {
            r.inputs[0].contents.iter_mut().for_each(|contents| contents.int64_contents.push(1))
        }),
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
async fn a_stream_that_is_cut_ends_with_one_error() -> Result<()> {
    let setup = setup(small())?;
    let message = text_request(&["a"]).encode_to_vec();
    // A whole message, and one byte of nine.
    let body = [&[0], &(message.len() as u32).to_be_bytes()[..], &message, &[0, 0, 0, 0, 9, 1]].concat();
    let request = Request::post("/inference.GRPCInferenceService/ModelStreamInfer");
    let request = request.header("content-type", "application/grpc").body(Body::from(body))?;
    let mut answer = setup.router.oneshot(request).await?.into_body();
    let mut frames = Vec::new();
    for _ in 0..3 {
        frames.push(answer.frame().await.transpose()?);
    }
    assert!(frames[0].as_ref().is_some_and(|frame| frame.is_data()), "{frames:?}");
    let status = frames[1].as_ref().and_then(|frame| frame.trailers_ref()?.get("grpc-status"));
    assert_eq!(status.map(|status| status.as_bytes()), Some(&b"13"[..]), "{frames:?}");
    assert!(frames[2].is_none(), "{frames:?}");
    Ok(())
}
