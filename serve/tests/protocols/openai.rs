//! OpenAI's embeddings.

use anyhow::{Context, Result};
use axum::http::StatusCode;
use base64::prelude::{Engine as _, BASE64_STANDARD};
use serde_json::json;

use super::{floats, get, post, setup, small};

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
    let raw = BASE64_STANDARD.decode(answer["data"][0]["embedding"].as_str().context("text")?)?;
    let got: Vec<f32> = raw.chunks_exact(4).map(|x| f32::from_le_bytes([x[0], x[1], x[2], x[3]])).collect();
    assert_eq!(got, setup.own.embed(&texts[..1])?[0]);
    assert_eq!(answer["usage"]["total_tokens"], json!(tokens[0].len()));
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
        (400, json!({"model": "bert", "input": "a", "dimensions": 33}).to_string()),
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
