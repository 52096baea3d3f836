//! The configuration of a T5 model, as in a checkpoint's `config.json`.

use candle::bail;
use opara_candle::ops::Activation;
use opara_weights::{Checkpoint, Fields, Harmless, Unread, WeightsError, TRANSFORMERS};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// The feed-forward network: its non-linearity, and whether a second product gates it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FeedForwardProj {
    /// Rectified linear unit, no gate.
    Relu,
    /// Gaussian error linear unit by the hyperbolic tangent, gated.
    GatedGelu,
    /// `x * sigmoid(x)`, gated.
    GatedSilu,
}

impl FeedForwardProj {
    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "relu" => Self::Relu,
            "gated-gelu" => Self::GatedGelu,
            "gated-silu" => Self::GatedSilu,
            _ => return None,
        })
    }

    /// What transformers calls the non-linearity, in `dense_act_fn`.
    fn activation(self) -> &'static str {
        match self {
            Self::Relu => "relu",
            Self::GatedGelu => "gelu_new",
            Self::GatedSilu => "silu",
        }
    }

    /// Does a second matmul gate the first?
    pub fn is_gated(self) -> bool {
        self != Self::Relu
    }
}

/// The non-linearity alone.
impl From<FeedForwardProj> for Activation {
    fn from(projection: FeedForwardProj) -> Self {
        match projection {
            FeedForwardProj::Relu => Self::Relu,
            FeedForwardProj::GatedGelu => Self::Gelu,
            FeedForwardProj::GatedSilu => Self::Silu,
        }
    }
}

/// The part of a checkpoint's `config.json` that inference needs. Defaults are T5-small's.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs, reason = "the names are the checkpoint's")]
pub struct Config {
    pub vocab_size: usize,
    pub d_model: usize,
    pub d_kv: usize,
    pub d_ff: usize,
    pub num_layers: usize,
    /// As many as the encoder has, if not given.
    pub num_decoder_layers: Option<usize>,
    pub num_heads: usize,
    pub relative_attention_num_buckets: usize,
    pub relative_attention_max_distance: usize,
    pub layer_norm_epsilon: f64,
    pub feed_forward_proj: FeedForwardProj,
    pub tie_word_embeddings: bool,
    /// The longest input and the longest output. The weights set no limit: a larger one costs `4 * n_positions²` bytes.
    pub n_positions: usize,
    pub pad_token_id: u32,
    pub eos_token_id: u32,
    /// `pad_token_id`, if not given.
    pub decoder_start_token_id: Option<u32>,
}

impl Default for Config {
    fn default() -> Self {
        Self::small()
    }
}

/// Fields that change no answer.
const HARMLESS: Harmless = Harmless {
    names: &["is_decoder"],
    neutral: &[("is_encoder_decoder", "true"), ("use_encoder_only_last_layer", "false")],
};

/// The longest text: a table of four bytes for every two positions is 1 GiB then.
const MOST_POSITIONS: usize = 1 << 14;

impl Config {
    /// Reads a checkpoint's `config.json`, as any version of transformers wrote it. Fields that are missing are T5-small's.
    ///
    /// # Errors
    /// Fields that are not sound, or not known.
    pub fn from_json(json: &Value, unread: Unread) -> Result<Self, WeightsError> {
        let fields = Fields::of(json)?;
        let kind = fields.text("model_type")?.unwrap_or("t5");
        if kind != "t5" && kind != "mt5" {
            let reason = format!("`model_type` is `{kind}`, whose layers differ: known are t5 and mt5");
            return Err(WeightsError::Config { reason });
        }
        // What transformers assumes of files without these fields.
        let small = match kind {
            "mt5" => Self::v1_1_small(),
            _ => Self::small(),
        };
        let size = |name, or: usize| Ok::<_, WeightsError>(fields.count(name)?.unwrap_or(or));
        let token = |name| Ok::<_, WeightsError>(fields.tokens(name)?.first().copied());
        let projection = "one of relu, gated-gelu, gated-silu";
        let projection =
            fields.parsed("feed_forward_proj", projection, |name| FeedForwardProj::named(name.as_str()?))?;
        let config = Self {
            vocab_size: size("vocab_size", small.vocab_size)?,
            d_model: size("d_model", small.d_model)?,
            d_kv: size("d_kv", small.d_kv)?,
            d_ff: size("d_ff", small.d_ff)?,
            num_layers: size("num_layers", small.num_layers)?,
            num_decoder_layers: fields.count("num_decoder_layers")?,
            num_heads: size("num_heads", small.num_heads)?,
            relative_attention_num_buckets: size(
                "relative_attention_num_buckets",
                small.relative_attention_num_buckets,
            )?,
            relative_attention_max_distance: size(
                "relative_attention_max_distance",
                small.relative_attention_max_distance,
            )?,
            layer_norm_epsilon: fields.epsilon("layer_norm_epsilon")?.unwrap_or(small.layer_norm_epsilon),
            feed_forward_proj: projection.unwrap_or(small.feed_forward_proj),
            tie_word_embeddings: fields.flag("tie_word_embeddings")?.unwrap_or(small.tie_word_embeddings),
            n_positions: size("n_positions", small.n_positions)?,
            pad_token_id: token("pad_token_id")?.unwrap_or(small.pad_token_id),
            eos_token_id: token("eos_token_id")?.unwrap_or(small.eos_token_id),
            decoder_start_token_id: token("decoder_start_token_id")?,
        };
        // What else is said of the feed-forward network and of the head must be the same.
        let activation = config.feed_forward_proj.activation();
        let differs =
            |name, value: String, should: String| fields.unsound(name, format!("is {value}, where {should} is known"));
        if let Some(other) = fields.text("dense_act_fn")?.filter(|name| *name != activation) {
            return Err(differs("dense_act_fn", other.into(), activation.into()));
        }
        let is_gated = config.feed_forward_proj.is_gated();
        if fields.flag("is_gated_act")?.is_some_and(|flag| flag != is_gated) {
            return Err(differs("is_gated_act", (!is_gated).to_string(), is_gated.to_string()));
        }
        let is_scaled = config.tie_word_embeddings;
        if fields.flag("scale_decoder_outputs")?.is_some_and(|flag| flag != is_scaled) {
            return Err(differs("scale_decoder_outputs", (!is_scaled).to_string(), is_scaled.to_string()));
        }
        fields.check(&[TRANSFORMERS, HARMLESS], unread)?;
        config.check().map_err(|error| WeightsError::Config { reason: error.to_string() })?;
        Ok(config)
    }

