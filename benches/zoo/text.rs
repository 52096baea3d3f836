//! Text models.

use candle::Tensor;
use candle_transformers::models::*;
use serde_json::json;

use crate::entry::{config, Entry, Model, Target};

/// Tokens per sentence.
pub const LENGTH: usize = 128;

/// The models.
pub const ENTRIES: &[Entry] = &[
    Entry { name: "bert-base", build: |at| bert(at, &bert::Config::default()) },
    Entry {
        name: "distilbert",
        build: |at| {
            let config = config(json!({
                "vocab_size": 30522, "dim": 768, "n_layers": 6, "n_heads": 12, "hidden_dim": 3072,
                "activation": "gelu", "max_position_embeddings": 512, "initializer_range": 0.02, "pad_token_id": 0,
                "model_type": "distilbert"
            }))?;
            let model = distilbert::DistilBertModel::load(at.weights(), &config)?;
            let ids = at.tokens(LENGTH, 30522)?;
            // The mask marks tokens to leave out; none here.
            let mask = ids.zeros_like()?.to_dtype(candle::DType::U8)?;
            Model::new([ids, mask], move |x| Ok(vec![model.forward(&x[0], &x[1])?]))
        },
    },
    Entry { name: "xlm-roberta-base", build: |at| roberta(at, [768, 3072, 12, 12], 250002) },
    Entry {
        name: "jina-bert-v2-base",
        build: |at| {
            let model = jina_bert::BertModel::new(at.weights(), &jina_bert::Config::v2_base())?;
            Model::module(model, at.tokens(LENGTH, 30528)?)
        },
    },
    Entry {
        name: "nomic-bert",
        build: |at| {
            let model = nomic_bert::NomicBertModel::load(at.weights(), &nomic_bert::Config::default())?;
            Model::new([at.tokens(LENGTH, 30528)?], move |x| Ok(vec![model.forward(&x[0], None, None)?]))
        },
    },
    Entry { name: "modernbert-base", build: |at| modernbert(at, [768, 1152, 22, 12]) },
    Entry { name: "deberta-v3-base", build: |at| deberta(at, 12) },
    Entry { name: "t5-small-encoder", build: |at| t5_encoder(at, &t5::Config::default(), LENGTH) },
    Entry { name: "t5-small-encoder-512", build: |at| t5_encoder(at, &t5::Config::default(), 512) },
    Entry {
        name: "t5-small",
        build: |at| {
            let model = t5::T5ForConditionalGeneration::load(at.weights(), &t5::Config::default())?;
            Model::fresh(model, [at.tokens(LENGTH, 32128)?, at.tokens(32, 32128)?], |model, x| {
                model.forward(&x[0], &x[1])
            })
        },
    },
    Entry {
        name: "marian-fr-en",
        build: |at| {
            let model = marian::MTModel::new(&marian::Config::opus_mt_fr_en(), at.weights())?;
            Model::fresh(model, [at.tokens(LENGTH, 59514)?, at.tokens(32, 59514)?], |model, x| {
                let source = model.encoder().forward(&x[0], 0)?;
                model.decode(&x[1], &source, 0)
            })
        },
    },
    Entry {
        name: "smollm2-135m",
        build: |at| {
            let config: llama::LlamaConfig = config(json!({
                "hidden_size": 576, "intermediate_size": 1536, "vocab_size": 49152, "num_hidden_layers": 30,
                "num_attention_heads": 9, "num_key_value_heads": 3, "rms_norm_eps": 1e-5, "rope_theta": 100000.0,
                "max_position_embeddings": 8192, "tie_word_embeddings": true
            }))?;
            let config = config.into_config(false);
            let model = llama::Llama::load(at.weights(), &config)?;
            let cache = llama::Cache::new(false, at.dtype, &config, &at.device)?;
            Model::fresh(cache, [at.tokens(LENGTH, 49152)?], move |cache, x| model.forward(&x[0], 0, cache))
        },
    },
    Entry { name: "qwen2-0.5b", build: |at| qwen2(at, [896, 4864, 24, 14]) },
    Entry {
        name: "qwen3-0.6b",
        build: |at| {
            let config = config(json!({
                "vocab_size": 151936, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
                "num_attention_heads": 16, "head_dim": 128, "attention_bias": false, "num_key_value_heads": 8,
                "max_position_embeddings": 40960, "max_window_layers": 28, "tie_word_embeddings": true,
                "rope_theta": 1000000.0, "rms_norm_eps": 1e-6, "use_sliding_window": false, "hidden_act": "silu"
            }))?;
            prompt(at, qwen3::ModelForCausalLM::new(&config, at.weights())?, 151936, |model, ids| model.forward(ids, 0))
        },
    },
    Entry {
        name: "gemma3-270m",
        build: |at| {
            let config = config(json!({
                "attention_bias": false, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh",
                "hidden_size": 640, "intermediate_size": 2048, "num_attention_heads": 4, "num_hidden_layers": 18,
                "num_key_value_heads": 1, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
                "rope_local_base_freq": 10000.0, "vocab_size": 262144, "query_pre_attn_scalar": 256,
                "sliding_window": 512, "sliding_window_pattern": 6, "max_position_embeddings": 32768
            }))?;
            prompt(at, gemma3::Model::new(false, &config, at.weights())?, 262144, |model, ids| model.forward(ids, 0))
        },
    },
    Entry {
        name: "phi-1.5",
        build: |at| {
            let config = config(json!({
                "vocab_size": 51200, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 24,
                "num_attention_heads": 32, "hidden_act": "gelu_new", "max_position_embeddings": 2048,
                "layer_norm_eps": 1e-5, "tie_word_embeddings": false, "rope_theta": 10000.0,
                "partial_rotary_factor": 0.5, "qk_layernorm": false
            }))?;
            prompt(at, phi::Model::new(&config, at.weights())?, 51200, |model, ids| model.forward(ids))
        },
    },
    // One of the 24 layers of Qwen1.5-MoE-A2.7B. The host reads back which expert each token is routed to.
    Entry {
        name: "qwen1.5-moe-layer",
        build: |at| {
            let config = config(json!({
                "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 1,
                "num_attention_heads": 16, "num_key_value_heads": 16, "max_position_embeddings": 8192,
                "sliding_window": 32768, "max_window_layers": 21, "tie_word_embeddings": false,
                "rope_theta": 1000000.0, "rms_norm_eps": 1e-6, "use_sliding_window": false, "hidden_act": "silu",
                "decoder_sparse_step": 1, "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632,
                "num_experts_per_tok": 4, "num_experts": 60, "norm_topk_prob": false
            }))?;
            prompt(at, qwen2_moe::Model::new(&config, at.weights())?, 151936, |model, ids| model.forward(ids, 0))
        },
    },
    // The forward pass takes one token at a time.
    Entry {
        name: "mamba-130m-token",
        build: |at| {
            let config = config(json!({
                "d_model": 768, "n_layer": 24, "vocab_size": 50277, "pad_vocab_size_multiple": 8
            }))?;
            let model = mamba::Model::new(&config, at.weights())?;
            Model::new([at.ids(1, 50277)?], move |x| {
                let mut state = mamba::State::new(1, &config, model.dtype(), x[0].device())?;
                Ok(vec![model.forward(&x[0], &mut state)?])
            })
        },
    },
];

