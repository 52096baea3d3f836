//! The fields of a configuration, with a record of those that were read.

use std::cell::RefCell;
use std::collections::BTreeSet;

use serde_json::Value;

use crate::quantization::{self, Quantization};
use crate::{Unread, WeightsError};

/// Fields of a model's configuration that its reader does not read.
#[derive(Debug, Clone, Copy)]
pub struct Harmless {
    /// Fields that change no answer, whatever they say.
    pub names: &'static [&'static str],
    /// Fields that change no answer where they have this value, in JSON.
    pub neutral: &'static [(&'static str, &'static str)],
}

/// Fields of every configuration that transformers writes. They concern training, files, and how texts are generated, which a
/// request says.
pub const TRANSFORMERS: Harmless = Harmless {
    names: &[
        // Of the files.
        "_attn_implementation",
        "_attn_implementation_autoset",
        "_attn_implementation_internal",
        "_commit_hash",
        "_flash_attn_2_enabled",
        "_name_or_path",
        "_pre_quantization_dtype",
        "architectures",
        "attn_implementation",
        "auto_map",
        "dtype",
        "model_type",
        "tokenizer_class",
        "torch_dtype",
        "transformers.js_config",
        "transformers_version",
        "unsloth_fixed",
        "unsloth_version",
        // Of training.
        "attention_dropout",
        "attention_probs_dropout_prob",
        "classifier_dropout",
        "dropout_rate",
        "embd_pdrop",
        "gradient_checkpointing",
        "hidden_dropout",
        "hidden_dropout_prob",
        "initializer_factor",
        "initializer_range",
        "resid_pdrop",
        // Of how it is computed.
        "chunk_size_feed_forward",
        "pretraining_tp",
        "tf_legacy_loss",
        "torchscript",
        "use_bfloat16",
        "use_cache",
        // Of what is returned, and of heads that are refused by the names of their tensors.
        "finetuning_task",
        "id2label",
        "label2id",
        "num_labels",
        "output_attentions",
        "output_hidden_states",
        "output_past",
        "problem_type",
        "return_dict",
        "task_specific_params",
        "use_return_dict",
        // Of generation.
        "bos_token_id",
        "cache_implementation",
        "decoder_start_token_id",
        "diversity_penalty",
        "do_sample",
        "early_stopping",
        "encoder_no_repeat_ngram_size",
        "eos_token_id",
        "length_penalty",
        "max_length",
        "max_new_tokens",
        "min_length",
        "no_repeat_ngram_size",
        "num_beam_groups",
        "num_beams",
        "num_return_sequences",
        "output_scores",
        "pad_token_id",
        "prefix",
        "remove_invalid_values",
        "repetition_penalty",
        "return_dict_in_generate",
        "sep_token_id",
        "temperature",
        "top_k",
        "top_p",
        "typical_p",
    ],
    neutral: &[
        ("add_cross_attention", "false"),
        ("cross_attention_hidden_size", "null"),
        ("is_encoder_decoder", "false"),
        ("pruned_heads", "{}"),
        ("pruned_heads", "[]"),
        ("tie_encoder_decoder", "false"),
    ],
};

/// The fields of a JSON object. A field that is null is absent.
///
/// ```
/// # use opara_weights::{Fields, Harmless, Unread};
/// let json = serde_json::json!({"layers": 3, "dropout": 0.1, "alibi": true});
/// let fields = Fields::of(&json);
/// assert_eq!(fields.needed("layers")?, 3);
/// let harmless = Harmless { names: &["dropout"], neutral: &[("alibi", "false")] };
/// let error = fields.check(&[harmless], Unread::Refuse).unwrap_err();
/// assert!(error.to_string().contains("`alibi` (true)"));
/// # Ok::<(), opara_weights::WeightsError>(())
/// ```
#[derive(Debug)]
pub struct Fields<'a> {
    json: &'a Value,
    /// The names of the objects that this one is inside of.
    within: String,
    read: RefCell<BTreeSet<String>>,
}

/// The largest number of things that a configuration may name: sizes up to this do not overflow when a few are multiplied.
const MOST: u64 = u32::MAX as u64;

impl<'a> Fields<'a> {
    /// The fields of a configuration.
    pub fn of(json: &'a Value) -> Self {
        Self { json, within: String::new(), read: RefCell::default() }
    }

    /// The fields of an object inside this one; `None` if there is no such field.
    ///
    /// # Errors
    /// A field that is not an object.
    pub fn inside(&self, name: &str) -> Result<Option<Self>, WeightsError> {
        let object = self.parsed(name, "an object", |value| value.is_object().then_some(value))?;
        let within = format!("{}{name}.", self.within);
        Ok(object.map(|json| Self { json, within, read: RefCell::default() }))
    }

