//! candle-transformers' decoders, in small sizes.

use std::sync::Arc;

use candle::{DType, Result, Tensor, D};
use candle_nn::VarBuilder;
use candle_transformers::models::{
    bigcode, codegeex4_9b, deepseek2, falcon, gemma, gemma2, gemma3, gemma4, glm4, glm4_new, granite, granitemoehybrid,
    helium, lfm2, llama, llama2_c, mamba, mamba2, mistral, mixformer, mixtral, olmo, olmo2, phi, phi3, qwen2,
    qwen2_moe, qwen3, recurrent_gemma, rwkv_v5, rwkv_v6, rwkv_v7, smol::smollm3, stable_lm, starcoder2,
    voxtral::voxtral_llama,
};
use serde::de::DeserializeOwned;
use serde_json::{json, Value};

use super::texts::{cloned, made, Beside, Make, Text};

pub const HIDDEN: usize = 128;
pub const VOCABULARY: usize = 320;

/// A decoder.
pub struct Model {
    pub name: &'static str,
    pub make: Make,
    /// Those that it runs in.
    pub dtypes: &'static [DType],
    /// How far logits may be from the module's in f32.
    pub tolerance: f32,
    /// A part of the reason why its steps are not replayed, if they are not.
    pub refused: Option<&'static str>,
}

const BOTH: &[DType] = &[DType::F32, DType::F16];
pub const F32: &[DType] = &[DType::F32];

pub const fn of(name: &'static str, make: Make) -> Model {
    Model { name, make, dtypes: BOTH, tolerance: 1e-4, refused: None }
}

pub fn config<C: DeserializeOwned>(json: Value) -> Result<C> {
    serde_json::from_value(json).map_err(candle::Error::wrap)
}

/// What most configurations have, and these fields.
pub fn usual<C: DeserializeOwned>(other: Value) -> Result<C> {
    let mut all = json!({
        "vocab_size": VOCABULARY, "hidden_size": HIDDEN, "intermediate_size": 256, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 128,
        "rms_norm_eps": 1e-6, "layer_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
        "attention_bias": false, "tie_word_embeddings": false, "use_flash_attn": false
    });
    let (Value::Object(all_fields), Value::Object(other)) = (&mut all, other) else { candle::bail!("no fields") };
    all_fields.extend(other);
    config(all)
}

