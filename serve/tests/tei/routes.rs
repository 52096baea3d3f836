//! What each route answers.

use anyhow::Result;
use serde_json::json;

use super::checkpoint::{assert_close, picture, Case};
use super::{floats, get, post, serve, text, unit};

#[tokio::test]
async fn vectors_are_those_that_a_request_asks_for() -> Result<()> {
    let case = Case::read("bert")?;
    let router = serve(&[("m", &case.pooled("mean")?)])?;
    let texts: Vec<String> = case.ids.iter().map(|ids| text(ids)).collect();
    let (status, answer) = post(&router, "/embed", json!({"inputs": texts})).await?;
    assert_eq!(status, 200, "{answer}");
    for (index, expected) in case.expected.iter().enumerate() {
        assert_close(&floats(&answer[index]), &unit(&expected["mean"]), "of length 1");
    }
    let mean = &case.expected[1]["mean"];
    for (body, expected) in [
        (json!({"inputs": texts[1], "normalize": false}), mean.clone()),
        (json!({"inputs": case.ids[1], "normalize": false}), mean.clone()),
        (json!({"inputs": [case.ids[1]], "normalize": false}), mean.clone()),
        (json!({"inputs": texts[1], "dimensions": 8}), unit(&mean[..8])),
        (json!({"inputs": texts[1], "dimensions": 8, "normalize": false}), mean[..8].to_vec()),
        (json!({"inputs": texts[1], "prompt_name": "query", "truncate": true, "model": "m"}), unit(mean)),
    ] {
        let (status, answer) = post(&router, "/embed", body.clone()).await?;
        assert_eq!((status, answer.as_array().map(Vec::len)), (200, Some(1)), "{body}: {answer}");
        assert_close(&floats(&answer[0]), &expected, &body.to_string());
    }
    let body = json!({"model": "m", "input": texts[1], "dimensions": 8});
    let (_, answer) = post(&router, "/v1/embeddings", body).await?;
    assert_close(&floats(&answer["data"][0]["embedding"]), &mean[..8], "OpenAI's");
    Ok(())
}

#[tokio::test]
async fn long_texts_are_cut_on_the_side_that_a_request_names() -> Result<()> {
    let case = Case::read("bert")?;
    let router = serve(&[("m", &case.pooled("mean")?)])?;
    let ids: Vec<u32> = (0..50).map(|place| 5 + place * 7 % 50).collect();
    let of = |ids: &[u32]| json!({"inputs": text(ids)});
    for (direction, part) in [("Right", &ids[..40]), ("Left", &ids[10..]), ("left", &ids[10..])] {
        let body = json!({"inputs": text(&ids), "truncate": true, "truncation_direction": direction});
        let (status, answer) = post(&router, "/embed", body).await?;
        assert_eq!(status, 200, "{answer}");
        let (_, expected) = post(&router, "/embed", of(part)).await?;
        assert_close(&floats(&answer[0]), &floats(&expected[0]), direction);
    }
    let (status, answer) = post(&router, "/embed", of(&ids)).await?;
    assert_eq!((status, answer["error_type"].as_str()), (413, Some("Validation")), "{answer}");
    Ok(())
}

#[tokio::test]
async fn all_tokens_have_their_hidden_states() -> Result<()> {
    let case = Case::read("bert")?;
    let router = serve(&[("m", &case.pooled("mean")?)])?;
    let texts: Vec<String> = case.ids.iter().map(|ids| text(ids)).collect();
    let (status, answer) = post(&router, "/embed_all", json!({"inputs": texts})).await?;
    assert_eq!(status, 200, "{answer}");
    for (index, (ids, expected)) in case.ids.iter().zip(&case.expected).enumerate() {
        let states = answer[index].as_array().cloned().unwrap_or_default();
        assert_eq!(states.len(), ids.len());
        assert_close(&floats(&states[0]), &expected["first"], "the first");
        assert_close(&floats(&states[ids.len() - 1]), &expected["last"], "the last");
    }
    // Vectors that are asked for at the same time are not changed by it.
    let (vectors, states) = tokio::join!(
        post(&router, "/embed", json!({"inputs": texts})),
        post(&router, "/embed_all", json!({"inputs": texts}))
    );
    assert_close(&floats(&vectors?.1[2]), &unit(&case.expected[2]["mean"]), "a vector");
    assert_close(&floats(&states?.1[2][0]), &case.expected[2]["first"], "a state");
    Ok(())
}