    /// A field that is there and not null.
    pub fn get(&self, name: &str) -> Option<&'a Value> {
        self.read.borrow_mut().insert(name.to_owned());
        self.json.get(name).filter(|value| !value.is_null())
    }

    /// Whether a field is there, be it null.
    pub fn has(&self, name: &str) -> bool {
        self.json.get(name).is_some()
    }

    /// An error about a field.
    pub fn unsound(&self, name: &str, reason: impl std::fmt::Display) -> WeightsError {
        WeightsError::Config { reason: format!("`{}{name}` {reason}", self.within) }
    }

    /// A field, if there is one, as `parse` reads it; `kind` says in errors what it is to be.
    ///
    /// # Errors
    /// A value that `parse` does not take.
    pub fn parsed<T>(
        &self,
        name: &str,
        kind: &str,
        parse: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, WeightsError> {
        let wrong = |value: &Value| self.unsound(name, format!("is {}, not {kind}", short(value)));
        self.get(name).map(|value| parse(value).ok_or_else(|| wrong(value))).transpose()
    }

    /// A number of things, which is never none.
    ///
    /// # Errors
    /// Another value.
    pub fn count(&self, name: &str) -> Result<Option<usize>, WeightsError> {
        let count = self.parsed(name, "a number above 0", |value| value.as_u64().filter(|&n| n > 0))?;
        match count.filter(|&n| n > MOST) {
            Some(n) => Err(self.unsound(name, format!("is {n}: no model has more than {MOST}"))),
            None => Ok(count.map(|n| n as usize)),
        }
    }

    /// A number of things that must be given.
    ///
    /// # Errors
    /// A field that is missing, or another value.
    pub fn needed(&self, name: &str) -> Result<usize, WeightsError> {
        self.count(name)?.ok_or_else(|| self.unsound(name, "is missing"))
    }

    /// A number.
    ///
    /// # Errors
    /// Another value.
    pub fn number(&self, name: &str) -> Result<Option<f64>, WeightsError> {
        self.parsed(name, "a number", Value::as_f64)
    }

    /// A number between two others.
    ///
    /// # Errors
    /// Another value.
    pub fn number_in(&self, name: &str, range: std::ops::RangeInclusive<f64>) -> Result<Option<f64>, WeightsError> {
        let number = self.number(name)?;
        match number.filter(|number| !range.contains(number)) {
            Some(n) => {
                Err(self.unsound(name, format!("is {n}, not between {:e} and {:e}", range.start(), range.end())))
            }
            None => Ok(number),
        }
    }

    /// The number that norms add to a variance or a mean square.
    ///
    /// # Errors
    /// A number that is not positive, or that would drown what it is added to.
    pub fn epsilon(&self, name: &str) -> Result<Option<f64>, WeightsError> {
        self.number_in(name, 1e-30..=0.1)
    }

    /// True or false.
    ///
    /// # Errors
    /// Another value.
    pub fn flag(&self, name: &str) -> Result<Option<bool>, WeightsError> {
        self.parsed(name, "true or false", Value::as_bool)
    }

    /// A text.
    ///
    /// # Errors
    /// Another value.
    pub fn text(&self, name: &str) -> Result<Option<&'a str>, WeightsError> {
        self.parsed(name, "a text", Value::as_str)
    }

    /// A list of numbers.
    ///
    /// # Errors
    /// Another value.
    pub fn numbers(&self, name: &str) -> Result<Option<Vec<f64>>, WeightsError> {
        self.parsed(name, "a list of numbers", |value| value.as_array()?.iter().map(Value::as_f64).collect())
    }

    /// Tokens: one, or a list.
    ///
    /// # Errors
    /// Another value.
    pub fn tokens(&self, name: &str) -> Result<Vec<u32>, WeightsError> {
        let token = |value: &Value| value.as_u64().and_then(|token| u32::try_from(token).ok());
        let tokens = self.parsed(name, "a token or a list of tokens", |value| match value {
            Value::Array(tokens) => tokens.iter().map(token).collect::<Option<Vec<u32>>>(),
            one => Some(vec![token(one)?]),
        });
        Ok(tokens?.unwrap_or_default())
    }

    /// Refuses what was not read by now and is not harmless, and a quantization that is not known.
    ///
    /// # Errors
    /// [`WeightsError::UnreadFields`], [`WeightsError::Quantization`].
    pub fn check(&self, harmless: &[Harmless], unread: Unread) -> Result<(), WeightsError> {
        Quantization::of(self.json, unread)?;
        let read = self.read.borrow();
        let is_harmless = |name: &str, value: &Value| {
            let is_neutral = |(neutral, json): &(&str, &str)| *neutral == name && is_same(value, json);
            value.is_null()
                || read.contains(name)
                || quantization::NAMES.contains(&name)
                || harmless.iter().any(|known| known.names.contains(&name) || known.neutral.iter().any(is_neutral))
        };
        if self.json.is_null() {
            return Ok(());
        }
        let Some(object) = self.json.as_object() else {
            return Err(WeightsError::Config { reason: format!("{} is not an object", short(self.json)) });
        };
        let others = object.iter().filter(|(name, value)| !is_harmless(name, value));
        let fields: Vec<_> =
            others.map(|(name, value)| format!("`{}{name}` ({})", self.within, short(value))).collect();
        match fields.is_empty() {
            true => Ok(()),
            false => unread.report(WeightsError::UnreadFields { fields }),
        }
    }
}

/// The beginning of a value's JSON.
fn short(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}..", &text[..end]),
        None => text,
    }
}

/// Is a value what this JSON says? 1 is 1.0.
fn is_same(value: &Value, json: &str) -> bool {
    match value.as_f64() {
        Some(number) => json.parse() == Ok(number),
        None => serde_json::from_str::<Value>(json).is_ok_and(|other| other == *value),
    }
}
