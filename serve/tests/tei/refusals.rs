//! Requests that are refused: each with the protocol's status and kind, and a text that says why.

use anyhow::Result;
use serde_json::{json, Value};

use super::checkpoint::Case;
use super::{post, serve};

#[tokio::test]
async fn bad_requests_are_refused_by_name() -> Result<()> {
    let router = serve(&[("m", &Case::read("bert")?.pooled("mean")?)])?;
    let many: Vec<&str> = vec!["w5"; 9];
    let cases: Vec<(&str, Value, u16, &str, &str)> = vec![
        ("/embed", json!({}), 422, "Tokenizer", "`inputs` is missing"),
        ("/embed", json!({"inputs": []}), 422, "Tokenizer", "`inputs` is empty"),
        ("/embed", json!({"inputs": 3}), 422, "Tokenizer", "`inputs`"),
        ("/embed", json!({"inputs": ["w5", 3]}), 422, "Tokenizer", "`inputs`"),
        ("/embed", json!({"inputs": [[60]]}), 422, "Tokenizer", "token 60"),
        ("/embed", json!({"inputs": [[]]}), 422, "Tokenizer", "no tokens"),
        ("/embed", json!({"inputs": [-1]}), 422, "Tokenizer", "`inputs`"),
        ("/embed", json!({"inputs": "w5", "dimensions": 0}), 422, "Tokenizer", "`dimensions` is 0"),
        ("/embed", json!({"inputs": "w5", "dimensions": 33}), 422, "Tokenizer", "`dimensions` is 33"),
        ("/embed", json!({"inputs": "w5", "truncation_direction": "Up"}), 422, "Tokenizer", "truncation_direction"),
        ("/embed", json!({"inputs": "w5", "prompt_name": "x"}), 422, "Tokenizer", "no prompt \"x\""),
        ("/embed", json!({"inputs": "w5", "pooling": "cls"}), 422, "Tokenizer", "`pooling` is not supported"),
        ("/embed", json!({"inputs": "w5", "model": "x"}), 422, "Tokenizer", "no model \"x\""),
        ("/embed", json!({"inputs": many}), 413, "Validation", "9 rows"),
        ("/tokenize", json!({"inputs": many}), 413, "Validation", "9 rows"),
        ("/decode", json!({"ids": ["x"]}), 422, "Tokenizer", "`ids`"),
        ("/embed_sparse", json!({"inputs": "w5"}), 424, "Backend", "encoder to words"),
        ("/predict", json!({"inputs": "w5"}), 424, "Backend", "classifier"),
        ("/predict", json!({"inputs": ["a", "b", "c"]}), 422, "Tokenizer", "3 strings"),
        ("/predict", json!({"inputs": [[]]}), 422, "Tokenizer", "0 strings"),
        ("/rerank", json!({"query": "w5", "texts": ["w6"], "model": "m"}), 424, "Backend", "not a re-ranker"),
        ("/rerank", json!({"query": "w5", "texts": []}), 422, "Tokenizer", "`texts` is empty"),
        ("/rerank", json!({"texts": ["w5"]}), 422, "Tokenizer", "`query` is missing"),
        ("/similarity", json!({"inputs": {"source_sentence": "w5", "sentences": []}}), 422, "Tokenizer", "sentences"),
        (
            "/similarity",
            json!({"inputs": {"source_sentence": "w5", "sentences": ["w6"], "other": 1}}),
            422,
            "Tokenizer",
            "`inputs.other`",
        ),
    ];
    for (path, body, expected, kind, words) in cases {
        let (status, answer) = post(&router, path, body.clone()).await?;
        assert_eq!((status, answer["error_type"].as_str()), (expected, Some(kind)), "{path} {body}: {answer}");
        assert!(answer["error"].as_str().is_some_and(|error| error.contains(words)), "{path} {body}: {answer}");
    }
    let (status, answer) =
        post(&router, "/v1/embeddings", json!({"model": "m", "input": "w5", "dimensions": 64})).await?;
    assert_eq!(status, 400, "{answer}");
    Ok(())
}

#[tokio::test]
async fn padding_within_a_text_is_refused() -> Result<()> {
    let router = serve(&[("m", &Case::read("roberta")?.pooled("mean")?)])?;
    for inputs in [json!("w5 w1 w6"), json!([5, 1, 6])] {
        let (status, answer) = post(&router, "/embed", json!({"inputs": inputs})).await?;
        assert!(status == 422 && answer["error"].as_str().is_some_and(|text| text.contains("padding")), "{answer}");
    }
    assert_eq!(post(&router, "/embed", json!({"inputs": "w5 w6"})).await?.0, 200);
    Ok(())
}

#[tokio::test]
async fn a_classifier_has_no_vectors() -> Result<()> {
    let router = serve(&[("m", &Case::read("bert_classifier")?.folder()?)])?;
    assert_eq!(post(&router, "/embed", json!({"inputs": "w5"})).await?.0, 424);
    let (status, answer) = post(&router, "/v1/embeddings", json!({"model": "m", "input": "w5"})).await?;
    assert!(
        status == 400 && answer["error"]["message"].as_str().is_some_and(|text| text.contains("embedder")),
        "{answer}"
    );
    let (status, answer) = post(&router, "/rerank", json!({"query": "w5", "texts": ["w6"]})).await?;
    assert_eq!((status, answer["error_type"].as_str()), (424, Some("Backend")), "{answer}");
    Ok(())
}
