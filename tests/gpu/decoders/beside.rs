//! Decoders of candle-transformers that read what an encoder gives besides tokens.

use candle::{Result, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::{blip_text, marian, metavoice, parler_tts, quantized_t5, t5};
use serde_json::{json, Value};

use super::models::{config, of, Model, F32, HIDDEN, VOCABULARY};
use super::quantised::quantised;
use super::texts::{cloned, Text};

/// A model, and what all its texts read.
#[derive(Clone)]
struct Read<M> {
    model: M,
    of: Tensor,
}

/// Such a model, which reads 12 vectors.
fn reads<M: Clone + Send + Sync + 'static>(
    model: M,
    w: &VarBuilder<'static>,
    forward: fn(&mut M, &Tensor, &Tensor, usize) -> Result<Tensor>,
) -> Result<Box<dyn Text>> {
    let of = Read { model: (model, forward), of: w.get((1, 12, HIDDEN), "encoded")? };
    cloned(of, |read, tokens, at| (read.model.1)(&mut read.model.0, tokens, &read.of, at))
}

/// Decoders.
pub const MODELS: &[Model] = &[
    Model {
        dtypes: F32,
        ..of("t5", |w| {
            reads(t5::T5ForConditionalGeneration::load(w.clone(), &config(t5_config())?)?, w, |m, x, read, _| {
                m.decode(x, read)
            })
        })
    },
    Model {
        dtypes: F32,
        tolerance: 6e-2,
        ..of("quantized_t5", |w| {
            let weights = quantised(w, |w| t5::T5ForConditionalGeneration::load(w, &config(t5_config())?))?;
            let model = quantized_t5::T5ForConditionalGeneration::load(weights, &config(t5_config())?)?;
            reads(model, w, |m, x, read, _| m.decode(x, read))
        })
    },
    Model {
        dtypes: F32,
        ..of("marian", |w| {
            let of = config(json!({
                "vocab_size": VOCABULARY, "decoder_vocab_size": VOCABULARY, "max_position_embeddings": 128, "encoder_layers": 1,
                "encoder_ffn_dim": 256, "encoder_attention_heads": 4, "decoder_layers": 2, "decoder_ffn_dim": 256,
                "decoder_attention_heads": 4, "use_cache": true, "is_encoder_decoder": true, "activation_function": "silu",
                "d_model": HIDDEN, "decoder_start_token_id": 0, "scale_embedding": true, "pad_token_id": 0, "eos_token_id": 1,
                "forced_eos_token_id": 1, "share_encoder_decoder_embeddings": true
            }))?;
            reads(marian::MTModel::new(&of, w.clone())?, w, |m, x, read, at| m.decode(x, read, at))
        })
    },
    Model {
        dtypes: F32,
        ..of("blip_text", |w| {
            let of = config(json!({
                "vocab_size": VOCABULARY, "hidden_size": HIDDEN, "encoder_hidden_size": HIDDEN, "intermediate_size": 256,
                "projection_dim": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 128,
                "hidden_act": "gelu", "layer_norm_eps": 1e-5, "is_decoder": true
            }))?;
            reads(blip_text::TextLMHeadModel::new(&of, w.clone())?, w, |m, x, read, _| m.forward(x, read))
        })
    },
    of("parler_tts", |w| {
        let of = config(json!({
            "vocab_size": VOCABULARY, "max_position_embeddings": 128, "num_hidden_layers": 2, "ffn_dim": 256,
            "num_attention_heads": 4, "num_key_value_heads": 4, "num_cross_attention_key_value_heads": 4,
            "activation_function": "gelu", "hidden_size": HIDDEN, "scale_embedding": false, "num_codebooks": 1,
            "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": false, "rope_embeddings": false,
            "rope_theta": 10000.0
        }))?;
        reads(parler_tts::Decoder::new(&of, w.clone())?, w, |m, x, read, at| {
            let tokens = x.dim(1)?;
            // A mask of the prompt, as the model's own loop gives.
            let hidden = |i: usize| (0..tokens).map(move |j| if j > i { f32::NEG_INFINITY } else { 0. });
            let mask = Tensor::from_iter((0..tokens).flat_map(hidden), x.device())?.reshape((1, 1, tokens, tokens))?;
            let mask = mask.to_dtype(read.dtype())?;
            let logits = m.forward(&x.unsqueeze(1)?, None, (tokens > 1).then_some(&mask), read, None, at)?;
            Ok(logits[0].clone())
        })
    }),
    of("metavoice", |w| {
        let of = config(json!({
            "block_size": 128, "vocab_size": VOCABULARY, "n_layer": 2, "n_head": 4, "dim": HIDDEN, "speaker_emb_dim": HIDDEN,
            "intermediate_size": 256, "n_local_heads": 2, "norm_eps": 1e-5
        }))?;
        reads(metavoice::transformer::Model::new(&of, w.clone())?, w, |m, x, read, at| {
            // Of a speaker, and of none.
            m.forward(&x.repeat((2, 1))?, &read.narrow(1, 0, 1)?, at)?.narrow(0, 0, 1)
        })
    }),
];

fn t5_config() -> Value {
    json!({
        "vocab_size": VOCABULARY, "d_model": HIDDEN, "d_kv": 32, "d_ff": 256, "num_layers": 2, "num_decoder_layers": 2,
        "num_heads": 4, "relative_attention_num_buckets": 32, "relative_attention_max_distance": 128, "dropout_rate": 0.0,
        "layer_norm_epsilon": 1e-6, "initializer_factor": 1.0, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": false,
        "is_decoder": false, "is_encoder_decoder": true, "use_cache": true, "pad_token_id": 0, "eos_token_id": 1
    })
}
