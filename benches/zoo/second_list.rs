//! The second list of twenty models, chosen when what the first one showed was mended. Nothing was changed for them before the figures
//! of their first try in `benches/results/unseen.json`.

use candle_transformers::models::*;
use serde_json::json;

use crate::entry::{config, Entry, Model};
use crate::text::{prompt, qwen2, t5_encoder, LENGTH};
use crate::vision::{convnext, convnextv2, efficientnet, hiera, mobilenetv4, not_in_fastvit, segformer, vgg, CLASSES};

/// The models.
pub const ENTRIES: &[Entry] = &[
    Entry { name: "resnet152", build: |at| Model::module(resnet::resnet152(CLASSES, at.weights())?, at.image(224)?) },
    Entry { name: "vgg13", build: |at| vgg(at, vgg::Models::Vgg13) },
    Entry { name: "efficientnet-b4", build: |at| efficientnet(at, efficientnet::MBConvConfig::b4(), 380) },
    Entry { name: "convnext-small", build: |at| convnext(at, &convnext::Config::small()) },
    Entry { name: "convnextv2-nano", build: |at| convnextv2(at, &convnext::Config::nano()) },
    Entry {
        name: "efficientvit-m5",
        build: |at| {
            let config = efficientvit::Config::m5();
            Model::module(efficientvit::efficientvit(&config, CLASSES, at.weights())?, at.image(224)?)
        },
    },
    Entry {
        name: "repvgg-b1",
        build: |at| Model::module(repvgg::repvgg(&repvgg::Config::b1(), CLASSES, at.weights())?, at.image(224)?),
    },
    Entry {
        name: "mobileone-s1",
        build: |at| {
            let weights = at.weights_without(|name, _| name.contains(".attn."));
            Model::module(mobileone::mobileone(&mobileone::Config::s1(), CLASSES, weights)?, at.image(224)?)
        },
    },
    Entry {
        name: "fastvit-sa12",
        build: |at| {
            let weights = at.weights_without(|name, _| {
                not_in_fastvit(name)
                    || name.contains(".pos_emb.") && !name.contains("stages.3.")
                    || name.contains(".proj.0.se.")
            });
            Model::module(fastvit::fastvit(&fastvit::Config::sa12(), CLASSES, weights)?, at.image(256)?)
        },
    },
    Entry { name: "eva2-large", build: |at| Model::module(eva2::vit_large(at.weights())?, at.image(448)?) },
    Entry { name: "dinov2-reg4-base", build: |at| Model::module(dinov2reg4::vit_base(at.weights())?, at.image(518)?) },
    Entry { name: "hiera-small", build: |at| hiera(at, &hiera::Config::small()) },
    Entry { name: "mobilenetv4-large", build: |at| mobilenetv4(at, &mobilenetv4::Config::large(), 384) },
    Entry { name: "segformer-b1", build: |at| segformer(at, [2, 2, 2, 2], [64, 128, 320, 512], 256) },
    Entry {
        name: "beit-large",
        build: |at| Model::module(beit::BeitVisionTransformer::new(at.weights(), 24, 1024, 16)?, at.image(384)?),
    },
    Entry {
        name: "clip-vit-l14-text",
        build: |at| {
            let config = clip::text_model::ClipTextConfig {
                embed_dim: 768,
                intermediate_size: 3072,
                num_attention_heads: 12,
                projection_dim: 768,
                ..clip::text_model::ClipTextConfig::vit_base_patch32()
            };
            Model::module(clip::text_model::ClipTextTransformer::new(at.weights(), &config)?, at.tokens(77, 49408)?)
        },
    },
    Entry {
        name: "t5-large-encoder",
        build: |at| {
            let config: t5::Config = config(json!({
                "vocab_size": 32128, "d_model": 1024, "d_kv": 64, "d_ff": 4096, "num_layers": 24, "num_heads": 16,
                "relative_attention_num_buckets": 32, "dropout_rate": 0.1, "layer_norm_epsilon": 1e-6,
                "initializer_factor": 1.0, "feed_forward_proj": "relu", "is_encoder_decoder": true,
                "pad_token_id": 0, "eos_token_id": 1
            }))?;
            t5_encoder(at, &config, LENGTH)
        },
    },
    Entry { name: "qwen2.5-1.5b", build: |at| qwen2(at, [1536, 8960, 28, 12]) },
    Entry {
        name: "gemma-2b",
        build: |at| {
            let config = config(json!({
                "attention_bias": false, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh",
                "hidden_size": 2048, "intermediate_size": 16384, "num_attention_heads": 8, "num_hidden_layers": 18,
                "num_key_value_heads": 1, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "vocab_size": 256000,
                "max_position_embeddings": 8192
            }))?;
            prompt(at, gemma::Model::new(false, &config, at.weights())?, 256000, |model, ids| model.forward(ids, 0))
        },
    },
    Entry {
        name: "phi-3-mini",
        build: |at| {
            let config = config(json!({
                "vocab_size": 32064, "hidden_act": "silu", "hidden_size": 3072, "intermediate_size": 8192,
                "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32, "rms_norm_eps": 1e-5,
                "rope_theta": 10000.0, "max_position_embeddings": 4096, "original_max_position_embeddings": 4096
            }))?;
            prompt(at, phi3::Model::new(&config, at.weights())?, 32064, |model, ids| model.forward(ids, 0))
        },
    },
];
