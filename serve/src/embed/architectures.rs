//! Architectures by the `model_type` of a configuration.

mod bert;
mod chinese_clip;
mod clip;
mod deberta;
mod gte;
mod jina;
mod latents;
mod modernbert;
mod nomic;
mod nvembed;
mod qwen;
mod rotary;
mod siglip;
mod t5;
mod towers;

use std::collections::BTreeMap;
use std::sync::Arc;

use opara_weights::Unread;
use serde_json::Value;

use super::architecture::Architecture;
use super::{EmbedError, Result};

/// Reads a configuration.
type Reader = Arc<dyn Fn(&Value, Unread) -> Result<Architecture> + Send + Sync>;

/// The architectures that are known, by the `model_type` of a configuration. Those of [`Default`] are candle-transformers' modules,
/// unchanged, and this library's BERT for all that differ from it by names and tables; see [`Architecture`] for adding others.
#[derive(Clone)]
pub struct Architectures(BTreeMap<String, Reader>);

impl Default for Architectures {
    fn default() -> Self {
        Self(BTreeMap::new())
            .with("albert", bert::albert)
            .with("bert", |config, unread| match config.get("position_embedding_type").and_then(Value::as_str) {
                Some("alibi") => jina::read(config, unread),
                _ => bert::bert(config, unread),
            })
            .with("camembert", bert::roberta)
            .with("chinese_clip", chinese_clip::read)
            .with("clip", clip::read)
            .with("clip_text_model", clip::read)
            .with("deberta-v2", deberta::read)
            .with("distilbert", bert::distilbert)
            .with("electra", bert::electra)
            .with("gte", gte::gte)
            .with("modernbert", modernbert::read)
            .with("mt5", t5::mt5)
            .with("new", gte::new)
            .with("nomic_bert", nomic::read)
            .with("nvembed", nvembed::read)
            .with("qwen2", qwen::qwen2)
            .with("qwen3", qwen::qwen3)
            .with("roberta", bert::roberta)
            .with("siglip", siglip::read)
            .with("t5", t5::t5)
            .with("xlm-roberta", bert::roberta)
    }
}

impl Architectures {
    /// Adds an architecture, or takes the place of one.
    pub fn with(
        mut self,
        model_type: &str,
        read: impl Fn(&Value, Unread) -> Result<Architecture> + Send + Sync + 'static,
    ) -> Self {
        self.0.insert(model_type.to_owned(), Arc::new(read));
        self
    }

    /// The names that are known.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// BERT of this configuration.
    pub(super) fn bert(config: opara_models::bert::Config) -> Architecture {
        bert::of(config)
    }

    /// Whether an architecture has this name.
    pub fn has(&self, model_type: &str) -> bool {
        self.0.contains_key(model_type)
    }

    /// What a configuration describes; one without `model_type` is a BERT's. `model` is for errors.
    pub(super) fn read(&self, config: &Value, model: &str, unread: Unread) -> Result<Architecture> {
        let kind = config.get("model_type").and_then(Value::as_str).unwrap_or("bert");
        let read = self.0.get(kind).ok_or_else(|| EmbedError::Architecture {
            model: model.to_owned(),
            kind: kind.to_owned(),
            known: self.names().map(str::to_owned).collect(),
        })?;
        read(config, unread)
    }
}