#[tokio::test]
async fn models_that_pool_their_hidden_states_have_none_a_token() -> Result<()> {
    for name in ["siglip", "chinese_clip"] {
        let case = Case::read(name)?;
        let router = serve(&[("m", &case.pooled("cls")?)])?;
        let body = json!({"inputs": text(&case.ids[1])});
        let (status, answer) = post(&router, "/embed_all", body.clone()).await?;
        assert_eq!(status, 422, "{name}: {answer}");
        assert!(answer["error"].as_str().is_some_and(|error| error.contains("no hidden states")), "{name}: {answer}");
        let (status, answer) = post(&router, "/embed", body).await?;
        assert_eq!(status, 200, "{name}: {answer}");
        assert_close(&floats(&answer[0]), &unit(&case.expected[1]["text"]), name);
    }
    Ok(())
}

#[tokio::test]
async fn words_have_weights() -> Result<()> {
    let case = Case::read("distilbert_splade")?;
    let router = serve(&[("m", &case.splade()?)])?;
    let (status, answer) = post(&router, "/embed_sparse", json!({"inputs": text(&case.ids[1])})).await?;
    assert_eq!(status, 200, "{answer}");
    let mut dense = vec![0.; 60];
    for weight in answer[0].as_array().into_iter().flatten() {
        let (index, value) = (weight["index"].as_u64(), weight["value"].as_f64());
        dense[index.unwrap_or_default() as usize] = value.unwrap_or_default() as f32;
        assert!(value > Some(0.), "{weight}");
    }
    assert_close(&dense, &case.expected[1]["splade"], "weights");
    Ok(())
}

#[tokio::test]
async fn classes_and_pairs_have_scores() -> Result<()> {
    let (three, one) = (Case::read("roberta_classifier")?, Case::read("xlm_roberta_reranker")?);
    let router = serve(&[("three", &three.folder()?), ("one", &one.folder()?)])?;
    let logits = &three.expected[1]["logits"];
    let sum: f32 = logits.iter().map(|x| x.exp()).sum();
    for (raw, expected) in [(true, logits.clone()), (false, logits.iter().map(|x| x.exp() / sum).collect())] {
        let body = json!({"inputs": text(&three.ids[1]), "raw_scores": raw, "model": "three"});
        let (status, answer) = post(&router, "/predict", body).await?;
        assert_eq!(status, 200, "{answer}");
        let mut scores = vec![0.; 3];
        let mut last = f64::INFINITY;
        for prediction in answer.as_array().into_iter().flatten() {
            let score = prediction["score"].as_f64().unwrap_or(f64::NAN);
            assert!(score <= last, "the highest comes first");
            last = score;
            let place = ["sad", "glad", "mad"].iter().position(|label| prediction["label"] == *label);
            scores[place.unwrap_or(0)] = score as f32;
        }
        assert_close(&scores, &expected, "scores");
    }
    // A pair is one text in two parts for a tokenizer that puts nothing between them.
    let sigmoid = |x: f32| 1. / (1. + (-x).exp());
    let (first, second) = one.ids[1].split_at(4);
    let body = json!({"inputs": [[text(first), text(second)], [text(&one.ids[0])]], "model": "one"});
    let (_, answer) = post(&router, "/predict", body).await?;
    let got: Vec<f32> = (0..2).filter_map(|at| answer[at][0]["score"].as_f64()).map(|score| score as f32).collect();
    let expected: Vec<f32> = [1, 0].map(|at: usize| sigmoid(one.expected[at]["logits"][0])).to_vec();
    assert_close(&got, &expected, "pairs and texts");

    let body = json!({"query": text(first), "texts": [text(&[9, 9]), text(second)], "return_text": true});
    let (status, answer) = post(&router, "/rerank", body.clone()).await?;
    assert_eq!(status, 200, "{answer}");
    let of = |index: u64| answer.as_array().into_iter().flatten().find(|rank| rank["index"] == index).cloned();
    let rank = of(1).unwrap_or_default();
    assert_eq!(rank["text"], text(second));
    assert_close(&[rank["score"].as_f64().unwrap_or(0.) as f32], &expected[..1], "a rank");
    assert!(answer[0]["score"].as_f64() >= answer[1]["score"].as_f64(), "the best comes first");
    let (_, raw) =
        post(&router, "/rerank", json!({"query": text(first), "texts": [text(second)], "raw_scores": true})).await?;
    assert_close(&floats(&json!([raw[0]["score"]])), &one.expected[1]["logits"], "a logit");
    assert!(raw[0].get("text").is_none());
    Ok(())
}