/// The decoders.
pub const MODELS: &[Model] = &[
    of("llama", |w| {
        let of: llama::LlamaConfig = usual(json!({}))?;
        let of = of.into_config(false);
        let cache = llama::Cache::new(true, w.dtype(), &of, w.device())?;
        let model = Arc::new(llama::Llama::load(w.clone(), &of)?);
        cloned(Beside { model, cache }, |text, tokens, at| text.model.forward(tokens, at, &mut text.cache))
    }),
    of("qwen2", |w| {
        cloned(qwen2::ModelForCausalLM::new(&qwen2_config(json!({}))?, w.clone())?, |m, x, at| m.forward(x, at))
    }),
    of("qwen3", |w| {
        cloned(qwen3::ModelForCausalLM::new(&qwen2_config(json!({}))?, w.clone())?, |m, x, at| m.forward(x, at))
    }),
    of("mistral", |w| {
        cloned(mistral::Model::new(&usual(json!({"sliding_window": 4096}))?, w.clone())?, |m, x, at| m.forward(x, at))
    }),
    Model {
        dtypes: F32,
        ..of("phi", |w| {
            let of = usual(json!({"hidden_act": "gelu_new", "partial_rotary_factor": 0.5, "qk_layernorm": false}))?;
            cloned(phi::Model::new(&of, w.clone())?, |m, x, _| m.forward(x))
        })
    },
    of("phi3", |w| {
        let of = usual(json!({"original_max_position_embeddings": 128}))?;
        cloned(phi3::Model::new(&of, w.clone())?, |m, x, at| m.forward(x, at))
    }),
    of("mixformer", |w| {
        let of = config(mixformer_config())?;
        cloned(mixformer::MixFormerSequentialForCausalLM::new_v2(&of, w.clone())?, |m, x, _| m.forward(x))
    }),
    of("mixformer-1", |w| {
        let of = config(mixformer_config())?;
        cloned(mixformer::MixFormerSequentialForCausalLM::new(&of, w.clone())?, |m, x, _| m.forward(x))
    }),
    of("gemma", |w| {
        let of = usual(json!({"hidden_act": "gelu", "num_key_value_heads": 1}))?;
        cloned(gemma::Model::new(false, &of, w.clone())?, |m, x, at| m.forward(x, at))
    }),
    of("gemma2", |w| {
        let of = usual(json!({
            "hidden_activation": "gelu_pytorch_tanh", "final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0,
            "query_pre_attn_scalar": 32, "sliding_window": 4096
        }))?;
        cloned(gemma2::Model::new(false, &of, w.clone())?, |m, x, at| m.forward(x, at))
    }),
    of("gemma3", |w| {
        let of = usual(json!({
            "hidden_activation": "gelu_pytorch_tanh", "num_key_value_heads": 1, "rope_local_base_freq": 10000.0,
            "query_pre_attn_scalar": 32, "sliding_window": 24, "sliding_window_pattern": 2
        }))?;
        cloned(gemma3::Model::new(false, &of, w.clone())?, |m, x, at| m.forward(x, at))
    }),
    of("gemma4", |w| gemma4_text(w, 24)),
    of("gemma4-wide", |w| gemma4_text(w, 4096)),
    of("starcoder2", |w| {
        let of = usual(json!({"hidden_act": "gelu_pytorch_tanh", "norm_epsilon": 1e-5, "use_bias": true}))?;
        cloned(starcoder2::Model::new(&of, w.clone())?, |m, x, at| m.forward(x, at))
    }),
    of("stable_lm", |w| {
        let of = usual(json!({"partial_rotary_factor": 0.25, "use_cache": true, "use_qkv_bias": true}))?;
        made(stable_lm::Model::new(&of, w.clone())?, |m, x, at| m.forward(x, at))
    }),
    of("smollm3", |w| {
        let of = usual(json!({"no_rope_layer_interval": 2}))?;
        cloned(smollm3::ModelForCausalLM::new(&of, w.clone())?, |m, x, at| m.forward(x, at))
    }),
    of("olmo", |w| {
        cloned(olmo::Model::new(&usual(json!({"clip_qkv": 8.0}))?, w.clone())?, |m, x, at| m.forward(x, at))
    }),
    of("olmo2", |w| cloned(olmo2::Model::new(&usual(json!({}))?, w.clone())?, |m, x, at| m.forward(x, at))),
    of("granite", |w| {
        let of: granite::GraniteConfig = usual(json!({}))?;
        let of = of.into_config(false);
        let cache = granite::Cache::new(true, w.dtype(), &of, w.device())?;
        let model = Arc::new(granite::Granite::load(w.clone(), &of)?);
        cloned(Beside { model, cache }, |text, tokens, at| text.model.forward(tokens, at, &mut text.cache))
    }),
    of("granitemoehybrid", |w| {
        let of: granitemoehybrid::GraniteMoeHybridConfig = usual(json!({"layer_types": ["attention", "attention"]}))?;
        let of = of.into_config(false);
        let cache = granitemoehybrid::GraniteMoeHybridCache::new(true, w.dtype(), &of, w.device())?;
        let model = Arc::new(granitemoehybrid::GraniteMoeHybrid::load(w.clone(), &of)?);
        cloned(Beside { model, cache }, |text, tokens, at| text.model.forward(tokens, at, &mut text.cache))
    }),
    of("helium", |w| {
        let of = usual(json!({"bos_token_id": 1, "eos_token_id": 2, "mlp_bias": false}))?;
        cloned(helium::Model::new(&of, w.clone())?, |m, x, at| m.forward(x, at))
    }),
    of("glm4_new", |w| {
        let of = usual(json!({"partial_rotary_factor": 0.5, "attention_bias": true}))?;
        cloned(glm4_new::ModelForCausalLM::new(&of, w.clone())?, |m, x, at| m.forward(x, at))
    }),
    of("glm4", |w| cloned(glm4::Model::new(&config(glm())?, w.clone())?, |m, x, _| m.forward(x))),
    of("codegeex4", |w| cloned(codegeex4_9b::Model::new(&config(glm())?, w.clone())?, |m, x, _| m.forward(x))),
    of("falcon", falcon_model),
    Model {
        dtypes: F32,
        ..of("bigcode", |w| {
            let of = bigcode::Config {
                vocab_size: VOCABULARY,
                max_position_embeddings: 128,
                num_hidden_layers: 2,
                hidden_size: HIDDEN,
                layer_norm_epsilon: 1e-5,
                n_inner: Some(256),
                num_attention_heads: 4,
                multi_query: true,
                use_cache: true,
            };
            made(bigcode::GPTBigCode::load(w.clone(), of)?, |m, x, at| m.forward(x, at))
        })
    },
    Model {
        dtypes: F32,
        ..of("llama2_c", |w| {
            let of = llama2_c_config();
            let cache = llama2_c::Cache::new(true, &of, w.pp("rot"))?;
            let model = Arc::new(llama2_c::Llama::load(w.clone(), of)?);
            cloned(Beside { model, cache }, |text, tokens, at| text.model.forward(tokens, at, &mut text.cache))
        })
    },
    of("lfm2", |w| {
        let of: lfm2::Lfm2Config = usual(json!({"layer_types": ["conv", "full_attention"], "block_multiple_of": 64}))?;
        let of = of.into_config(false);
        let cache = lfm2::Cache::new(true, w.dtype(), &of, w.device())?;
        let model = Arc::new(lfm2::Model::new(&of, w.clone())?);
        cloned(Beside { model, cache }, |text, tokens, at| text.model.forward(tokens, at, &mut text.cache))
    }),
    of("mamba", |w| {
        let of: mamba::Config = config(json!({
            "d_model": HIDDEN, "n_layer": 2, "vocab_size": VOCABULARY, "pad_vocab_size_multiple": 8
        }))?;
        let cache = Kept(mamba::State::new(1, &of, w.dtype(), w.device())?, |of| mamba::State {
            hs: of.hs.clone(),
            prev_xs: of.prev_xs.clone(),
            pos: of.pos,
        });
        let model = Arc::new(mamba::Model::new(&of, w.clone())?);
        cloned(Beside { model, cache }, |text, x, _| {
            each(x, |x| text.model.forward(&x.flatten_all()?, &mut text.cache.0))
        })
    }),
    of("mamba2", |w| {
        let of: mamba2::Config = config(json!({
            "d_model": HIDDEN, "n_layer": 2, "vocab_size": VOCABULARY, "d_state": 32, "headdim": 32
        }))?;
        let cache = Kept(mamba2::State::new(1, &of, w.dtype(), w.device())?, |of| mamba2::State {
            hs: of.hs.clone(),
            conv_states: of.conv_states.clone(),
            pos: of.pos,
        });
        let model = Arc::new(mamba2::Model::new(&of, w.clone())?);
        cloned(Beside { model, cache }, |text, x, _| {
            each(x, |x| text.model.forward(&x.flatten_all()?, &mut text.cache.0))
        })
    }),
    Model {
        dtypes: F32,
        ..of("rwkv_v5", |w| {
            rwkv_text(w, rwkv_v5::Model::new(&config(rwkv_config())?, w.clone())?, |model, x, state| {
                model.forward(x, state)
            })
        })
    },
    Model {
        dtypes: F32,
        ..of("rwkv_v6", |w| {
            rwkv_text(w, rwkv_v6::Model::new(&config(rwkv_config())?, w.clone())?, |model, x, state| {
                model.forward(x, state)
            })
        })
    },
    Model {
        dtypes: F32,
        ..of("rwkv_v7", |w| {
            let of: rwkv_v7::Config = config(json!({
                "version": "V7", "vocab_size": VOCABULARY, "hidden_size": HIDDEN, "num_hidden_layers": 2, "head_size": 32,
                "intermediate_size": 256
            }))?;
            let cache = Kept(rwkv_v7::State::new(&of, w.device())?, |of| rwkv_v7::State {
                per_layer: (of.per_layer.iter())
                    .map(|of| rwkv_v7::StatePerLayer {
                        att_x_prev: of.att_x_prev.clone(),
                        att_kv: of.att_kv.clone(),
                        ffn_x_prev: of.ffn_x_prev.clone(),
                    })
                    .collect(),
                dea: None,
                pos: of.pos,
            });
            let model = Arc::new(rwkv_v7::Model::new(&of, w.clone())?);
            cloned(Beside { model, cache }, |text, x, _| each(x, |x| text.model.forward(&x, &mut text.cache.0, &[])))
        })
    },
    of("recurrent_gemma", |w| {
        cloned(recurrent_gemma::Model::new(&usual(recurrent_gemma_config())?, w.clone())?, |m, x, at| m.forward(x, at))
    }),
    of("voxtral_llama", |w| {
        let of = voxtral_llama::VoxtralLlamaConfig {
            hidden_size: HIDDEN,
            intermediate_size: 256,
            vocab_size: VOCABULARY,
            num_hidden_layers: 2,
            num_attention_heads: 4,
            num_key_value_heads: 2,
            head_dim: Some(32),
            use_flash_attn: false,
            rms_norm_eps: 1e-5,
            rope_theta: 1e4,
            max_position_embeddings: 128,
            tie_word_embeddings: false,
        };
        let cache = voxtral_llama::VoxtralLlamaCache::new(true, w.dtype(), &of, w.device())?;
        let model = Arc::new(voxtral_llama::VoxtralLlama::load(w.clone(), &of)?);
        cloned(Beside { model, cache }, |text, tokens, at| text.model.forward(tokens, at, &mut text.cache))
    }),
    of("deepseek2", |w| {
        let of = usual(json!({
            "moe_intermediate_size": 64, "num_key_value_heads": 4, "qk_rope_head_dim": 16, "kv_lora_rank": 32,
            "v_head_dim": 24, "qk_nope_head_dim": 32, "n_group": 1, "topk_group": 1, "topk_method": "greedy",
            "n_routed_experts": null, "scoring_func": "softmax"
        }))?;
        made(deepseek2::DeepSeekV2::new(&of, w.clone())?, |m, x, at| m.forward(x, at))
    }),
    Model {
        refused: Some("back to the host"),
        ..of("qwen2_moe", |w| {
            cloned(qwen2_moe::Model::new(&qwen2_config(moe())?, w.clone())?, |m, x, at| m.forward(x, at))
        })
    },
    Model {
        dtypes: F32,
        refused: Some("back to the host"),
        ..of("mixtral", |w| {
            let of = usual(json!({"sliding_window": 4096, "num_experts_per_tok": 2, "num_local_experts": 4}))?;
            cloned(mixtral::Model::new(&of, w.clone())?, |m, x, at| m.forward(x, at))
        })
    },
];

