//! Requests: the first byte chooses the route, the second the encoding of the body, and the rest is the body. Every answer ends, with
//! the status of a success or of a client's mistake.

use std::sync::{Arc, LazyLock};

use axum::body::Body;
use axum::http::Request;
use axum::Router;
use candle::{DType, Device};
use http_body_util::BodyExt;
use opara_models::decoder::{Config, Decoder, Text};
use opara_models::engine::{Engine, Options};
use opara_serve::batch::{self, Batcher, Buckets, Registry};
use opara_serve::embed::TextModel;
use opara_serve::generate::Writer;
use opara_serve::model::{EmbeddingModel, GenerationModel, Loader, Model, Models};
use opara_serve::protocol::Service;
use opara_serve::server::{router, Settings};
use tokio::runtime::Runtime;
use tower::ServiceExt;

use crate::folder::Folder;
use crate::sentences;

const INFER: &str = "/v2/models/bert/infer";

/// Routes over HTTP. On the second [`INFER`] tensors follow the first line.
const ROUTES: [&str; 9] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    INFER,
    INFER,
    "/v2/repository/index",
    "/v2/repository/models/bert/load",
    "/v2/models/m/infer",
    "/v2/models/bert/versions/1/infer",
];

/// Routes of gRPC, whose body is a message. To the last the body goes as it is.
const CALLS: [&str; 9] = [
    "inference.GRPCInferenceService/ModelInfer",
    "inference.GRPCInferenceService/ModelStreamInfer",
    "inference.GRPCInferenceService/ModelMetadata",
    "inference.GRPCInferenceService/ModelReady",
    "inference.GRPCInferenceService/RepositoryIndex",
    "inference.GRPCInferenceService/RepositoryModelLoad",
    "grpc.health.v1.Health/Check",
    "grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "inference.GRPCInferenceService/ModelStreamInfer",
];

/// Routes of text-embeddings-inference, and one of vLLM's.
const OF_TEXTS: [&str; 9] = [
    "/embed",
    "/embed_all",
    "/similarity",
    "/tokenize",
    "/decode",
    "/embed_sparse",
    "/predict",
    "/rerank",
    "/detokenize",
];

/// Encodings that a body claims to have.
const ENCODINGS: [Option<&str>; 4] = [None, Some("gzip"), Some("deflate"), Some("identity")];

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime")
});
static ROUTER: LazyLock<Router> = LazyLock::new(|| serve().expect("a server"));

/// Reads an input, and says whether it could be read.
pub fn run(bytes: &[u8]) -> bool {
    let [first, second, body @ ..] = bytes else { return false };
    let route = usize::from(*first) % (ROUTES.len() + CALLS.len() + OF_TEXTS.len());
    let encoding = ENCODINGS[usize::from(*second) % 4];
    let (request, path) = match (ROUTES.get(route), CALLS.get(route.wrapping_sub(ROUTES.len()))) {
        (Some(path), _) => (http(path, encoding, body, route == 4), *path),
        (_, Some(call)) => (grpc(call, encoding, body, route + 1 == ROUTES.len() + CALLS.len()), *call),
        _ => {
            let path = OF_TEXTS[route - ROUTES.len() - CALLS.len()];
            (http(path, encoding, body, false), path)
        }
    };
    let (status, code, body) = RUNTIME.block_on(async {
        let answer = ROUTER.clone().oneshot(request).await.expect("routers do not fail");
        let (parts, body) = answer.into_parts();
        let body = body.collect().await.expect("an answer has a body");
        // Calls that fail at once have no trailers.
        let trailers =
            body.trailers().filter(|trailers| trailers.contains_key("grpc-status")).unwrap_or(&parts.headers);
        let told = |name: &str| trailers.get(name).map(|told| String::from_utf8_lossy(told.as_bytes()).into_owned());
        (parts.status, told("grpc-status").zip(told("grpc-message").or(Some(String::new()))), body.to_bytes())
    });
    // A request may ask for less time than an answer takes.
    let is_late = status == 504 && String::from_utf8_lossy(bytes).contains("timeout");
    let said = String::from_utf8_lossy(&body);
    assert!(is_late || !status.is_server_error(), "{path}: {status}: {said}");
    // Loading models is for operators alone: 403, and 7 of gRPC.
    let Some((code, message)) = code else { return status.is_success() || status == 403 };
    // tonic says internal of messages that it cannot read, too.
    let is_of_client = ["decod", "ompress", "flag", "essage", "protocol"].iter().any(|word| message.contains(word));
    assert!(code != "2" && (code != "13" || is_of_client), "{path}: {code}: {message}");
    code == "0" || code == "7"
}