#[tokio::test]
async fn texts_are_compared_with_one() -> Result<()> {
    let case = Case::read("bert")?;
    let router = serve(&[("m", &case.pooled("mean")?)])?;
    let texts: Vec<String> = case.ids.iter().map(|ids| text(ids)).collect();
    let body = json!({"inputs": {"source_sentence": texts[0], "sentences": texts}, "parameters": {"truncate": false}});
    let (status, answer) = post(&router, "/similarity", body).await?;
    assert_eq!(status, 200, "{answer}");
    let dot = |at: usize| {
        unit(&case.expected[0]["mean"]).iter().zip(unit(&case.expected[at]["mean"])).map(|(a, b)| a * b).sum()
    };
    assert_close(&floats(&answer), &[0, 1, 2].map(dot), "cosines");
    Ok(())
}

#[tokio::test]
async fn texts_have_tokens_and_tokens_texts() -> Result<()> {
    let router = serve(&[("m", &Case::read("bert")?.pooled("mean")?)])?;
    let (status, answer) = post(&router, "/tokenize", json!({"inputs": ["w7 w59", "w8"]})).await?;
    assert_eq!(status, 200, "{answer}");
    let second = json!({"id": 59, "text": "w59", "special": false, "start": 3, "stop": 6});
    assert_eq!((&answer[0][1], &answer[1][0]["id"]), (&second, &json!(8)));
    let (_, answer) = post(&router, "/tokenize", json!({"inputs": "w7", "add_special_tokens": false})).await?;
    assert_eq!(answer, json!([[{"id": 7, "text": "w7", "special": false, "start": 0, "stop": 2}]]));
    let (_, answer) = post(&router, "/decode", json!({"ids": [[7, 59], [8]], "skip_special_tokens": false})).await?;
    assert_eq!(answer, json!(["w7 w59", "w8"]));
    assert_eq!(post(&router, "/decode", json!({"ids": [7]})).await?.1, json!(["w7"]));
    Ok(())
}

#[tokio::test]
async fn a_model_says_what_it_is() -> Result<()> {
    let router = serve(&[
        ("a", &Case::read("qwen3")?.folder()?),
        ("b", &Case::read("bert_classifier")?.folder()?),
        ("c", &Case::read("qwen3_reranker")?.folder()?),
    ])?;
    let (_, a) = get(&router, "/info?model=a").await?;
    assert_eq!(
        (&a["model_type"], &a["max_input_length"]),
        (&json!({"embedding": {"pooling": "lasttoken"}}), &json!(64))
    );
    let (_, b) = get(&router, "/info?model=b").await?;
    assert_eq!(b["model_type"]["classifier"]["id2label"], json!({"0": "sad", "1": "glad", "2": "mad"}));
    let (_, c) = get(&router, "/info?model=c").await?;
    assert_eq!(c["model_type"]["reranker"]["label2id"], json!({"score": 0}));
    let (status, answer) = get(&router, "/info").await?;
    assert_eq!(status, 422);
    assert!(answer["error"].as_str().is_some_and(|error| error.contains("a, b, c")), "{answer}");
    assert_eq!(get(&router, "/health").await?.0, 200);
    Ok(())
}

#[tokio::test]
async fn pictures_have_vectors_beside_texts() -> Result<()> {
    for name in ["clip", "siglip"] {
        let case = Case::read(name)?;
        let router = serve(&[("plain", &case.pooled("lasttoken")?), ("unit", &case.folder()?)])?;
        let pixels = json!({"name": "pixel_values", "datatype": "FP32", "shape": [1, 3, 16, 16], "data": picture()?});
        for (model, expected) in [("plain", case.image.clone()), ("unit", unit(&case.image))] {
            let (status, answer) =
                post(&router, &format!("/v2/models/{model}/infer"), json!({"inputs": [pixels]})).await?;
            assert_eq!((status, &answer["outputs"][0]["name"]), (200, &json!("embedding")), "{answer}");
            assert_close(&floats(&answer["outputs"][0]["data"]), &expected, name);
        }
        let (_, answer) = post(&router, "/embed", json!({"inputs": text(&case.ids[0]), "model": "unit"})).await?;
        assert_close(&floats(&answer[0]), &unit(&case.expected[0]["text"]), "a text");
        let small = json!({"name": "pixel_values", "datatype": "FP32", "shape": [1, 3, 8, 8], "data": vec![0; 192]});
        assert_eq!(post(&router, "/v2/models/plain/infer", json!({"inputs": [small]})).await?.0, 400);
    }
    Ok(())
}
