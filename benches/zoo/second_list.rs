//! The second list of twenty models, chosen when what the first one showed was mended. Nothing was changed for them before the figures
//! of their first try in `benches/results/unseen.json`.

use candle_transformers::models::*;
use serde_json::json;

use crate::entry::{config, Entry, Model};
use crate::first_list::{prompt, LENGTH};
use crate::vision::{mobilenetv4_weights, not_in_fastvit, without_equal_projections, CLASSES};

/// The models.
pub const ENTRIES: &[Entry] = &[
    Entry { name: "resnet152", build: |at| Model::module(resnet::resnet152(CLASSES, at.weights())?, at.image(224)?) },
    Entry {
        name: "vgg13",
        build: |at| {
            let model = vgg::Vgg::new(at.weights(), vgg::Models::Vgg13)?;
            Model::new([at.noise((3, 224, 224))?], move |x| Ok(vec![candle::ModuleT::forward_t(&model, &x[0], false)?]))
        },
    },
    Entry {
        name: "efficientnet-b4",
        build: |at| {
            let blocks = efficientnet::MBConvConfig::b4();
            Model::module(efficientnet::EfficientNet::new(at.weights(), blocks, CLASSES)?, at.image(380)?)
        },
    },
    Entry {
        name: "convnext-small",
        build: |at| {
            let weights = at.weights_without(|name, _| name.contains(".grn."));
            Model::module(convnext::convnext(&convnext::Config::small(), CLASSES, weights)?, at.image(224)?)
        },
    },
    Entry {
        name: "convnextv2-nano",
        build: |at| {
            let weights = at.weights_without(|name, _| name.ends_with(".gamma"));
            Model::module(convnext::convnext(&convnext::Config::nano(), CLASSES, weights)?, at.image(224)?)
        },
    },
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
    Entry {
        name: "hiera-small",
        build: |at| {
            let weights = at.weights_without(without_equal_projections);
            Model::module(hiera::hiera(&hiera::Config::small(), CLASSES, weights)?, at.image(224)?)
        },
    },
    Entry {
        name: "mobilenetv4-large",
        build: |at| {
            let model = mobilenetv4::mobilenetv4(&mobilenetv4::Config::large(), CLASSES, mobilenetv4_weights(at))?;
            Model::module(model, at.image(384)?)
        },
    },
    Entry {
        name: "segformer-b1",
        build: |at| {
            let config = config(json!({
                "num_channels": 3, "num_encoder_blocks": 4, "depths": [2, 2, 2, 2], "sr_ratios": [8, 4, 2, 1],
                "hidden_sizes": [64, 128, 320, 512], "patch_sizes": [7, 3, 3, 3], "strides": [4, 2, 2, 2],
                "num_attention_heads": [1, 2, 5, 8], "mlp_ratios": [4, 4, 4, 4], "hidden_act": "gelu",
                "layer_norm_eps": 1e-6, "decoder_hidden_size": 256
            }))?;
            Model::module(segformer::SemanticSegmentationModel::new(&config, 150, at.weights())?, at.image(512)?)
        },
    },
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
            let model = t5::T5EncoderModel::load(at.weights(), &config)?;
            Model::fresh(model, [at.tokens(LENGTH, 32128)?], |model, x| model.forward(&x[0]))
        },
    },
    Entry {
        name: "qwen2.5-1.5b",
        build: |at| {
            let config = config(json!({
                "vocab_size": 151936, "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28,
                "num_attention_heads": 12, "num_key_value_heads": 2, "max_position_embeddings": 32768,
                "sliding_window": 32768, "max_window_layers": 28, "tie_word_embeddings": true,
                "rope_theta": 1000000.0, "rms_norm_eps": 1e-6, "use_sliding_window": false, "hidden_act": "silu"
            }))?;
            let weights = at.weights_without(|name, _| name == "lm_head.weight");
            prompt(at, qwen2::ModelForCausalLM::new(&config, weights)?, 151936, |model, ids| model.forward(ids, 0))
        },
    },
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
