//! The configuration of a T5 model, as in a checkpoint's `config.json`.

use candle::{bail, Result};
use opara_candle::ops::Activation;
use serde::Deserialize;

/// The feed-forward network: its non-linearity, and whether a second product gates it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FeedForwardProj {
    /// Rectified linear unit, no gate.
    Relu,
    /// Gaussian error linear unit by the hyperbolic tangent, gated.
    GatedGelu,
    /// `x * sigmoid(x)`, gated.
    GatedSilu,
}

impl FeedForwardProj {
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
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default)]
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

impl Config {
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
    pub(super) fn check(&self) -> Result<()> {
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
        Ok(())
    }
}