/// BERT, with a mask of ones.
pub fn bert(at: &Target, config: &bert::Config) -> anyhow::Result<Model> {
    let model = bert::BertModel::load(at.weights(), config)?;
    let ids = at.tokens(LENGTH, 30522)?;
    Model::new([ids.clone(), ids.zeros_like()?, ids.ones_like()?], move |x| {
        Ok(vec![model.forward(&x[0], &x[1], Some(&x[2]))?])
    })
}

/// RoBERTa and XLM-R: width, width inside, layers and heads.
pub fn roberta(at: &Target, [width, inner, layers, heads]: [usize; 4], vocabulary: u32) -> anyhow::Result<Model> {
    let config = config(json!({
        "hidden_size": width, "layer_norm_eps": 1e-5, "attention_probs_dropout_prob": 0.1,
        "hidden_dropout_prob": 0.1, "num_attention_heads": heads, "position_embedding_type": "absolute",
        "intermediate_size": inner, "hidden_act": "gelu", "num_hidden_layers": layers, "vocab_size": vocabulary,
        "max_position_embeddings": 514, "type_vocab_size": 1, "pad_token_id": 1
    }))?;
    let model = xlm_roberta::XLMRobertaModel::new(&config, at.weights())?;
    let ids = at.tokens(LENGTH, vocabulary)?;
    Model::new([ids.clone(), ids.ones_like()?, ids.zeros_like()?], move |x| {
        Ok(vec![model.forward(&x[0], &x[1], &x[2], None, None, None)?])
    })
}