fn qwen2_config<C: DeserializeOwned>(other: Value) -> Result<C> {
    let mut all = json!({"sliding_window": 128, "max_window_layers": 2, "use_sliding_window": false});
    let (Value::Object(fields), Value::Object(other)) = (&mut all, other) else { candle::bail!("no fields") };
    fields.extend(other);
    usual(all)
}

fn moe() -> Value {
    json!({
        "decoder_sparse_step": 1, "moe_intermediate_size": 64, "shared_expert_intermediate_size": 64,
        "num_experts_per_tok": 2, "num_experts": 4, "norm_topk_prob": true
    })
}

fn glm() -> Value {
    json!({
        "num_layers": 2, "padded_vocab_size": VOCABULARY, "hidden_size": HIDDEN, "ffn_hidden_size": 256, "kv_channels": 32,
        "num_attention_heads": 4, "seq_length": 128, "layernorm_epsilon": 1e-5, "rmsnorm": true,
        "apply_residual_connection_post_layernorm": false, "post_layer_norm": true, "add_bias_linear": false,
        "add_qkv_bias": true, "bias_dropout_fusion": true, "multi_query_attention": true, "multi_query_group_num": 2,
        "apply_query_key_layer_scaling": true, "attention_softmax_in_fp32": true, "fp32_residual_connection": false,
        "rope_ratio": 1
    })
}

