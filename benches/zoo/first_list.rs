//! The first list of twenty models that were chosen before anybody looked at them: nothing was changed for them before the figures of
//! their first try in `benches/results/unseen.json`.

use candle::Result;
use candle_transformers::models::*;
use serde_json::json;

use crate::entry::{config, Entry, Model, Target};
use crate::vision::{mobilenetv4_weights, without_equal_projections, CLASSES};

/// Tokens per sentence.
pub const LENGTH: usize = 128;

/// The models.
pub const ENTRIES: &[Entry] = &[
    Entry { name: "resnet101", build: |at| Model::module(resnet::resnet101(CLASSES, at.weights())?, at.image(224)?) },
    Entry {
        name: "vgg19",
        build: |at| {
            let model = vgg::Vgg::new(at.weights(), vgg::Models::Vgg19)?;
            Model::new([at.noise((3, 224, 224))?], move |x| Ok(vec![candle::ModuleT::forward_t(&model, &x[0], false)?]))
        },
    },
    Entry {
        name: "efficientnet-b3",
        build: |at| {
            let blocks = efficientnet::MBConvConfig::b3();
            Model::module(efficientnet::EfficientNet::new(at.weights(), blocks, CLASSES)?, at.image(300)?)
        },
    },
    Entry {
        name: "convnext-base",
        build: |at| {
            let weights = at.weights_without(|name, _| name.contains(".grn."));
            Model::module(convnext::convnext(&convnext::Config::base(), CLASSES, weights)?, at.image(224)?)
        },
    },
    Entry {
        name: "convnextv2-pico",
        build: |at| {
            let weights = at.weights_without(|name, _| name.ends_with(".gamma"));
            Model::module(convnext::convnext(&convnext::Config::pico(), CLASSES, weights)?, at.image(224)?)
        },
    },
    Entry {
        name: "dinov2-base",
        build: |at| Model::module(dinov2::DinoVisionTransformer::new(at.weights(), 12, 768, 12)?, at.image(518)?),
    },
    Entry {
        name: "vit-large",
        build: |at| {
            let base = vit::Config::vit_base_patch16_224();
            let config = vit::Config {
                hidden_size: 1024,
                num_hidden_layers: 24,
                num_attention_heads: 16,
                intermediate_size: 4096,
                ..base
            };
            let model = vit::Model::new(&config, CLASSES, at.weights())?;
            Model::new([at.image(224)?], move |x| Ok(vec![model.forward(&x[0])?]))
        },
    },
    Entry {
        name: "hiera-base",
        build: |at| {
            let weights = at.weights_without(without_equal_projections);
            Model::module(hiera::hiera(&hiera::Config::base(), CLASSES, weights)?, at.image(224)?)
        },
    },
    Entry {
        name: "mobilenetv4-medium",
        build: |at| {
            let model = mobilenetv4::mobilenetv4(&mobilenetv4::Config::medium(), CLASSES, mobilenetv4_weights(at))?;
            Model::module(model, at.image(256)?)
        },
    },
    Entry {
        name: "segformer-b3",
        build: |at| {
            let config = config(json!({
                "num_channels": 3, "num_encoder_blocks": 4, "depths": [3, 4, 18, 3], "sr_ratios": [8, 4, 2, 1],
                "hidden_sizes": [64, 128, 320, 512], "patch_sizes": [7, 3, 3, 3], "strides": [4, 2, 2, 2],
                "num_attention_heads": [1, 2, 5, 8], "mlp_ratios": [4, 4, 4, 4], "hidden_act": "gelu",
                "layer_norm_eps": 1e-6, "decoder_hidden_size": 768
            }))?;
            Model::module(segformer::SemanticSegmentationModel::new(&config, 150, at.weights())?, at.image(512)?)
        },
    },
    Entry {
        name: "clip-vit-l14-vision",
        build: |at| {
            let config = clip::vision_model::ClipVisionConfig {
                embed_dim: 1024,
                activation: clip::text_model::Activation::QuickGelu,
                intermediate_size: 4096,
                num_hidden_layers: 24,
                num_attention_heads: 16,
                projection_dim: 768,
                num_channels: 3,
                image_size: 224,
                patch_size: 14,
            };
            Model::module(clip::vision_model::ClipVisionTransformer::new(at.weights(), &config)?, at.image(224)?)
        },
    },
    Entry {
        name: "bert-large",
        build: |at| {
            let config = bert::Config {
                hidden_size: 1024,
                num_hidden_layers: 24,
                num_attention_heads: 16,
                intermediate_size: 4096,
                ..bert::Config::default()
            };
            let model = bert::BertModel::load(at.weights(), &config)?;
            let ids = at.tokens(LENGTH, 30522)?;
            Model::new([ids.clone(), ids.zeros_like()?, ids.ones_like()?], move |x| {
                Ok(vec![model.forward(&x[0], &x[1], Some(&x[2]))?])
            })
        },
    },
    Entry {
        name: "roberta-large",
        build: |at| {
            let config = config(json!({
                "hidden_size": 1024, "layer_norm_eps": 1e-5, "attention_probs_dropout_prob": 0.1,
                "hidden_dropout_prob": 0.1, "num_attention_heads": 16, "position_embedding_type": "absolute",
                "intermediate_size": 4096, "hidden_act": "gelu", "num_hidden_layers": 24, "vocab_size": 50265,
                "max_position_embeddings": 514, "type_vocab_size": 1, "pad_token_id": 1
            }))?;
            let model = xlm_roberta::XLMRobertaModel::new(&config, at.weights())?;
            let ids = at.tokens(LENGTH, 50265)?;
            Model::new([ids.clone(), ids.ones_like()?, ids.zeros_like()?], move |x| {
                Ok(vec![model.forward(&x[0], &x[1], &x[2], None, None, None)?])
            })
        },
    },
    Entry {
        name: "deberta-v3-small",
        build: |at| {
            let config = config(json!({
                "vocab_size": 128100, "hidden_size": 768, "num_hidden_layers": 6, "num_attention_heads": 12,
                "intermediate_size": 3072, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
                "attention_probs_dropout_prob": 0.1, "max_position_embeddings": 512, "type_vocab_size": 0,
                "initializer_range": 0.02, "layer_norm_eps": 1e-7, "relative_attention": true,
                "max_relative_positions": -1, "pad_token_id": 0, "position_biased_input": false,
                "pos_att_type": "p2c|c2p", "position_buckets": 256, "share_att_key": true,
                "norm_rel_ebd": "layer_norm"
            }))?;
            let model = debertav2::DebertaV2Model::load(at.weights(), &config)?;
            Model::new([at.tokens(LENGTH, 128100)?], move |x| Ok(vec![model.forward(&x[0], None, None)?]))
        },
    },
    Entry {
        name: "modernbert-large",
        build: |at| {
            let config = config(json!({
                "vocab_size": 50368, "hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16,
                "intermediate_size": 2624, "max_position_embeddings": 8192, "layer_norm_eps": 1e-5,
                "pad_token_id": 50283, "global_attn_every_n_layers": 3, "global_rope_theta": 160000.0,
                "local_attention": 128, "local_rope_theta": 10000.0
            }))?;
            let model = modernbert::ModernBert::load(at.weights(), &config)?;
            let ids = at.tokens(LENGTH, 50368)?;
            Model::new([ids.clone(), ids.ones_like()?], move |x| Ok(vec![model.forward(&x[0], &x[1])?]))
        },
    },
    Entry {
        name: "flan-t5-base-encoder",
        build: |at| {
            let config: t5::Config = config(json!({
                "vocab_size": 32128, "d_model": 768, "d_kv": 64, "d_ff": 2048, "num_layers": 12, "num_heads": 12,
                "relative_attention_num_buckets": 32, "dropout_rate": 0.1, "layer_norm_epsilon": 1e-6,
                "initializer_factor": 1.0, "feed_forward_proj": "gated-gelu", "is_encoder_decoder": true,
                "pad_token_id": 0, "eos_token_id": 1, "tie_word_embeddings": false
            }))?;
            let model = t5::T5EncoderModel::load(at.weights(), &config)?;
            Model::fresh(model, [at.tokens(LENGTH, 32128)?], |model, x| model.forward(&x[0]))
        },
    },
    Entry {
        name: "whisper-base-encoder",
        build: |at| {
            let config = config(json!({
                "num_mel_bins": 80, "max_source_positions": 1500, "d_model": 512, "encoder_attention_heads": 8,
                "encoder_layers": 6, "vocab_size": 51865, "max_target_positions": 448, "decoder_attention_heads": 8,
                "decoder_layers": 6
            }))?;
            let model = whisper::model::Whisper::load(&at.weights(), config)?;
            Model::fresh(model.encoder, [at.noises((80, whisper::N_FRAMES))?], |encoder, x| {
                encoder.forward(&x[0], true)
            })
        },
    },
    Entry {
        name: "olmo2-1b",
        build: |at| {
            let config = config(json!({
                "vocab_size": 100352, "hidden_size": 2048, "intermediate_size": 8192, "attention_bias": false,
                "num_hidden_layers": 16, "num_attention_heads": 16, "num_key_value_heads": 16, "rms_norm_eps": 1e-6,
                "hidden_act": "silu", "max_position_embeddings": 4096, "rope_theta": 500000.0,
                "tie_word_embeddings": false, "clip_qkv": null
            }))?;
            prompt(at, olmo2::Model::new(&config, at.weights())?, 100352, |model, ids| model.forward(ids, 0))
        },
    },
    Entry {
        name: "starcoder2-3b",
        build: |at| {
            let config = config(json!({
                "vocab_size": 49152, "hidden_size": 3072, "intermediate_size": 12288, "num_hidden_layers": 30,
                "num_attention_heads": 24, "num_key_value_heads": 2, "hidden_act": "gelu_pytorch_tanh",
                "max_position_embeddings": 16384, "norm_epsilon": 1e-5, "rope_theta": 999999.4420358813,
                "use_bias": true, "sliding_window": 4096
            }))?;
            prompt(at, starcoder2::Model::new(&config, at.weights())?, 49152, |model, ids| model.forward(ids, 0))
        },
    },
    Entry {
        name: "gemma2-2b",
        build: |at| {
            let config = config(json!({
                "attention_bias": false, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh",
                "hidden_size": 2304, "intermediate_size": 9216, "num_attention_heads": 8, "num_hidden_layers": 26,
                "num_key_value_heads": 4, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "vocab_size": 256000,
                "final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0, "query_pre_attn_scalar": 256,
                "sliding_window": 4096, "max_position_embeddings": 8192
            }))?;
            prompt(at, gemma2::Model::new(false, &config, at.weights())?, 256000, |model, ids| model.forward(ids, 0))
        },
    },
];

/// A decoder that reads a prompt.
pub fn prompt<M: Clone + Send + Sync + 'static>(
    at: &Target,
    model: M,
    vocabulary: u32,
    forward: impl Fn(&mut M, &candle::Tensor) -> Result<candle::Tensor> + Send + Sync + 'static,
) -> anyhow::Result<Model> {
    Model::fresh(model, [at.tokens(LENGTH, vocabulary)?], move |model, x| forward(model, &x[0]))
}
