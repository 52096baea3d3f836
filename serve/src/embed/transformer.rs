//! What sentence-transformers and transformers keep beside a transformer's weights of its tokenizer.

use std::path::Path;

use opara_weights::Unread;
use serde_json::{Map, Value};
use tokenizers::normalizers::BertNormalizer;
use tokenizers::TruncationDirection;

use super::file_fields::{read_json, FileFields};
use super::{text_end, Result};

/// Names of the module's configuration: earlier versions named it after the model.
const FILES: [&str; 7] = [
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
];

/// Arguments of loading that change no answer, or only its precision.
const HARMLESS_ARGUMENTS: &[&str] = &[
    "trust_remote_code",
    "torch_dtype",
    "dtype",
    "attn_implementation",
    "add_pooling_layer",
    "low_cpu_mem_usage",
    "device_map",
    "use_safetensors",
];

/// How texts become tokens beyond what `tokenizer.json` says.
#[derive(Debug, Clone)]
pub(super) struct TokenizerSettings {
    /// Tokens that a text may have, special ones included.
    pub limit: usize,
    /// Whether texts are put into lower case first.
    pub lower_case: bool,
    /// What takes the place of the normalizer of `tokenizer.json`.
    pub normalizer: Option<BertNormalizer>,
    /// On which side texts are cut that are too long; `None` leaves it to `tokenizer.json`.
    pub side: Option<TruncationDirection>,
    /// A token behind each text, which `tokenizer.json` may lack.
    pub end: Option<String>,
}

/// What a transformer does in a folder of sentence-transformers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TransformerTask {
    /// Its hidden states are pooled.
    Features,
    /// It gives logits of classes.
    Classes,
    /// It gives logits of the vocabulary.
    Words,
}

/// The tasks by name, with the output of the module and that of its model.
const TASKS: [(&str, &str, &str, TransformerTask); 3] = [
    ("feature-extraction", "token_embeddings", "last_hidden_state", TransformerTask::Features),
    ("sequence-classification", "scores", "logits", TransformerTask::Classes),
    ("fill-mask", "token_embeddings", "logits", TransformerTask::Words),
];

impl TransformerTask {
    /// That of the transformer in this folder.
    pub fn read(folder: &Path, unread: Unread) -> Result<Option<Self>> {
        let Some(fields) = fields(folder, unread)? else { return Ok(None) };
        let Some(name) = fields.take::<String>("transformer_task")? else { return Ok(None) };
        match TASKS.iter().find(|(known, ..)| *known == name) {
            Some(&(.., task)) => Ok(Some(task)),
            None => {
                let known = TASKS.map(|(name, ..)| name).join(", ");
                fields.report(&format!("`transformer_task` {name:?}"), &format!("{known} are")).map(|()| None)
            }
        }
    }
}

/// The fields of the module's configuration.
fn fields(folder: &Path, unread: Unread) -> Result<Option<FileFields>> {
    let mut read = FILES.iter().map(|name| FileFields::read(&folder.join(name), unread));
    Ok(read.find(|read| !matches!(read, Ok(None))).transpose()?.flatten())
}

/// What the module's configuration says.
#[derive(Default)]
struct ModuleConfig {
    limit: Option<usize>,
    lower_case: bool,
}

impl TokenizerSettings {
    /// Those of the transformer in this folder, which has so many positions.
    pub fn read(folder: &Path, positions: usize, unread: Unread) -> Result<Self> {
        let module = ModuleConfig::read(folder, unread)?;
        let path = folder.join("tokenizer_config.json");
        let tokenizer: Option<Map<String, Value>> = read_json(&path)?;
        let fields = FileFields::of(&path, tokenizer.clone().unwrap_or_default(), unread);
        let side = match fields.take::<String>("truncation_side")?.as_deref() {
            None => None,
            Some("left") => Some(TruncationDirection::Left),
            Some("right") => Some(TruncationDirection::Right),
            Some(side) => {
                return Err(fields.unsupported(&format!("`truncation_side` {side:?}"), "\"left\" and \"right\" are"))
            }
        };
        // The longest length may be written as 1e30.
        let longest = fields.take::<f64>("model_max_length")?.or(fields.take("max_len")?);
        let limit =
            module.limit.unwrap_or_else(|| longest.map_or(usize::MAX, |longest| longest as usize)).min(positions);
        if limit == 0 {
            return Err(fields.wrong("texts may have 0 tokens".into()));
        }
        let normalizer = if tokenizer.is_some() { normalizer(&fields)? } else { None };
        Ok(Self { limit, lower_case: module.lower_case, normalizer, side, end: text_end::read(&fields)? })
    }
}

/// transformers' tokenizer of BERTs has a normalizer of its own, whatever `tokenizer.json` says.
fn normalizer(fields: &FileFields) -> Result<Option<BertNormalizer>> {
    let class = fields.take::<String>("tokenizer_class")?;
    if !matches!(class.as_deref(), None | Some("BertTokenizer" | "BertTokenizerFast")) {
        return Ok(None);
    }
    let lower_case = fields.take("do_lower_case")?.unwrap_or(true);
    let chinese = fields.take("tokenize_chinese_chars")?.unwrap_or(true);
    Ok(Some(BertNormalizer::new(true, chinese, fields.take("strip_accents")?, lower_case)))
}

impl ModuleConfig {
    fn read(folder: &Path, unread: Unread) -> Result<Self> {
        let Some(fields) = fields(folder, unread)? else { return Ok(Self::default()) };
        let task = fields.take::<String>("transformer_task")?;
        let (_, module_output, model_output, _) =
            TASKS.iter().find(|(name, ..)| task.as_ref().is_some_and(|task| task == name)).unwrap_or(&TASKS[0]);
        fields.expect("module_output_name", module_output)?;
        let modalities = fields.object("modality_config")?;
        let text = modalities.object("text")?;
        text.expect("method", "forward")?;
        let is_known = |name: &Value| *name == *model_output || *name == serde_json::json!([model_output]);
        if let Some(name) = text.take::<Value>("method_output_name")?.filter(|name| !is_known(name)) {
            text.report(&format!("`method_output_name` {name}"), &format!("{model_output:?} is"))?;
        }
        text.finish(&[])?;
        modalities.finish(&[])?;
        let mut limit = fields.take("max_seq_length")?;
        for name in ["model_args", "model_kwargs", "config_args", "config_kwargs"] {
            fields.object(name)?.finish(HARMLESS_ARGUMENTS)?;
        }
        for name in ["tokenizer_args", "processor_kwargs"] {
            let arguments = fields.object(name)?;
            // It counts more than `max_seq_length`.
            limit = arguments.take("model_max_length")?.or(limit);
            arguments.finish(&["trust_remote_code", "use_fast"])?;
        }
        let lower_case = fields.take("do_lower_case")?.unwrap_or(false);
        // Whether batches are padded changes no answer.
        fields.finish(&["unpad_inputs"])?;
        Ok(Self { limit, lower_case })
    }
}
