//! The contents of a checkpoint's `config.json`.

use opara_candle::ops::Activation;
use opara_weights::{Checkpoint, Fields, Harmless, Unread, WeightsError, TRANSFORMERS};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// The non-linearity of the feed-forward network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HiddenAct {
    /// Gaussian error linear unit with the error function.
    Gelu,
    /// Gaussian error linear unit with the tanh approximation.
    GeluNew,
    /// Rectified linear unit.
    Relu,
}

impl HiddenAct {
    /// The function of this name in a configuration, if it is implemented.
    pub fn named(name: &str) -> Option<Self> {
        Some(match name {
            "gelu" => Self::Gelu,
            "gelu_new" | "gelu_pytorch_tanh" => Self::GeluNew,
            "relu" => Self::Relu,
            _ => return None,
        })
    }
}

impl From<HiddenAct> for Activation {
    fn from(act: HiddenAct) -> Self {
        match act {
            HiddenAct::Gelu => Self::GeluErf,
            HiddenAct::GeluNew => Self::Gelu,
            HiddenAct::Relu => Self::Relu,
        }
    }
}

/// The fields of a checkpoint's `config.json` that inference needs.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs, reason = "the names are the checkpoint's")]
pub struct Config {
    pub vocab_size: usize,
    /// Elements of the tables' rows; a product makes `hidden_size` of them where that is another number.
    pub embedding_size: usize,
    pub hidden_size: usize,
    pub num_hidden_layers: usize,
    pub num_attention_heads: usize,
    pub intermediate_size: usize,
    pub hidden_act: HiddenAct,
    pub max_position_embeddings: usize,
    pub type_vocab_size: usize,
    pub layer_norm_eps: f64,
}

/// Fields of BERT's configurations that change no answer of the encoder.
const HARMLESS: Harmless = Harmless {
    names: &[
        // Of the pooler, and of the heads for training.
        "pooler_fc_size",
        "pooler_num_attention_heads",
        "pooler_num_fc_layers",
        "pooler_size_per_head",
        "pooler_type",
        "sentence_transformers",
        "sbert_ce_default_activation_function",
        // transformers takes the positions from their embeddings.
        "max_seq_length",
    ],
    neutral: &[
        ("directionality", "\"bidi\""),
        ("is_decoder", "false"),
        ("position_embedding_type", "\"absolute\""),
        ("tie_word_embeddings", "true"),
        ("tie_word_embeddings", "false"),
    ],
};

impl Config {
    /// Reads a checkpoint's `config.json`, as any version of transformers and Google's first release wrote it.
    ///
    /// # Errors
    /// Fields that are missing, not sound, or not known.
    pub fn from_json(json: &Value, unread: Unread) -> Result<Self, WeightsError> {
        let fields = Fields::of(json)?;
        if let Some(kind) = fields.text("model_type")?.filter(|kind| *kind != "bert") {
            let reason = format!("`model_type` is `{kind}`, whose layers differ: known is bert");
            return Err(WeightsError::Config { reason });
        }
        let act = fields.parsed("hidden_act", "one of gelu, gelu_new, relu", |act| HiddenAct::named(act.as_str()?))?;
        let hidden_size = fields.needed("hidden_size")?;
        let config = Self {
            vocab_size: fields.needed("vocab_size")?,
            embedding_size: hidden_size,
            hidden_size,
            num_hidden_layers: fields.needed("num_hidden_layers")?,
            num_attention_heads: fields.needed("num_attention_heads")?,
            intermediate_size: fields.needed("intermediate_size")?,
            hidden_act: act.unwrap_or(HiddenAct::Gelu),
            max_position_embeddings: fields.needed("max_position_embeddings")?,
            type_vocab_size: fields.count("type_vocab_size")?.unwrap_or(2),
            // Files before 2019 do not have it.
            layer_norm_eps: fields.epsilon("layer_norm_eps")?.unwrap_or(1e-12),
        };
        fields.check(&[TRANSFORMERS, HARMLESS], unread)?;
        Ok(config)
    }

    /// Of a checkpoint's `config.json`. [`Checkpoint::allow_unread`] turns errors about unknown fields into warnings.
    ///
    /// # Errors
    /// Those of [`from_json`](Self::from_json), and a file that cannot be read.
    pub fn of_checkpoint(checkpoint: &Checkpoint) -> Result<Self, WeightsError> {
        Self::from_json(&checkpoint.config()?, checkpoint.unread())
    }

    fn sized(num_hidden_layers: usize, hidden_size: usize, num_attention_heads: usize) -> Self {
        Self {
            vocab_size: 30522,
            embedding_size: hidden_size,
            hidden_size,
            num_hidden_layers,
            num_attention_heads,
            intermediate_size: 4 * hidden_size,
            hidden_act: HiddenAct::Gelu,
            max_position_embeddings: 512,
            type_vocab_size: 2,
            layer_norm_eps: 1e-12,
        }
    }

    /// BERT-base.
    pub fn base() -> Self {
        Self::sized(12, 768, 12)
    }

    /// BERT-large.
    pub fn large() -> Self {
        Self::sized(24, 1024, 16)
    }

    /// all-MiniLM-L6-v2, a sentence encoder.
    pub fn mini_lm() -> Self {
        Self::sized(6, 384, 12)
    }

    /// A small model for tests.
    pub fn tiny() -> Self {
        Self { vocab_size: 100, max_position_embeddings: 64, ..Self::sized(2, 32, 4) }
    }
}

/// As [`Config::from_json`] reads it; unknown fields are refused.
impl<'de> Deserialize<'de> for Config {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let json = Value::deserialize(deserializer)?;
        Self::from_json(&json, Unread::Refuse).map_err(serde::de::Error::custom)
    }
}
