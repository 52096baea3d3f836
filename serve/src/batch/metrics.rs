//! Counters and histograms, in the format of Prometheus.

use std::fmt::Write as _;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{exponential_buckets, Histogram};

use super::labels::{OfDevice, OfKind, OfModel};
use super::text_metrics::{TextFamilies, TextMetrics};
use super::vllm_metrics::VllmMetrics;
use super::Health;

/// What a request goes through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Stage {
    /// Reading the request's body and tensors.
    Parse,
    /// Text to tokens.
    Tokenize,
    /// Waiting for a worker.
    Queue,
    /// A batch in the engine: padding, upload, replay, download.
    Execute,
    /// Writing the answer.
    Respond,
}

impl EncodeLabelValue for Stage {
    fn encode(&self, encoder: &mut LabelValueEncoder) -> std::fmt::Result {
        encoder.write_str(match self {
            Stage::Parse => "parse",
            Stage::Tokenize => "tokenize",
            Stage::Queue => "queue",
            Stage::Execute => "execute",
            Stage::Respond => "respond",
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfStage {
    model: String,
    stage: Stage,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfOutcome {
    protocol: &'static str,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfReason {
    model: String,
    bucket: String,
    reason: String,
}

/// A counter of seconds.
type Seconds = Counter<f64, AtomicU64>;

/// The metrics of a process.
#[derive(Debug)]
pub struct Registry {
    registry: prometheus_client::registry::Registry,
    requests: Family<OfOutcome, Counter>,
    queue: Family<OfModel, Gauge>,
    workers: Family<OfModel, Gauge>,
    panics: Family<OfModel, Counter>,
    batch_rows: Family<OfModel, Histogram>,
    tokens: Family<OfKind, Counter>,
    stages: Family<OfStage, Histogram>,
    busy: Family<OfDevice, Seconds>,
    own: Family<OfDevice, Seconds>,
    graphs: Family<OfModel, Gauge>,
    eager: Family<OfReason, Gauge>,
    rechecks: Family<OfModel, Gauge>,
    mismatches: Family<OfModel, Gauge>,
    texts: TextFamilies,
    vllm: VllmMetrics,
}

impl Default for Registry {
    fn default() -> Self {
        let mut all = prometheus_client::registry::Registry::default();
        let vllm = VllmMetrics::default();
        all.register_collector(Box::new(vllm.clone()));
        let registry = all.sub_registry_with_prefix("opara");
        // From 50 microseconds to 26 seconds.
        let seconds = || Histogram::new(exponential_buckets(50e-6, 2., 20));
        let rows = || Histogram::new(exponential_buckets(1., 2., 10));
        macro_rules! register {
            ($name:literal, $help:literal, $family:expr) => {{
                let family = $family;
                registry.register($name, $help, family.clone());
                family
            }};
        }
        let requests = register!("requests", "Requests by protocol and outcome", Family::default());
        let queue = register!("queue_rows", "Rows that wait for a worker", Family::default());
        let workers = register!("workers", "Workers that run", Family::default());
        let panics = register!("panics", "Batches on which the engine panicked", Family::default());
        let batch_rows = register!(
            "batch_rows",
            "Rows of a batch, without padding",
            Family::new_with_constructor(rows as fn() -> _)
        );
        let tokens = register!("tokens", "Tokens run, of rows and of padding", Family::default());
        let stages =
            register!("stage_seconds", "Time in each stage", Family::new_with_constructor(seconds as fn() -> _));
        let busy = register!("busy_seconds", "Time in which a device had a batch", Family::default());
        let own = register!(
            "device_seconds",
            "Time of a device for its batches, as it takes by itself for one after another",
            Family::default()
        );
        let graphs = register!("graphs", "Buckets that are answered by a plan", Family::default());
        let eager = register!("eager", "Buckets that run eagerly, with the reason", Family::default());
        let rechecks = register!("rechecks", "Calls that were compared with the module", Family::default());
        let mismatches = register!("mismatches", "Compared calls that differed", Family::default());
        let texts = TextFamilies::register(registry);
        Self {
            registry: all,
            requests,
            queue,
            workers,
            panics,
            batch_rows,
            tokens,
            stages,
            busy,
            own,
            graphs,
            eager,
            rechecks,
            mismatches,
            texts,
            vllm,
        }
    }
}

impl Registry {
    /// Those of one model. The same name gives the same counters.
    pub fn model(&self, name: &str) -> Metrics {
        let model = OfModel { model: name.to_owned() };
        let kind = |kind| self.tokens.get_or_create_owned(&OfKind { model: name.to_owned(), kind });
        let stage = |stage| self.stages.get_or_create_owned(&OfStage { model: name.to_owned(), stage });
        Metrics {
            queue: self.queue.get_or_create_owned(&model),
            workers: self.workers.get_or_create_owned(&model),
            panics: self.panics.get_or_create_owned(&model),
            batch_rows: self.batch_rows.get_or_create_owned(&model),
            row_tokens: kind("row"),
            padding_tokens: kind("padding"),
            stages: [Stage::Parse, Stage::Tokenize, Stage::Queue, Stage::Execute, Stage::Respond].map(stage),
            model: name.to_owned(),
            busy: self.busy.clone(),
            own: self.own.clone(),
        }
    }

    /// Those of one model that writes texts. The same name gives the same counters.
    pub fn texts(&self, name: &str) -> TextMetrics {
        let metrics = self.texts.of(name);
        self.vllm.add(name, &metrics);
        metrics
    }

    /// Counts a request.
    pub fn count(&self, protocol: &'static str, outcome: &'static str) {
        self.requests.get_or_create(&OfOutcome { protocol, outcome }).inc();
    }

    /// Takes over what an engine says of itself.
    pub fn observe(&self, name: &str, health: &Health) {
        let model = OfModel { model: name.to_owned() };
        let count = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        self.graphs.get_or_create(&model).set(count(health.built as u64));
        self.rechecks.get_or_create(&model).set(count(health.rechecks));
        self.mismatches.get_or_create(&model).set(count(health.mismatches));
        for (bucket, reason) in &health.eager {
            let labels = OfReason { model: name.to_owned(), bucket: bucket.to_string(), reason: reason.clone() };
            self.eager.get_or_create(&labels).set(1);
        }
    }

    /// All of them as Prometheus reads it.
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

/// The metrics of one model. Those of [`Default`] are counted and shown nowhere.
#[derive(Debug, Clone)]
pub struct Metrics {
    pub(super) queue: Gauge,
    pub(super) workers: Gauge,
    pub(super) panics: Counter,
    pub(super) batch_rows: Histogram,
    pub(super) row_tokens: Counter,
    pub(super) padding_tokens: Counter,
    stages: [Histogram; 5],
    model: String,
    busy: Family<OfDevice, Seconds>,
    own: Family<OfDevice, Seconds>,
}

/// The metrics of one device of a model.
#[derive(Debug)]
pub(super) struct DeviceMetrics {
    /// Seconds in which it had a batch.
    pub busy: Seconds,
    /// Seconds that its batches take it by themselves.
    pub own: Seconds,
}

impl Default for Metrics {
    fn default() -> Self {
        Registry::default().model("")
    }
}

impl Metrics {
    /// Those of the device with this number.
    pub(super) fn device(&self, device: usize) -> DeviceMetrics {
        let device = u32::try_from(device).unwrap_or(u32::MAX);
        let labels = OfDevice { model: self.model.clone(), device };
        let (busy, own) = (self.busy.get_or_create_owned(&labels), self.own.get_or_create_owned(&labels));
        DeviceMetrics { busy, own }
    }

    /// Adds the time of a stage.
    pub fn time(&self, stage: Stage, time: Duration) {
        self.stages[stage as usize].observe(time.as_secs_f64());
    }

    /// Runs `f` as a stage.
    pub fn timed<T>(&self, stage: Stage, f: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = f();
        self.time(stage, start.elapsed());
        result
    }
}
