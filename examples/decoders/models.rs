//! The decoders, in published sizes.

use std::sync::Arc;

use anyhow::Result;
use candle::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::{
    gemma, gemma2, gemma3, glm4_new, llama, mistral, phi, phi3, qwen2, qwen3, smol::smollm3, starcoder2,
};
use opara_candle::{Builder, DecoderExecutor};
use serde::de::DeserializeOwned;
use serde_json::{json, Value};

use crate::gguf::Written;

/// A decoder.
pub struct Model {
    pub name: &'static str,
    /// Makes it with random weights.
    pub make: fn(DType, &Device) -> Result<Decode>,
}

/// The model, or its cache, with what adds tokens to it.
pub struct Decode {
    of: Box<dyn Cloned>,
    /// The file that it comes from, which this library's own decoder reads, too.
    pub file: Option<Written>,
}

/// Adds tokens, `(1, n)`, behind so many others, and gives logits.
pub type Text = Box<dyn FnMut(&Tensor, usize) -> candle::Result<Tensor>>;

/// Steps of any model.
pub type Fast = DecoderExecutor<Box<dyn Cloned>>;

/// A model that adds tokens to its text, and that can be cloned.
pub trait Cloned: Send + Sync {
    fn forward(&mut self, tokens: &Tensor, position: usize) -> candle::Result<Tensor>;
    fn cloned(&self) -> Box<dyn Cloned>;
}

impl Clone for Box<dyn Cloned> {
    fn clone(&self) -> Self {
        (**self).cloned()
    }
}

/// A model, or its cache, and its forward pass.
struct Of<M, F>(M, F);

impl<M, F> Cloned for Of<M, F>
where
    M: Clone + Send + Sync + 'static,
    F: Fn(&mut M, &Tensor, usize) -> candle::Result<Tensor> + Clone + Send + Sync + 'static,
{
    fn forward(&mut self, tokens: &Tensor, position: usize) -> candle::Result<Tensor> {
        self.1(&mut self.0, tokens, position)
    }

    fn cloned(&self) -> Box<dyn Cloned> {
        Box::new(Self(self.0.clone(), self.1.clone()))
    }
}

impl Decode {
    pub fn of<M, F>(model: M, forward: F) -> Result<Self>
    where
        M: Clone + Send + Sync + 'static,
        F: Fn(&mut M, &Tensor, usize) -> candle::Result<Tensor> + Clone + Send + Sync + 'static,
    {
        Ok(Self { of: Box::new(Of(model, forward)), file: None })
    }

    /// The same, of a file.
    pub fn with_file(self, file: Written) -> Self {
        Self { file: Some(file), ..self }
    }

    /// A text by the model itself.
    pub fn text(&self) -> Text {
        let mut model = self.of.clone();
        Box::new(move |tokens, position| model.forward(tokens, position))
    }

    /// Steps that are replayed.
    ///
    /// # Errors
    /// Those of the builder.
    pub fn executor(&self, builder: Builder, example: &Tensor, capacity: usize) -> opara_candle::Result<Fast> {
        builder.build_decoder(
            self.of.clone(),
            |model, tokens, position| model.forward(tokens, position),
            example,
            capacity,
        )
    }
}

fn config<C: DeserializeOwned>(json: Value) -> Result<C> {
    Ok(serde_json::from_value(json)?)
}

fn weights(dtype: DType, device: &Device) -> VarBuilder<'static> {
    opara_weights::seeded(0, dtype, device)
}