/// ModernBERT: width, width inside, layers and heads.
pub fn modernbert(at: &Target, [width, inner, layers, heads]: [usize; 4]) -> anyhow::Result<Model> {
    let config = config(json!({
        "vocab_size": 50368, "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads,
        "intermediate_size": inner, "max_position_embeddings": 8192, "layer_norm_eps": 1e-5,
        "pad_token_id": 50283, "global_attn_every_n_layers": 3, "global_rope_theta": 160000.0,
        "local_attention": 128, "local_rope_theta": 10000.0
    }))?;
    let model = modernbert::ModernBert::load(at.weights(), &config)?;
    let ids = at.tokens(LENGTH, 50368)?;
    Model::new([ids.clone(), ids.ones_like()?], move |x| Ok(vec![model.forward(&x[0], &x[1])?]))
}

/// DeBERTa-v3 of this many layers.
pub fn deberta(at: &Target, layers: usize) -> anyhow::Result<Model> {
    let config = config(json!({
        "vocab_size": 128100, "hidden_size": 768, "num_hidden_layers": layers, "num_attention_heads": 12,
        "intermediate_size": 3072, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1, "max_position_embeddings": 512, "type_vocab_size": 0,
        "initializer_range": 0.02, "layer_norm_eps": 1e-7, "relative_attention": true,
        "max_relative_positions": -1, "pad_token_id": 0, "position_biased_input": false,
        "pos_att_type": "p2c|c2p", "position_buckets": 256, "share_att_key": true,
        "norm_rel_ebd": "layer_norm"
    }))?;
    let model = debertav2::DebertaV2Model::load(at.weights(), &config)?;
    Model::new([at.tokens(LENGTH, 128100)?], move |x| Ok(vec![model.forward(&x[0], None, None)?]))
}

/// Qwen 2 and 2.5, with two heads of keys: width, width inside, layers and heads.
pub fn qwen2(at: &Target, [width, inner, layers, heads]: [usize; 4]) -> anyhow::Result<Model> {
    let config = config(json!({
        "vocab_size": 151936, "hidden_size": width, "intermediate_size": inner, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": 2, "max_position_embeddings": 32768,
        "sliding_window": 32768, "max_window_layers": layers, "tie_word_embeddings": true,
        "rope_theta": 1000000.0, "rms_norm_eps": 1e-6, "use_sliding_window": false, "hidden_act": "silu"
    }))?;
    let weights = at.weights_without(|name, _| name == "lm_head.weight");
    prompt(at, qwen2::ModelForCausalLM::new(&config, weights)?, 151936, |model, ids| model.forward(ids, 0))
}

/// T5's encoder.
pub fn t5_encoder(at: &Target, config: &t5::Config, length: usize) -> anyhow::Result<Model> {
    let model = t5::T5EncoderModel::load(at.weights(), config)?;
    Model::fresh(model, [at.tokens(length, 32128)?], |model, x| model.forward(&x[0]))
}

/// A decoder that reads a prompt.
pub fn prompt<M: Clone + Send + Sync + 'static>(
    at: &Target,
    model: M,
    vocabulary: u32,
    forward: impl Fn(&mut M, &Tensor) -> candle::Result<Tensor> + Send + Sync + 'static,
) -> anyhow::Result<Model> {
    Model::fresh(model, [at.tokens(LENGTH, vocabulary)?], move |model, x| forward(model, &x[0]))
}