/// Of two layers one sees the latest tokens alone, and heads of the other one have another size.
fn gemma4_text(w: &VarBuilder<'static>, window: usize) -> Result<Box<dyn Text>> {
    let of: gemma4::config::Gemma4TextConfig = usual(json!({
        "hidden_activation": "gelu_pytorch_tanh", "sliding_window": window, "final_logit_softcapping": 30.0,
        "query_pre_attn_scalar": 32, "sliding_window_pattern": 2, "global_head_dim": 64,
        "layer_types": ["sliding_attention", "full_attention"]
    }))?;
    cloned(gemma4::text::TextModel::new(&of, w.clone())?, |m, x, at| m.forward(x, at))
}

pub fn llama2_c_config() -> llama2_c::Config {
    llama2_c::Config {
        dim: HIDDEN,
        hidden_dim: 256,
        n_layers: 2,
        n_heads: 4,
        n_kv_heads: 2,
        vocab_size: VOCABULARY,
        seq_len: 128,
        norm_eps: 1e-5,
    }
}

pub fn mixformer_config() -> Value {
    json!({
        "vocab_size": VOCABULARY, "n_positions": 128, "n_embd": HIDDEN, "n_layer": 2, "n_inner": null, "n_head": 4,
        "rotary_dim": 16, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "tie_word_embeddings": false,
        "pad_vocab_size_multiple": 64
    })
}

