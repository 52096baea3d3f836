//! Vectors that are none: a text that overflows is an error in every protocol, and no answer.

use anyhow::Result;
use candle::{DType, Device};
use opara_serve::embed::EmbedError;
use opara_serve::pb::grpc_inference_service_client::GrpcInferenceServiceClient;
use serde_json::json;

use super::folder::{buckets, random, Folder, Weights, NORMALIZE, POOLING, TRANSFORMER, WIDTH, WORDS};
use super::requests::{grpc_request, post, serve_in};

const REASON: &str = "has NaN or infinity";

/// A folder whose model overflows in 16 bits for `cat` alone: its last norm is as large as f16 is, and only this word has elements
/// that are far from the others.
fn overflowing(modules: &[(&str, &str)]) -> Result<Folder> {
    let mut folder = Folder::of(modules, &json!({"pooling_mode": "mean"}))?;
    let cat = WORDS.iter().position(|word| *word == "cat").expect("a word");
    for (name, (_, values)) in &mut folder.weights {
        match name.as_str() {
            // What attention and the feed-forward network add is nothing.
            name if name.ends_with("output.dense.weight") || name.ends_with("output.dense.bias") => values.fill(0.),
            "embeddings.word_embeddings.weight" => {
                let alternating = |at: usize| if at.is_multiple_of(2) { 1. } else { -1. };
                values.iter_mut().enumerate().for_each(|(at, value)| *value = alternating(at));
                values[cat * WIDTH..(cat + 1) * WIDTH].fill(0.);
                values[cat * WIDTH] = 4.;
            }
            "embeddings.position_embeddings.weight" | "embeddings.token_type_embeddings.weight" => values.fill(0.),
            name if name.ends_with("LayerNorm.weight") => values.fill(1.),
            name if name.ends_with("LayerNorm.bias") => values.fill(0.),
            _ => {}
        }
    }
    if let Some((_, values)) = folder.weights.get_mut("encoder.layer.1.output.LayerNorm.weight") {
        values.fill(40_000.);
    }
    folder.tensors("model.safetensors", &folder.weights)?;
    Ok(folder)
}

#[test]
fn a_text_that_overflows_is_named() -> Result<()> {
    for modules in [&[TRANSFORMER, POOLING][..], &[TRANSFORMER, POOLING, NORMALIZE]] {
        let folder = overflowing(modules)?;
        let model = folder.open()?;
        let narrow = model.embedder(&Device::Cpu, DType::F16, &buckets())?;
        assert_eq!(narrow.embed(&["the dog", "a bird"])?.len(), 2);
        let told = narrow.embed(&["the dog", "the cat"]);
        assert!(matches!(told, Err(EmbedError::NotFinite { text: 1 })), "{told:?}");
        for dtype in [DType::BF16, DType::F32] {
            let wide = model.embedder(&Device::Cpu, dtype, &buckets())?;
            assert!(wide.embed(&["the dog", "the cat"])?.concat().iter().all(|x| x.is_finite()), "{dtype:?}");
        }
    }
    Ok(())
}

#[test]
fn a_length_whose_square_overflows_is_a_length() -> Result<()> {
    let norm = ("sentence_transformers.models.LayerNorm", "2_Norm");
    let folder = Folder::of(&[TRANSFORMER, POOLING, norm, (NORMALIZE.0, "3_N")], &json!({}))?;
    folder.json("2_Norm/config.json", &json!({"dimension": WIDTH}))?;
    let mut rng = fastrand::Rng::with_seed(1);
    for size in [1e15, 1e22, 1e30] {
        let mut weights = Weights::new();
        random(&mut weights, &mut rng, "norm.weight", &[WIDTH], size, 0.);
        random(&mut weights, &mut rng, "norm.bias", &[WIDTH], 0., 0.);
        folder.tensors("2_Norm/model.safetensors", &weights)?;
        let length: f32 = folder.embedder()?.embed(&["the cat"])?[0].iter().map(|x| x * x).sum();
        assert!((length - 1.).abs() < 1e-5, "{size}: {length}");
    }
    Ok(())
}

#[tokio::test]
async fn every_protocol_says_that_a_text_overflowed() -> Result<()> {
    let router = serve_in(&overflowing(&[TRANSFORMER, POOLING, NORMALIZE])?, DType::F16)?;
    for format in ["float", "base64"] {
        let body = |input| json!({"model": "m", "input": input, "encoding_format": format});
        assert_eq!(post(&router, "/v1/embeddings", body(json!(["the dog"]))).await?.0, 200);
        let (status, answer) = post(&router, "/v1/embeddings", body(json!(["the dog", "the cat"]))).await?;
        let message = answer["error"]["message"].as_str().unwrap_or_default();
        assert_eq!(status, 500, "{answer}");
        assert!(message.contains("text 1") && message.contains(REASON) && message.contains("--dtype f32"), "{answer}");
    }
    let text = json!({"name": "text", "datatype": "BYTES", "shape": [1], "data": ["the cat"]});
    for is_binary in [false, true] {
        let body = json!({"inputs": [text], "parameters": {"binary_data_output": is_binary}});
        let (status, answer) = post(&router, "/v2/models/m/infer", body).await?;
        assert!(status == 500 && answer["error"].as_str().unwrap_or_default().contains(REASON), "{answer}");
    }
    let mut grpc = GrpcInferenceServiceClient::new(router);
    let told = grpc
        .model_infer(grpc_request(&json!({})))
        .await
        .err()
        .map(|status| (status.code(), status.message().to_owned()));
    assert!(matches!(&told, Some((tonic::Code::Internal, message)) if message.contains(REASON)), "{told:?}");
    Ok(())
}
