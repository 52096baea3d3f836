//! What a checkpoint's answers are.

use std::path::Path;

use opara_weights::Unread;
use serde_json::Value;

use super::architecture::Architecture;
use super::modules::{self, Entry, Modules};
use super::prompts::{Prompts, SentenceConfig};
use super::splade::Splade;
use super::transformer::TransformerTask;
use super::{Architectures, EmbedError, Labels, PoolingMode, Result};

/// Ends of the names of architectures whose encoder gives a vector a token. Their heads are left out.
const ENCODERS: [&str; 5] =
    ["Model", "ModelWithProjection", "ForMaskedLM", "ForPreTraining", "ForNextSentencePrediction"];

/// Ends of the names of those that write texts or name each token. Where a list of modules says so their hidden states are pooled.
const LISTED: [&str; 3] = ["ForCausalLM", "ForConditionalGeneration", NAMES_TOKENS];

/// The end of the names of those that name each token.
const NAMES_TOKENS: &str = "ForTokenClassification";

/// What the tensors are called that name each token, in transformers' encoders and in its decoders.
const NAMING: [&str; 2] = ["classifier.", "score."];

/// Ends of the names of classifiers.
const CLASSIFIERS: &str = "ForSequenceClassification";

/// What a text model's answers are.
pub(super) enum Task {
    Vectors(Modules),
    Classes(Labels),
    Words(Splade),
}

/// A folder, and what was read of it.
pub(super) struct Folder<'a> {
    pub path: &'a Path,
    /// Where its transformer is.
    pub transformer: &'a Path,
    pub list: Option<&'a [Entry]>,
    /// The transformer's configuration.
    pub config: &'a Value,
    pub unread: Unread,
}

/// Is this the configuration of an encoder of texts, in a folder without a list of modules? One that writes texts is none.
pub fn is_encoder(config: &Value, known: &Architectures) -> bool {
    let kind = config.get("model_type").and_then(Value::as_str).unwrap_or("bert");
    let writes = match architectures(config).next() {
        Some(_) => architectures(config).any(|name| name.ends_with("ForCausalLM")),
        None => known.read(config, "", Unread::Warn).is_ok_and(|found| found.pooling == PoolingMode::LastToken),
    };
    known.has(kind) && !writes
}

fn has_classes(config: &Value) -> bool {
    architectures(config).any(|name| name.ends_with(CLASSIFIERS))
}

fn architectures(config: &Value) -> impl Iterator<Item = &str> {
    config.get("architectures").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
}

impl Folder<'_> {
    /// What the answers are of the model in this folder, and the texts before those that it reads.
    pub fn task(&self, architecture: &Architecture) -> Result<(Task, Prompts)> {
        let Self { path, transformer, list, config, unread } = *self;
        let sizes = architecture.sizes;
        let splade = list.map_or(Ok(None), |list| modules::splade(list, sizes.vocabulary, unread))?;
        let of_transformer = if list.is_some() { TransformerTask::read(transformer, unread)? } else { None };
        match (splade, of_transformer, list) {
            (Some(splade), ..) if !architecture.vocabulary_head.is_empty() => {
                self.check(|name| name.ends_with("ForMaskedLM"))?;
                Ok((Task::Words(splade), SentenceConfig::read(path, "SparseEncoder", unread)?.prompts))
            }
            (None, Some(TransformerTask::Classes), _) | (None, None, None) if self.has_classes(architecture)? => {
                let SentenceConfig { prompts, activation, .. } = SentenceConfig::read(path, "CrossEncoder", unread)?;
                Ok((Task::Classes(Labels::read(config, activation.as_deref())?), prompts))
            }
            (None, None | Some(TransformerTask::Features), _) => {
                let is_listed = |name: &str| list.is_some() && LISTED.iter().any(|end| name.ends_with(end));
                let is_encoder =
                    |name: &str| ENCODERS.iter().any(|end| name.ends_with(end)) && !name.ends_with("LMHeadModel");
                self.check(|name| is_encoder(name) || is_listed(name))?;
                let vectors = (sizes.width, architecture.pooling);
                let mut modules = match list {
                    Some(list) => Modules::of(path, list, vectors, unread)?,
                    None => Modules::unlisted(path, vectors, unread)?,
                };
                let SentenceConfig { prompts, truncate, .. } =
                    SentenceConfig::read(path, "SentenceTransformer", unread)?;
                truncate.into_iter().for_each(|width| modules.truncate(width));
                Ok((Task::Vectors(modules), prompts))
            }
            _ => Err(EmbedError::NoHead { model: path.display().to_string() }),
        }
    }

    /// Whether it is a classifier. One of an architecture that has no classifier here is refused.
    fn has_classes(&self, architecture: &Architecture) -> Result<bool> {
        match (has_classes(self.config), &architecture.classifier) {
            (true, None) => Err(EmbedError::NoHead { model: self.path.display().to_string() }),
            (has_classes, _) => Ok(has_classes),
        }
    }

    /// Beginnings of the names of tensors that the encoder of this checkpoint leaves out, whatever its architecture is.
    pub fn left_out(&self) -> &'static [&'static str] {
        match architectures(self.config).any(|name| name.ends_with(NAMES_TOKENS)) {
            true => &NAMING,
            false => &[],
        }
    }

    fn check(&self, is_known: impl Fn(&str) -> bool) -> Result<()> {
        match architectures(self.config).find(|name| !is_known(name)) {
            Some(name) => {
                Err(EmbedError::Head { model: self.path.display().to_string(), architecture: name.to_owned() })
            }
            None => Ok(()),
        }
    }
}
