//! Ten thousand requests while batches panic and fail, clients vanish, models are reloaded and the queue overflows: each has
//! its own answer or one error, and memory stays level.

mod common;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use anyhow::{ensure, Context, Result};
use axum::body::Body;
use axum::http::Request;
use axum::Router;
use common::{answer, Moody, PANIC};
use http_body_util::BodyExt;
use opara_serve::batch::{self, Batcher, Buckets, Registry};
use opara_serve::embed::{Size, TextModel};
use opara_serve::model::{EmbeddingModel, Loader, Model, Models};
use opara_serve::protocol::Service;
use opara_serve::server::{router, Settings};
use parking_lot::Mutex;
use serde_json::{json, Value};
use tower::ServiceExt;

const REQUESTS: usize = 10_000;
const CLIENTS: usize = 64;
/// Growth that is allowed from the first quarter of requests to the end.
const GROWTH: usize = 16 << 20;

fn service() -> Service {
    let registry = Arc::new(Registry::default());
    let metrics = registry.model("m");
    let loader: Loader = Arc::new(move || {
        let buckets = Buckets::new([1, 4, 8], [4, 16], 64)?;
        // Sixteen clients ask for 40 rows on average; batches in flight hold 16 of them: the queue overflows on any machine.
        let settings = batch::Settings::default().queue_rows(20).in_flight(2).metrics(metrics.clone());
        let tokenizer = TextModel::random(Size::Tiny, 0).tokenizer().clone();
        let batcher = Batcher::start([Moody::default()], buckets, settings);
        Ok(Arc::new(EmbeddingModel::new(batcher, tokenizer, 100, 2, metrics.clone())) as Arc<dyn Model>)
    });
    let models = Arc::new(Models::new([("m".to_owned(), loader)]));
    Service { models, registry, limits: Settings::default().limits(), may_control: false }
}

/// A request of one to four rows. One in sixteen has a row that makes its batch panic, and as many one that fails.
fn rows(rng: &mut fastrand::Rng) -> Vec<Vec<u32>> {
    let mut rows: Vec<Vec<u32>> =
        (0..rng.usize(1..=4)).map(|_| (0..rng.usize(1..=16)).map(|_| rng.u32(1..PANIC)).collect()).collect();
    match rng.u32(0..16) {
        0 => rows[0][0] = PANIC,
        1 => rows[0][0] = PANIC + 1,
        _ => {}
    }
    rows
}

/// The status, after a look at the answer.
async fn asked(router: Router, rows: &[Vec<u32>]) -> Result<u16> {
    let body = json!({"model": "m", "input": rows}).to_string();
    let reply = router.oneshot(Request::post("/v1/embeddings").body(Body::from(body))?).await?;
    let status = reply.status().as_u16();
    let body: Value = serde_json::from_slice(&reply.into_body().collect().await?.to_bytes())?;
    if status == 200 {
        let expected: Vec<Vec<f32>> = rows.iter().map(|row| answer(row)).collect();
        let data = body["data"].as_array().context("a list")?;
        let got: Vec<&Value> = data.iter().map(|item| &item["embedding"]).collect();
        ensure!(json!(got) == json!(expected), "another request's answer: {got:?} for {expected:?}");
    } else {
        ensure!(body["error"]["message"].is_string(), "an error without a message: {body}");
    }
    Ok(status)
}

fn resident() -> Result<usize> {
    let pages = std::fs::read_to_string("/proc/self/statm")?;
    Ok(pages.split(' ').nth(1).context("resident pages")?.parse::<usize>()? * 4_096)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_request_has_one_answer_or_one_error() -> Result<()> {
    std::panic::set_hook(Box::new(|_| ()));
    let service = service();
    service.models.load("m").map_err(|failure| anyhow::anyhow!(failure.message))?;
    let router = router(&service, &Settings::default())?;
    let outcomes = Arc::new(Mutex::new(BTreeMap::<u16, usize>::new()));
    let is_over = Arc::new(AtomicBool::new(false));
    let reloads = {
        let (models, is_over) = (service.models.clone(), is_over.clone());
        tokio::task::spawn_blocking(move || {
            let mut reloads = 0;
            while !is_over.load(Ordering::Relaxed) {
                models.load("m").map_err(|failure| anyhow::anyhow!(failure.message))?;
                reloads += 1;
            }
            anyhow::Ok(reloads)
        })
    };
    let client = |seed: u64| {
        let (router, outcomes) = (router.clone(), outcomes.clone());
        tokio::spawn(async move {
            let mut rng = fastrand::Rng::with_seed(seed);
            for _ in 0..REQUESTS / CLIENTS + 1 {
                let rows = rows(&mut rng);
                let asking = asked(router.clone(), &rows);
                let status = if rng.u32(0..10) == 0 {
                    // The client is gone after a while.
                    let patience = async {
                        for _ in 0..rng.u32(0..8) {
                            tokio::task::yield_now().await;
                        }
                    };
                    tokio::select! { biased; status = asking => status?, () = patience => 0 }
                } else {
                    asking.await?
                };
                *outcomes.lock().entry(status).or_default() += 1;
            }
            anyhow::Ok(())
        })
    };
    let (mut level, mut seeds) = (None, 0..);
    // Four rounds, so that memory can be compared.
    for _ in 0..4 {
        let clients: Vec<_> = seeds.by_ref().take(CLIENTS / 4).map(client).collect();
        for client in clients {
            client.await??;
        }
        level.get_or_insert(resident()?);
    }
    is_over.store(true, Ordering::Relaxed);
    let reloads = reloads.await??;
    let outcomes = outcomes.lock().clone();
    println!("{outcomes:?}, {reloads} reloads");
    ensure!(outcomes.values().sum::<usize>() >= REQUESTS, "{outcomes:?}");
    ensure!(outcomes.keys().all(|status| [0, 200, 429, 500, 503].contains(status)), "{outcomes:?}");
    for status in [0, 200, 429, 500] {
        ensure!(outcomes.contains_key(&status), "no request ended with {status}: {outcomes:?}");
    }
    let grown = resident()?.saturating_sub(level.unwrap_or(0));
    ensure!(grown <= GROWTH, "memory grew by {} KiB", grown >> 10);
    Ok(())
}
