//! Texts of many clients: they join and leave one batch, go away, wait, and are drained.

use std::time::Duration;

use anyhow::{Context, Result};
use axum::body::Body;
use axum::http::Request;
use axum::Router;
use http_body_util::BodyExt;
use opara_candle::ops::Sampling;
use opara_serve::server::Settings;
use serde_json::{json, Value};
use tower::ServiceExt;

use super::texts::{endless_texts, events, texts, Texts};
use super::{get, post, Reply};

/// So long that no text of this length ends while a test runs.
const ENDLESS: usize = 1 << 16;

/// A stream that goes on until it is dropped; its first piece was told.
async fn endless(of: &Texts) -> Result<Body> {
    let body =
        json!({"model": "m", "prompt": "on and on", "max_tokens": ENDLESS - 100, "temperature": 0, "stream": true});
    let request = Request::post("/v1/completions").body(Body::from(body.to_string()))?;
    let mut body = of.router.clone().oneshot(request).await?.into_body();
    body.frame().await.context("a piece")??;
    Ok(body)
}

fn short(fields: Value) -> String {
    let mut body = json!({"model": "m", "prompt": "abc", "max_tokens": 5, "temperature": 0});
    for (name, value) in fields.as_object().into_iter().flatten() {
        body[name] = value.clone();
    }
    body.to_string()
}

/// A number of the metrics.
async fn metric(router: &Router, line: &str) -> Result<u64> {
    let metrics = String::from_utf8(get(router, "/metrics").await?.body)?;
    let found = metrics.lines().find_map(|told| told.strip_prefix(line)).with_context(|| format!("no {line}"))?;
    Ok(found.trim().parse()?)
}

const RUNNING: &str = "opara_text_sequences{model=\"m\",state=\"running\"}";
const WAITING: &str = "opara_text_sequences{model=\"m\",state=\"waiting\"}";
const PROMPTS: &str = "opara_text_tokens_total{model=\"m\",kind=\"prompt\"}";
const WRITTEN: &str = "opara_text_tokens_total{model=\"m\",kind=\"written\"}";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_clients_at_once_have_the_texts_that_each_has_alone() -> Result<()> {
    let of = texts(&Settings { sequences: Some(4), ..Settings::default() })?;
    let mut rng = fastrand::Rng::with_seed(2);
    let mut clients = Vec::new();
    for client in 0..50 {
        let prompt: String = "the same beginning of all, ".chars().cycle().take(rng.usize(1..260)).collect();
        let (most, seed, is_streamed) = (rng.usize(1..40), rng.u64(0..1000), rng.bool());
        let temperature = if rng.bool() { 0. } else { 0.9 };
        let expected = of.told(&prompt, most, Sampling { temperature, seed, ..Sampling::default() })?;
        let body = short(json!({
            "prompt": prompt, "max_tokens": most, "temperature": temperature, "seed": seed, "stream": is_streamed,
        }));
        let router = of.router.clone();
        clients.push(tokio::spawn(async move {
            let reply = post(&router, "/v1/completions", body).await?;
            let text: String = match is_streamed {
                true => events(&reply)?.iter().filter_map(|event| event["choices"][0]["text"].as_str()).collect(),
                false => reply.json()?["choices"][0]["text"].as_str().context("a text")?.to_owned(),
            };
            anyhow::ensure!(text == expected, "client {client} has {text:?} for {expected:?}");
            Ok(())
        }));
    }
    for client in clients {
        client.await??;
    }
    assert_eq!((metric(&of.router, RUNNING).await?, metric(&of.router, WAITING).await?), (0, 0));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_goes_frees_its_slot() -> Result<()> {
    let of = endless_texts(&Settings { sequences: Some(1), ..Settings::default() }, ENDLESS)?;
    let going = endless(&of).await?;
    assert_eq!(metric(&of.router, RUNNING).await?, 1);
    drop(going);
    // There is one slot.
    let reply = post(&of.router, "/v1/completions", short(json!({}))).await?.json()?;
    assert_eq!(reply["choices"][0]["text"], of.told("abc", 5, Sampling::default())?);
    assert!(metric(&of.router, WRITTEN).await? < ENDLESS as u64 - 100, "it was written to its end");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_counts_as_under_way_until_its_client_goes() -> Result<()> {
    let of = endless_texts(&Settings { max_requests: Some(1), ..Settings::default() }, ENDLESS)?;
    let stream = endless(&of).await?;
    assert_eq!(get(&of.router, "/v1/models").await?.status.as_u16(), 429);
    drop(stream);
    assert_eq!(get(&of.router, "/v1/models").await?.status.as_u16(), 200);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_has_an_end_and_requests_a_deadline() -> Result<()> {
    let settings =
        Settings { sequences: Some(1), queue_rows: Some(1), request_seconds: Some(2.), ..Settings::default() };
    let of = endless_texts(&settings, ENDLESS)?;
    let running = endless(&of).await?;
    let waits = post(&of.router, "/v1/completions", short(json!({})));
    let refused = async {
        while metric(&of.router, WAITING).await? < 1 {
            tokio::task::yield_now().await;
        }
        let turns = json!([{"role": "user", "content": "a"}]);
        post(&of.router, "/v1/chat/completions", short(json!({"prompt": null, "messages": turns}))).await
    };
    let (late, refused) = tokio::join!(waits, refused);
    let (late, refused): (Reply, Reply) = (late?, refused?);
    assert_eq!(
        (refused.status.as_u16(), refused.json()?["error"]["code"].clone()),
        (429, json!("rate_limit_exceeded"))
    );
    assert!(refused.headers.contains_key("retry-after"));
    assert_eq!((late.status.as_u16(), late.json()?["error"]["type"].clone()), (504, json!("server_error")));
    // The stream has begun: the deadline is not its own any more.
    drop(running);
    let reply = post(&of.router, "/v1/completions", short(json!({}))).await?;
    assert_eq!(reply.json()?["usage"]["completion_tokens"], 5);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn draining_writes_what_was_taken_and_no_more() -> Result<()> {
    let of = texts(&Settings { sequences: Some(1), ..Settings::default() })?;
    let taken: Vec<_> = (0..3)
        .map(|_| {
            let router = of.router.clone();
            let body = short(json!({"max_tokens": 100, "stream": true}));
            tokio::spawn(async move { post(&router, "/v1/completions", body).await })
        })
        .collect();
    // Until all are in the queue, or beyond it.
    while metric(&of.router, PROMPTS).await? < 9 {
        tokio::task::yield_now().await;
    }
    let models = of.service.models.clone();
    tokio::time::timeout(Duration::from_secs(120), tokio::task::spawn_blocking(move || models.drain())).await??;
    let expected = of.told("abc", 100, Sampling::default())?;
    for taken in taken {
        let text: String =
            events(&taken.await??)?.iter().filter_map(|event| event["choices"][0]["text"].as_str()).collect();
        assert_eq!(text, expected);
    }
    let refused = post(&of.router, "/v1/completions", short(json!({}))).await?;
    assert_eq!(refused.status.as_u16(), 503);
    Ok(())
}