/// All of them.
pub const MODELS: &[Model] = &[
    Model {
        name: "qwen2-0.5b",
        make: |dtype, device| {
            let of: qwen2::Config = config(json!({
                "vocab_size": 151936, "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
                "num_attention_heads": 14, "num_key_value_heads": 2, "max_position_embeddings": 4096,
                "sliding_window": 4096, "max_window_layers": 24, "tie_word_embeddings": true,
                "rope_theta": 1000000.0, "rms_norm_eps": 1e-6, "use_sliding_window": false, "hidden_act": "silu"
            }))?;
            let model = qwen2::ModelForCausalLM::new(&of, weights(dtype, device))?;
            Decode::of(model, qwen2::ModelForCausalLM::forward)
        },
    },
    Model {
        name: "qwen3-0.6b",
        make: |dtype, device| {
            let of: qwen3::Config = config(json!({
                "vocab_size": 151936, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
                "num_attention_heads": 16, "head_dim": 128, "attention_bias": false, "num_key_value_heads": 8,
                "max_position_embeddings": 4096, "max_window_layers": 28, "tie_word_embeddings": true,
                "rope_theta": 1000000.0, "rms_norm_eps": 1e-6, "use_sliding_window": false, "hidden_act": "silu"
            }))?;
            let model = qwen3::ModelForCausalLM::new(&of, weights(dtype, device))?;
            Decode::of(model, qwen3::ModelForCausalLM::forward)
        },
    },
    Model {
        name: "smollm2-135m",
        make: |dtype, device| {
            let of: llama::LlamaConfig = config(json!({
                "hidden_size": 576, "intermediate_size": 1536, "vocab_size": 49152, "num_hidden_layers": 30,
                "num_attention_heads": 9, "num_key_value_heads": 3, "rms_norm_eps": 1e-5, "rope_theta": 100000.0,
                "max_position_embeddings": 4096, "tie_word_embeddings": true
            }))?;
            of_llama(of, dtype, device)
        },
    },
    Model {
        name: "llama3.2-1b",
        make: |dtype, device| {
            let of: llama::LlamaConfig = config(json!({
                "hidden_size": 2048, "intermediate_size": 8192, "vocab_size": 128256, "num_hidden_layers": 16,
                "num_attention_heads": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
                "max_position_embeddings": 4096, "tie_word_embeddings": true
            }))?;
            of_llama(of, dtype, device)
        },
    },
    Model {
        name: "mistral-4-layers",
        make: |dtype, device| {
            // Mistral 7B has 32 layers.
            let of: mistral::Config = config(json!({
                "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 4,
                "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_act": "silu", "max_position_embeddings": 4096,
                "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "sliding_window": 4096, "use_flash_attn": false
            }))?;
            Decode::of(mistral::Model::new(&of, weights(dtype, device))?, mistral::Model::forward)
        },
    },
    Model {
        name: "phi-1.5",
        make: |dtype, device| {
            let of: phi::Config = config(json!({
                "vocab_size": 51200, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 24,
                "num_attention_heads": 32, "hidden_act": "gelu_new", "max_position_embeddings": 2048,
                "layer_norm_eps": 1e-5, "tie_word_embeddings": false, "rope_theta": 10000.0,
                "partial_rotary_factor": 0.5, "qk_layernorm": false
            }))?;
            Decode::of(phi::Model::new(&of, weights(dtype, device))?, |model, tokens, _| model.forward(tokens))
        },
    },
    Model {
        name: "phi3-8-layers",
        make: |dtype, device| {
            // Phi-3 mini has 32 layers.
            let of: phi3::Config = config(json!({
                "vocab_size": 32064, "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 8,
                "num_attention_heads": 32, "num_key_value_heads": 32, "hidden_act": "silu",
                "max_position_embeddings": 4096, "original_max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
                "rope_theta": 10000.0, "tie_word_embeddings": false
            }))?;
            Decode::of(phi3::Model::new(&of, weights(dtype, device))?, phi3::Model::forward)
        },
    },
    Model {
        name: "gemma-2b",
        make: |dtype, device| {
            let of: gemma::Config = config(json!({
                "attention_bias": false, "head_dim": 256, "hidden_act": "gelu", "hidden_size": 2048,
                "intermediate_size": 16384, "num_attention_heads": 8, "num_hidden_layers": 18,
                "num_key_value_heads": 1, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "vocab_size": 256000,
                "max_position_embeddings": 4096
            }))?;
            Decode::of(gemma::Model::new(false, &of, weights(dtype, device))?, gemma::Model::forward)
        },
    },
    Model {
        name: "gemma2-4-layers",
        make: |dtype, device| {
            // Gemma 2 2B has 26 layers.
            let of: gemma2::Config = config(json!({
                "attention_bias": false, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 2304,
                "intermediate_size": 9216, "num_attention_heads": 8, "num_hidden_layers": 4, "num_key_value_heads": 4,
                "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "vocab_size": 256000, "final_logit_softcapping": 30.0,
                "attn_logit_softcapping": 50.0, "query_pre_attn_scalar": 256, "sliding_window": 4096,
                "max_position_embeddings": 4096
            }))?;
            Decode::of(gemma2::Model::new(false, &of, weights(dtype, device))?, gemma2::Model::forward)
        },
    },
    Model {
        name: "gemma3-270m",
        make: |dtype, device| {
            let of: gemma3::Config = config(json!({
                "attention_bias": false, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh",
                "hidden_size": 640, "intermediate_size": 2048, "num_attention_heads": 4, "num_hidden_layers": 18,
                "num_key_value_heads": 1, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
                "rope_local_base_freq": 10000.0, "vocab_size": 262144, "query_pre_attn_scalar": 256,
                "sliding_window": 512, "sliding_window_pattern": 6, "max_position_embeddings": 4096
            }))?;
            Decode::of(gemma3::Model::new(false, &of, weights(dtype, device))?, gemma3::Model::forward)
        },
    },
    Model {
        name: "smollm3-8-layers",
        make: |dtype, device| {
            // SmolLM3 3B has 36 layers.
            let of: smollm3::Config = config(json!({
                "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 8,
                "num_attention_heads": 16, "num_key_value_heads": 4, "max_position_embeddings": 4096,
                "tie_word_embeddings": true, "rope_theta": 5000000.0, "rms_norm_eps": 1e-6, "hidden_act": "silu",
                "no_rope_layer_interval": 4
            }))?;
            Decode::of(smollm3::ModelForCausalLM::new(&of, weights(dtype, device))?, smollm3::ModelForCausalLM::forward)
        },
    },
    Model {
        name: "glm4-4-layers",
        make: |dtype, device| {
            // GLM-4 9B has 40 layers.
            let of: glm4_new::Config = config(json!({
                "vocab_size": 151552, "hidden_size": 4096, "intermediate_size": 13696, "num_hidden_layers": 4,
                "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128, "partial_rotary_factor": 0.5,
                "attention_bias": true, "max_position_embeddings": 4096, "tie_word_embeddings": false,
                "rope_theta": 10000.0, "rms_norm_eps": 1e-5, "hidden_act": "silu"
            }))?;
            Decode::of(
                glm4_new::ModelForCausalLM::new(&of, weights(dtype, device))?,
                glm4_new::ModelForCausalLM::forward,
            )
        },
    },
    Model {
        name: "starcoder2-4-layers",
        make: |dtype, device| {
            // StarCoder2 3B has 30 layers.
            let of: starcoder2::Config = config(json!({
                "vocab_size": 49152, "hidden_size": 3072, "intermediate_size": 12288, "num_hidden_layers": 4,
                "num_attention_heads": 24, "num_key_value_heads": 2, "hidden_act": "gelu_pytorch_tanh",
                "max_position_embeddings": 4096, "norm_epsilon": 1e-5, "rope_theta": 999999.0, "use_bias": true,
                "sliding_window": 4096
            }))?;
            Decode::of(starcoder2::Model::new(&of, weights(dtype, device))?, starcoder2::Model::forward)
        },
    },
];

fn of_llama(of: llama::LlamaConfig, dtype: DType, device: &Device) -> Result<Decode> {
    let of = of.into_config(false);
    let model = Arc::new(llama::Llama::load(weights(dtype, device), &of)?);
    let cache = llama::Cache::new(true, dtype, &of, device)?;
    Decode::of(cache, move |cache, tokens, position| model.forward(tokens, position, cache))
}