pub fn recurrent_gemma_config() -> Value {
    json!({
        "lru_width": HIDDEN, "attention_window_size": 64, "conv1d_width": 4, "logits_soft_cap": 30.0,
        "hidden_activation": "gelu_pytorch_tanh", "partial_rotary_factor": 0.5, "num_key_value_heads": 1,
        "block_types": ["recurrent", "attention"], "max_seq_len": 128
    })
}

pub fn rwkv_config() -> Value {
    json!({
        "vocab_size": VOCABULARY, "hidden_size": HIDDEN, "num_hidden_layers": 2, "attention_hidden_size": HIDDEN,
        "num_attention_heads": 32, "head_size": 32, "intermediate_size": 256, "layer_norm_epsilon": 1e-5, "rescale_every": 6
    })
}

fn falcon_model(w: &VarBuilder<'static>) -> Result<Box<dyn Text>> {
    let of: falcon::Config = usual(json!({
        "layer_norm_epsilon": 1e-5, "initializer_range": 0.02, "use_cache": true, "bos_token_id": 1, "eos_token_id": 2,
        "hidden_dropout": 0.0, "attention_dropout": 0.0, "n_head_kv": null, "alibi": false,
        "new_decoder_architecture": false, "multi_query": true, "parallel_attn": true, "bias": false
    }))?;
    cloned(falcon::Falcon::load(w.clone(), of)?, |m, x, _| m.forward(x))
}

/// A state that has no `Clone`, with what copies it.
pub struct Kept<S>(S, fn(&S) -> S);

impl<S> Clone for Kept<S> {
    fn clone(&self) -> Self {
        Self((self.1)(&self.0), self.1)
    }
}

/// Adds tokens to a state.
pub type Stepped<M> = fn(&M, &Tensor, &mut rwkv_v5::State) -> Result<Tensor>;

pub fn rwkv_text<M: Send + Sync + 'static>(
    w: &VarBuilder<'static>,
    model: M,
    forward: Stepped<M>,
) -> Result<Box<dyn Text>> {
    let of: rwkv_v5::Config = config(rwkv_config())?;
    let state = rwkv_v5::State::new(1, &of, w.device())?;
    let copy: fn(&rwkv_v5::State) -> rwkv_v5::State = |of| rwkv_v5::State {
        per_layer: (of.per_layer.iter())
            .map(|of| rwkv_v5::StatePerLayer {
                extract_key_value: of.extract_key_value.clone(),
                linear_attention: of.linear_attention.clone(),
                feed_forward: of.feed_forward.clone(),
            })
            .collect(),
        pos: of.pos,
    };
    let model = Arc::new((model, forward));
    let forward = |text: &mut Beside<(M, Stepped<M>), Kept<rwkv_v5::State>>, x: &Tensor, _: usize| {
        let Beside { model, cache } = text;
        each(x, |x| (model.1)(&model.0, &x, &mut cache.0))
    };
    cloned(Beside { model, cache: Kept(state, copy) }, forward)
}

/// Feeds tokens one after another, and gives the last logits.
fn each(tokens: &Tensor, mut forward: impl FnMut(Tensor) -> Result<Tensor>) -> Result<Tensor> {
    let mut logits = None;
    for at in 0..tokens.dim(D::Minus1)? {
        logits = Some(forward(tokens.narrow(D::Minus1, at, 1)?)?);
    }
    logits.ok_or_else(|| candle::Error::Msg("there are no tokens".into()))
}
