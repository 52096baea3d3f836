//! The contents of a checkpoint's `config.json`.

use opara_candle::ops::Activation;
use serde::Deserialize;

/// The non-linearity of the feed-forward network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HiddenAct {
    /// Gaussian error linear unit with the error function.
    Gelu,
    /// Gaussian error linear unit with the tanh approximation.
    #[serde(alias = "gelu_pytorch_tanh")]
    GeluNew,
    /// Rectified linear unit.
    Relu,
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
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[allow(missing_docs, reason = "the names are the checkpoint's")]
pub struct Config {
    pub vocab_size: usize,
    pub hidden_size: usize,
    pub num_hidden_layers: usize,
    pub num_attention_heads: usize,
    pub intermediate_size: usize,
    pub hidden_act: HiddenAct,
    pub max_position_embeddings: usize,
    pub type_vocab_size: usize,
    pub layer_norm_eps: f64,
}

impl Config {
    fn sized(num_hidden_layers: usize, hidden_size: usize, num_attention_heads: usize) -> Self {
        Self {
            vocab_size: 30522,
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