fn http(path: &str, encoding: Option<&str>, body: &[u8], has_tensors: bool) -> Request<Body> {
    let mut request = Request::post(path).header("content-type", "application/json");
    if let Some(encoding) = encoding {
        request = request.header("content-encoding", encoding);
    }
    if has_tensors {
        let length = body.iter().position(|byte| *byte == b'\n').map_or(body.len(), |at| at + 1);
        request = request.header("inference-header-content-length", length);
    }
    request.body(Body::from(body.to_vec())).expect("a sound request")
}

fn grpc(call: &str, encoding: Option<&str>, message: &[u8], is_framed: bool) -> Request<Body> {
    let mut request =
        Request::post(format!("/{call}")).header("content-type", "application/grpc").header("te", "trailers");
    if let Some(encoding) = encoding {
        request = request.header("grpc-encoding", encoding);
    }
    let flag = u8::from(encoding.is_some());
    let body = match is_framed {
        true => message.to_vec(),
        false => [&[flag], &(message.len() as u32).to_be_bytes()[..], message].concat(),
    };
    request.body(Body::from(body)).expect("a sound request")
}

/// A server of a tiny embedder and a tiny decoder.
fn serve() -> anyhow::Result<Router> {
    let settings = Settings { max_body_bytes: Some(1 << 16), request_seconds: Some(3600.), ..Settings::default() };
    let registry = Arc::new(Registry::default());
    let metrics = registry.model("bert");
    let embedder: Loader = Arc::new(move || {
        let folder = sentences::whole();
        let model = TextModel::open(folder.path())?;
        let buckets = Buckets::new([1, 2], [4, model.limit()], 32)?;
        let engine = model.embedder(&Device::Cpu, DType::F32, &buckets)?;
        let batcher = Batcher::start([engine], buckets, batch::Settings::default().metrics(metrics.clone()));
        let (tokenizer, vocabulary) = (model.tokenizer().clone(), model.vocabulary());
        let model = EmbeddingModel::new(batcher, tokenizer, vocabulary, model.width(), metrics.clone());
        Ok(Arc::new(model.token_types(2)) as Arc<dyn Model>)
    });
    let (texts, counters) = (registry.texts("m"), registry.model("m"));
    let decoder: Loader = Arc::new(move || {
        let config = Config { vocab: 105, max_positions: 384, eos: vec![0], ..Config::tiny() };
        let decoder = Decoder::load(opara_weights::seeded(3, DType::F32, &Device::Cpu), &config, 384)?;
        let engine = Engine::new(Arc::new(decoder), Options { slots: 2, ..Options::default() })?;
        let mut folder = Folder::new();
        let tokenizer = folder.put("tokenizer.json", include_bytes!("../seeds/tokenizer.json"));
        let template = b"{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}\
{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}";
        folder.put("chat_template.jinja", template);
        let text = Arc::new(Text::beside(&tokenizer)?);
        let writer = Writer::start(vec![engine], text, 100, texts.clone());
        Ok(Arc::new(GenerationModel::new(writer, counters.clone())) as Arc<dyn Model>)
    });
    let models = Arc::new(Models::new([("bert".to_owned(), embedder), ("m".to_owned(), decoder)]));
    for name in ["bert", "m"] {
        models.load(name).map_err(|failure| anyhow::anyhow!(failure.message))?;
    }
    let service = Service { models, registry, limits: settings.limits(), may_control: false };
    let _inside = RUNTIME.enter();
    router(&service, &settings)
}
