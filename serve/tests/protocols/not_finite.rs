//! Texts whose logits are no numbers: an error each, and nothing of it for others.

use std::sync::Arc;

use anyhow::{Context, Result};
use candle::{DType, Device};
use opara_models::decoder::Config;
use opara_serve::server::Settings;
use serde_json::{json, Value};

use super::texts::{serve_of, CONTEXT};
use super::{get, post, spoiled};

/// The letter whose embedding is no number.
const SPOILED: &str = "z";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_text_without_tokens_is_an_error_and_others_are_written() -> Result<()> {
    let config = Config { vocab: 256, max_positions: CONTEXT, eos: vec![0], ..Config::tiny() };
    let decoder = spoiled::model(&config, CONTEXT, &[u32::from(SPOILED.as_bytes()[0])], DType::F32, &Device::Cpu);
    let of = serve_of(&Settings { sequences: Some(3), ..Settings::default() }, Arc::new(decoder))?;
    let body = |prompt: &str, fields: Value| {
        let mut body = json!({"model": "m", "prompt": prompt, "max_tokens": 5, "temperature": 0});
        body.as_object_mut().into_iter().for_each(|body| body.extend(fields.as_object().cloned().unwrap_or_default()));
        body.to_string()
    };
    let whole = post(&of.router, "/v1/completions", body("abc", json!({}))).await?.json()?["choices"][0].clone();
    for fields in
        [json!({}), json!({"temperature": 1, "seed": 3}), json!({"top_p": 0.5, "temperature": 0.7, "min_tokens": 3})]
    {
        for is_streamed in [false, true] {
            let mut fields = fields.clone();
            fields["stream"] = json!(is_streamed);
            let (spoiled, beside) = tokio::join!(
                post(&of.router, "/v1/completions", body(&format!("ab{SPOILED}c"), fields.clone())),
                post(&of.router, "/v1/completions", body("abc", json!({}))),
            );
            let (spoiled, beside) = (spoiled?, beside?);
            assert_eq!(spoiled.status.as_u16(), 500, "{fields}: {}", String::from_utf8_lossy(&spoiled.body));
            let error = spoiled.json()?["error"]["message"].to_string();
            assert!(error.contains("not finite"), "{fields}: {error}");
            assert_eq!(beside.json()?["choices"][0], whole, "{fields}");
        }
    }
    let turns = json!([{"role": "user", "content": SPOILED}]);
    let chat = json!({"model": "m", "messages": turns, "max_tokens": 3});
    assert_eq!(post(&of.router, "/v1/chat/completions", chat.to_string()).await?.status.as_u16(), 500);
    let metrics = String::from_utf8(get(&of.router, "/metrics").await?.body)?;
    let running = metrics.lines().find(|line| line.contains("opara_text_sequences") && line.contains("running"));
    assert!(running.context("it is counted")?.ends_with(" 0"), "{running:?}");
    Ok(())
}
