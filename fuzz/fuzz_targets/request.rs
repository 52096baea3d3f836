#![no_main]
//! Bodies of requests: the first byte chooses the route, the rest is the body. Every answer has the status of a success or of a
//! client's mistake.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use axum::Router;
use candle::{DType, Device};
use http_body_util::BodyExt;
use opara_models::decoder::{Config, Decoder, Scheduler, Text};
use opara_serve::batch::{self, Batcher, Buckets, Registry};
use opara_serve::embed::{Size, TextModel};
use opara_serve::generate::{Generator, Writer};
use opara_serve::model::{EmbeddingModel, GenerationModel, Loader, Model, Models};
use opara_serve::protocol::Service;
use opara_serve::server::{router, Settings};
use tokio::runtime::Runtime;
use tower::ServiceExt;

const ROUTES: [&str; 4] = ["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v2/models/bert/infer"];

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().expect("a runtime"));
static ROUTER: LazyLock<Router> = LazyLock::new(|| serve().expect("a server"));

libfuzzer_sys::fuzz_target!(init: opara_fuzz::seeds::write("request"), |bytes: &[u8]| {
    let Some((first, body)) = bytes.split_first() else { return };
    let route = ROUTES[usize::from(*first) % ROUTES.len()];
    let request = Request::post(route).header("content-type", "application/json").body(Body::from(body.to_vec()));
    let answered = RUNTIME.block_on(async {
        let answer = ROUTER.clone().oneshot(request.expect("a sound request")).await.expect("routers do not fail");
        let status = answer.status();
        let body = tokio::time::timeout(Duration::from_secs(8), answer.into_body().collect()).await;
        (status, body.expect("an answer ends").map(|body| body.to_bytes()))
    });
    let (status, body) = answered;
    let body = body.expect("an answer has a body");
    assert!(!status.is_server_error(), "{route}: {status}: {}", String::from_utf8_lossy(&body));
});

/// A server of a tiny embedder and a tiny decoder.
fn serve() -> anyhow::Result<Router> {
    let settings = Settings { max_body_bytes: Some(1 << 16), ..Settings::default() };
    let registry = Arc::new(Registry::default());
    let metrics = registry.model("bert");
    let embedder: Loader = Arc::new(move || {
        let buckets = Buckets::new([1, 2], [16, 64], 128)?;
        let model = TextModel::random(Size::Tiny, 5);
        let engine = model.embedder(&Device::Cpu, DType::F32, &buckets)?;
        let batcher = Batcher::start([engine], buckets, batch::Settings::default().metrics(metrics.clone()));
        let (tokenizer, vocabulary) = (model.tokenizer().clone(), model.vocabulary());
        Ok(Arc::new(EmbeddingModel::new(batcher, tokenizer, vocabulary, model.width(), metrics.clone()))
            as Arc<dyn Model>)
    });
    let (texts, counters) = (registry.texts("m"), registry.model("m"));
    let decoder: Loader = Arc::new(move || {
        let config = Config { vocab: 256, max_positions: 64, eos: vec![0], ..Config::tiny() };
        let decoder = Decoder::load(opara_weights::seeded(3, DType::F32, &Device::Cpu), &config, 64)?;
        let writer = Writer::start(vec![Scheduler::new(Arc::new(decoder), 2, None)?], 100, texts.clone());
        let tokenizer = opara_fuzz::file("tokenizer.json", include_bytes!("../tokenizer.json"));
        opara_fuzz::file("chat_template.jinja", b"{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}");
        let text = Arc::new(Text::beside(&tokenizer)?);
        Ok(Arc::new(GenerationModel::new(Generator::new(writer, text), counters.clone())) as Arc<dyn Model>)
    });
    let models = Arc::new(Models::new([("bert".to_owned(), embedder), ("m".to_owned(), decoder)]));
    for name in ["bert", "m"] {
        models.load(name).map_err(|failure| anyhow::anyhow!(failure.message))?;
    }
    let service = Service { models, registry, limits: settings.limits(), may_control: false };
    let _inside = RUNTIME.enter();
    router(&service, &settings)
}
