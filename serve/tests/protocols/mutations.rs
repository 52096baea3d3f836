//! Bodies that were changed at random: every answer is a good one or the protocol's error, and none is missing.

use std::time::Duration;

use anyhow::{ensure, Context, Result};
use axum::Router;
use opara_serve::server::Settings;
use serde_json::{json, Value};

use super::texts::serve;
use super::{post, setup, small, INFER};

/// What clients and their bugs send.
fn odd(rng: &mut fastrand::Rng) -> Value {
    let all = [
        json!(null),
        json!(true),
        json!(false),
        json!(0),
        json!(-1),
        json!(1),
        json!(2.5),
        json!(-0.0),
        json!(1e300),
        json!(u64::MAX),
        json!(i64::MIN),
        json!(1u64 << 32),
        json!(""),
        json!("a"),
        json!("\u{0}"),
        json!("\u{feff}é😀"),
        json!("a ".repeat(300)),
        json!([]),
        json!({}),
        json!([null]),
        json!([[[[1]]]]),
        json!([1, 2, 3]),
        json!(["a", 1]),
        json!({"a": {"b": []}}),
        json!([-1]),
        json!([4_294_967_296u64]),
        json!([[]]),
        json!({"type": "text"}),
        json!("INT64"),
        json!("BYTES"),
        json!([0]),
        json!([1, 1]),
        json!([9_223_372_036_854_775_807u64, 2]),
        json!("base64"),
        json!({"include_usage": true}),
    ];
    all[rng.usize(..all.len())].clone()
}

const NAMES: [&str; 22] = [
    "model",
    "prompt",
    "messages",
    "stream",
    "max_tokens",
    "temperature",
    "top_k",
    "stop",
    "n",
    "id",
    "parameters",
    "outputs",
    "data",
    "shape",
    "datatype",
    "user",
    "min_tokens",
    "stop_token_ids",
    "encoding_format",
    "dimensions",
    "timeout",
    "binary_data_size",
];

/// Changes one place in a value.
fn change(rng: &mut fastrand::Rng, value: &mut Value) {
    let inner = match value {
        Value::Array(list) if !list.is_empty() => {
            let at = rng.usize(..list.len());
            list.get_mut(at)
        }
        Value::Object(fields) if !fields.is_empty() => {
            let at = rng.usize(..fields.len());
            fields.values_mut().nth(at)
        }
        _ => None,
    };
    if let Some(inner) = inner.filter(|_| rng.u8(..4) > 0) {
        return change(rng, inner);
    }
    match value {
        Value::Object(fields) if rng.bool() => {
            fields.insert(NAMES[rng.usize(..NAMES.len())].into(), odd(rng));
        }
        Value::Object(fields) if !fields.is_empty() && rng.bool() => {
            let name = fields.keys().nth(rng.usize(..fields.len())).cloned().unwrap_or_default();
            fields.remove(&name);
        }
        Value::Array(list) if rng.bool() => list.push(odd(rng)),
        value => *value = odd(rng),
    }
}

/// Changes bytes, which need not be JSON after that.
fn corrupt(rng: &mut fastrand::Rng, bytes: &mut Vec<u8>) {
    let at = rng.usize(..bytes.len().max(1));
    match rng.u8(..5) {
        0 => bytes.truncate(at),
        1 => bytes.insert(at, rng.u8(..)),
        2 => bytes[at] = rng.u8(..),
        3 => bytes.extend_from_within(at..),
        _ => {
            bytes.splice(at..at, std::iter::repeat_n(b'[', rng.usize(..300)));
        }
    }
}

async fn is_answered(router: &Router, path: &str, body: Vec<u8>) -> Result<()> {
    let shown = String::from_utf8_lossy(&body[..body.len().min(400)]).into_owned();
    let reply = tokio::time::timeout(Duration::from_secs(300), post(router, path, body)).await;
    let reply = reply.with_context(|| format!("no answer to {shown}"))??;
    let said = String::from_utf8_lossy(&reply.body).into_owned();
    if reply.status.is_success() {
        ensure!(!said.contains("\"error\""), "{shown}: {said}");
        return Ok(());
    }
    // A request may ask for less time than an answer takes.
    let is_late = reply.status == 504 && shown.contains("\"timeout\"");
    ensure!(is_late || reply.status.is_client_error(), "{} for {shown}: {said}", reply.status);
    let error = &reply.json()?["error"];
    let message = if path.starts_with("/v1") { &error["message"] } else { error };
    ensure!(message.as_str().is_some_and(|message| !message.is_empty()), "{shown}: {said}");
    Ok(())
}

#[tokio::test]
async fn any_body_is_answered_or_refused_in_the_protocols_form() -> Result<()> {
    let texts = serve(&Settings { request_seconds: Some(600.), ..Settings::default() }, 40, vec![0])?;
    let own = setup(Settings { request_seconds: Some(600.), ..small() })?;
    let ids = json!({"name": "input_ids", "datatype": "INT64", "shape": [1, 3], "data": [[5, 6, 7]]});
    let mask =
        json!({"name": "attention_mask", "datatype": "INT32", "shape": [1, 3], "data": [1, 1, 0], "parameters": {}});
    let routes = [
        (
            &texts.router,
            "/v1/completions",
            json!({
                "model": "m", "prompt": "ab", "max_tokens": 3, "temperature": 0.5, "top_p": 0.9, "top_k": 3, "stop": ["x"], "seed": 1,
                "stream": false, "stream_options": null, "stop_token_ids": [1], "min_tokens": 1, "ignore_eos": true,
            }),
        ),
        (
            &texts.router,
            "/v1/completions",
            json!({"model": "m", "prompt": [1, 2], "max_tokens": 2, "stream": true, "stream_options": {"include_usage": true}}),
        ),
        (
            &texts.router,
            "/v1/chat/completions",
            json!({
                "model": "m", "max_tokens": 3, "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": [{"type": "text", "text": "b"}]}],
            }),
        ),
        (&own.router, "/v1/embeddings", json!({"model": "bert", "input": ["a", "b"], "encoding_format": "float"})),
        (
            &own.router,
            "/v1/embeddings",
            json!({"model": "bert", "input": [[1, 2], [3]], "dimensions": null, "user": "u"}),
        ),
        (
            &own.router,
            INFER,
            json!({"id": "1", "inputs": [ids, mask], "outputs": [{"name": "embedding", "parameters": {"binary_data": false}}], "parameters": {"timeout": 100_000_000}}),
        ),
        (
            &own.router,
            INFER,
            json!({"inputs": [{"name": "text", "datatype": "BYTES", "shape": [2, 1], "data": [["a"], ["b"]]}]}),
        ),
        (&own.router, "/v2/repository/index", json!({"ready": true})),
        (&own.router, "/v2/repository/models/bert/unload", json!({"parameters": {"unload_dependents": false}})),
    ];
    let mut rng = fastrand::Rng::with_seed(54);
    for (router, path, body) in &routes {
        // The last one takes the model out of service.
        let count = if path.ends_with("unload") { 20 } else { 150 };
        for _ in 0..count {
            let mut changed = body.clone();
            (0..rng.usize(1..4)).for_each(|_| change(&mut rng, &mut changed));
            let mut bytes = changed.to_string().into_bytes();
            if rng.u8(..4) == 0 {
                corrupt(&mut rng, &mut bytes);
            }
            is_answered(router, path, bytes).await?;
        }
    }
    Ok(())
}
