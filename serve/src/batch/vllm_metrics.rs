//! Metrics of texts by the names that vLLM gives them, which routers and dashboards read.

use std::collections::BTreeMap;
use std::fmt::Error;
use std::sync::Arc;

use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::gauge::ConstGauge;

use super::text_metrics::TextMetrics;

/// The metrics of all models that write texts, by name.
#[derive(Debug, Clone, Default)]
pub(super) struct VllmMetrics(Arc<Mutex<BTreeMap<String, TextMetrics>>>);

/// What a metric is of a model.
type Of = fn(&TextMetrics) -> Box<dyn EncodeMetric>;

const METRICS: [(&str, &str, Of); 9] = [
    ("vllm:num_requests_running", "Texts that are written", |of| Box::new(of.running.clone())),
    ("vllm:num_requests_waiting", "Texts that wait", |of| Box::new(of.waiting.clone())),
    ("vllm:kv_cache_usage_perc", "Pages of keys and values that texts have, as a fraction of all", |of| {
        Box::new(ConstGauge::new(of.held_pages.get() as f64 / of.pages.get().max(1) as f64))
    }),
    ("vllm:prompt_tokens", "Tokens of prompts", |of| Box::new(of.prompt.clone())),
    ("vllm:generation_tokens", "Tokens that were written", |of| Box::new(of.written.clone())),
    ("vllm:prefix_cache_queries", "Tokens of prompts that were looked for among those read before", |of| {
        Box::new(of.prompt.clone())
    }),
    ("vllm:prefix_cache_hits", "Tokens of prompts that had been read before", |of| Box::new(of.cached.clone())),
    ("vllm:time_to_first_token_seconds", "Seconds from a request to its first token", |of| Box::new(of.first.clone())),
    ("vllm:inter_token_latency_seconds", "Seconds between two tokens", |of| Box::new(of.between.clone())),
];

impl VllmMetrics {
    pub fn add(&self, name: &str, of: &TextMetrics) {
        self.0.lock().insert(name.to_owned(), of.clone());
    }
}

impl Collector for VllmMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), Error> {
        let models = self.0.lock();
        let Some(any) = models.values().next() else { return Ok(()) };
        for (name, help, of) in METRICS {
            let mut family = encoder.encode_descriptor(name, help, None, of(any).metric_type())?;
            for (model, metrics) in models.iter() {
                of(metrics).encode(family.encode_family(&[("model_name", model.as_str())])?)?;
            }
        }
        Ok(())
    }
}
