//! The first list of twenty models that were chosen before anybody looked at them: nothing was changed for them before the figures of
//! their first try in `benches/results/unseen.json`.

use candle_transformers::models::*;
use serde_json::json;

use crate::audio::whisper_encoder;
use crate::entry::{config, Entry, Model};
use crate::text::{bert, deberta, modernbert, prompt, roberta, t5_encoder, LENGTH};
use crate::vision::{convnext, convnextv2, efficientnet, hiera, mobilenetv4, segformer, vgg, CLASSES};

/// The models.
pub const ENTRIES: &[Entry] = &[
    Entry { name: "resnet101", build: |at| Model::module(resnet::resnet101(CLASSES, at.weights())?, at.image(224)?) },
    Entry { name: "vgg19", build: |at| vgg(at, vgg::Models::Vgg19) },
    Entry { name: "efficientnet-b3", build: |at| efficientnet(at, efficientnet::MBConvConfig::b3(), 300) },
    Entry { name: "convnext-base", build: |at| convnext(at, &convnext::Config::base()) },
    Entry { name: "convnextv2-pico", build: |at| convnextv2(at, &convnext::Config::pico()) },
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
    Entry { name: "hiera-base", build: |at| hiera(at, &hiera::Config::base()) },
    Entry { name: "mobilenetv4-medium", build: |at| mobilenetv4(at, &mobilenetv4::Config::medium(), 256) },
    Entry { name: "segformer-b3", build: |at| segformer(at, [3, 4, 18, 3], [64, 128, 320, 512], 768) },
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
            bert(at, &config)
        },
    },
    Entry { name: "roberta-large", build: |at| roberta(at, [1024, 4096, 24, 16], 50265) },
    Entry { name: "deberta-v3-small", build: |at| deberta(at, 6) },
    Entry { name: "modernbert-large", build: |at| modernbert(at, [1024, 2624, 28, 16]) },
    Entry {
        name: "flan-t5-base-encoder",
        build: |at| {
            let config: t5::Config = config(json!({
                "vocab_size": 32128, "d_model": 768, "d_kv": 64, "d_ff": 2048, "num_layers": 12, "num_heads": 12,
                "relative_attention_num_buckets": 32, "dropout_rate": 0.1, "layer_norm_epsilon": 1e-6,
                "initializer_factor": 1.0, "feed_forward_proj": "gated-gelu", "is_encoder_decoder": true,
                "pad_token_id": 0, "eos_token_id": 1, "tie_word_embeddings": false
            }))?;
            t5_encoder(at, &config, LENGTH)
        },
    },
    Entry { name: "whisper-base-encoder", build: |at| whisper_encoder(at, [512, 6, 8]) },
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