    /// Of a checkpoint's `config.json`. [`Checkpoint::allow_unread`] turns errors about unknown fields into warnings.
    ///
    /// # Errors
    /// Those of [`from_json`](Self::from_json), and a file that cannot be read.
    pub fn of_checkpoint(checkpoint: &Checkpoint) -> Result<Self, WeightsError> {
        Self::from_json(&checkpoint.config()?, checkpoint.unread())
    }

    fn sized(num_layers: usize, d_model: usize, num_heads: usize) -> Self {
        Self {
            vocab_size: 32128,
            d_model,
            d_kv: 64,
            d_ff: 4 * d_model,
            num_layers,
            num_decoder_layers: None,
            num_heads,
            relative_attention_num_buckets: 32,
            relative_attention_max_distance: 128,
            layer_norm_epsilon: 1e-6,
            feed_forward_proj: FeedForwardProj::Relu,
            tie_word_embeddings: true,
            n_positions: 512,
            pad_token_id: 0,
            eos_token_id: 1,
            decoder_start_token_id: None,
        }
    }

    /// T5-small.
    pub fn small() -> Self {
        Self::sized(6, 512, 8)
    }

    /// T5-base.
    pub fn base() -> Self {
        Self::sized(12, 768, 12)
    }

    /// T5-large.
    pub fn large() -> Self {
        Self::sized(24, 1024, 16)
    }

    /// T5 v1.1 small, and Flan-T5-small.
    pub fn v1_1_small() -> Self {
        Self {
            d_ff: 1024,
            feed_forward_proj: FeedForwardProj::GatedGelu,
            tie_word_embeddings: false,
            ..Self::sized(8, 512, 6)
        }
    }

    /// For tests: few buckets, so that short sequences reach them all.
    pub fn tiny() -> Self {
        Self {
            vocab_size: 60,
            d_kv: 8,
            relative_attention_num_buckets: 8,
            relative_attention_max_distance: 20,
            n_positions: 48,
            ..Self::sized(2, 32, 4)
        }
    }

    /// Layers of the decoder.
    pub fn decoder_layers(&self) -> usize {
        self.num_decoder_layers.unwrap_or(self.num_layers)
    }

    /// The token that an output starts after.
    pub fn start_token(&self) -> u32 {
        self.decoder_start_token_id.unwrap_or(self.pad_token_id)
    }

    /// Fails on numbers that no model can have.
    pub(super) fn check(&self) -> candle::Result<()> {
        let buckets = self.relative_attention_num_buckets;
        if buckets < 4 || !buckets.is_multiple_of(2) {
            bail!("relative_attention_num_buckets {buckets} is not even or less than 4");
        }
        if self.relative_attention_max_distance <= buckets / 2 {
            let distance = self.relative_attention_max_distance;
            bail!("relative_attention_max_distance {distance} leaves no room for {buckets} buckets");
        }
        for (name, value) in [("num_heads", self.num_heads), ("d_kv", self.d_kv), ("n_positions", self.n_positions)] {
            if value == 0 {
                bail!("{name} is 0");
            }
        }
        if self.n_positions > MOST_POSITIONS {
            bail!("n_positions {} is more than the {MOST_POSITIONS} that there is room for", self.n_positions);
        }
        Ok(())
    }
}

/// As [`Config::from_json`] reads it; unknown fields are refused.
impl<'de> Deserialize<'de> for Config {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let json = Value::deserialize(deserializer)?;
        Self::from_json(&json, Unread::Refuse).map_err(serde::de::Error::custom)
    }
}
