//! Models of images, and of images with text.

use std::sync::Arc;

use candle::{Module, ModuleT, Tensor};
use candle_transformers::models::*;
use serde_json::json;

use crate::entry::{config, Entry, Model, Target};

/// Classes of ImageNet.
pub const CLASSES: usize = 1000;

/// The models.
pub const ENTRIES: &[Entry] = &[
    Entry { name: "resnet18", build: |at| Model::module(resnet::resnet18(CLASSES, at.weights())?, at.image(224)?) },
    Entry { name: "resnet34", build: |at| Model::module(resnet::resnet34(CLASSES, at.weights())?, at.image(224)?) },
    Entry { name: "resnet50", build: |at| Model::module(resnet::resnet50(CLASSES, at.weights())?, at.image(224)?) },
    Entry { name: "vgg16", build: |at| vgg(at, vgg::Models::Vgg16) },
    Entry { name: "efficientnet-b0", build: |at| efficientnet(at, efficientnet::MBConvConfig::b0(), 224) },
    Entry {
        name: "efficientvit-m0",
        build: |at| {
            let config = efficientvit::Config::m0();
            Model::module(efficientvit::efficientvit(&config, CLASSES, at.weights())?, at.image(224)?)
        },
    },
    Entry {
        name: "repvgg-a0",
        build: |at| {
            let config = repvgg::Config::a0();
            Model::module(repvgg::repvgg(&config, CLASSES, at.weights())?, at.image(224)?)
        },
    },
    Entry {
        name: "mobileone-s0",
        build: |at| {
            // Only larger variants have squeeze-and-excitation blocks.
            let weights = at.weights_without(|name, _| name.contains(".attn."));
            Model::module(mobileone::mobileone(&mobileone::Config::s0(), CLASSES, weights)?, at.image(224)?)
        },
    },
    Entry { name: "mobilenetv4-small", build: |at| mobilenetv4(at, &mobilenetv4::Config::small(), 224) },
    Entry {
        name: "convmixer-1024-20",
        build: |at| Model::module(convmixer::c1024_20(CLASSES, at.weights())?, at.image(224)?),
    },
    Entry { name: "convnextv2-atto", build: |at| convnextv2(at, &convnext::Config::atto()) },
    Entry { name: "convnext-tiny", build: |at| convnext(at, &convnext::Config::tiny()) },
    Entry {
        name: "fastvit-t8",
        build: |at| {
            let weights = at.weights_without(|name, _| {
                not_in_fastvit(name) || name.contains(".pos_emb.") || name.contains(".proj.0.se.")
            });
            Model::module(fastvit::fastvit(&fastvit::Config::t8(), CLASSES, weights)?, at.image(256)?)
        },
    },
    Entry { name: "hiera-tiny", build: |at| hiera(at, &hiera::Config::tiny()) },
    Entry {
        name: "vit-base",
        build: |at| {
            let config = vit::Config::vit_base_patch16_224();
            let model = vit::Model::new(&config, CLASSES, at.weights())?;
            Model::new([at.image(224)?], move |x| Ok(vec![model.forward(&x[0])?]))
        },
    },
    Entry { name: "beit-base", build: |at| Model::module(beit::vit_base(at.weights())?, at.image(384)?) },
    Entry { name: "eva2-base", build: |at| Model::module(eva2::vit_base(at.weights())?, at.image(448)?) },
    Entry { name: "dinov2-small", build: |at| Model::module(dinov2::vit_small(at.weights())?, at.image(518)?) },
    Entry {
        name: "dinov2-large",
        build: |at| Model::module(dinov2::DinoVisionTransformer::new(at.weights(), 24, 1024, 16)?, at.image(518)?),
    },
    Entry {
        name: "dinov2-reg4-small",
        build: |at| Model::module(dinov2reg4::vit_small(at.weights())?, at.image(518)?),
    },
    Entry {
        name: "depth-anything-v2-small",
        build: |at| {
            Model::local([at.image(518)?], at.weights(), |weights| {
                let encoder = Arc::new(dinov2::vit_small(weights.pp("pretrained"))?);
                let config = depth_anything_v2::DepthAnythingV2Config::vit_small();
                let model = depth_anything_v2::DepthAnythingV2::new(encoder, config, weights)?;
                Ok(move |x: &[Tensor]| Ok(vec![model.forward(&x[0])?]))
            })
        },
    },
    Entry { name: "segformer-b0", build: |at| segformer(at, [2, 2, 2, 2], [32, 64, 160, 256], 256) },
    Entry {
        name: "mobile-sam",
        build: |at| {
            let model = segment_anything::sam::Sam::new_tiny(at.weights())?;
            let pixels = at.noise((3, 1024, 1024))?;
            Model::new([pixels], move |x| {
                let (mask, score) = model.forward(&x[0], &[(0.5, 0.5, true)], true)?;
                Ok(vec![mask, score])
            })
        },
    },
    Entry {
        name: "clip-vit-b32-vision",
        build: |at| {
            let config = clip::vision_model::ClipVisionConfig::vit_base_patch32();
            Model::module(clip::vision_model::ClipVisionTransformer::new(at.weights(), &config)?, at.image(224)?)
        },
    },
    Entry {
        name: "clip-vit-b32",
        build: |at| {
            let model = clip::ClipModel::new(at.weights(), &clip::ClipConfig::vit_base_patch32())?;
            Model::new([at.image(224)?, at.tokens(77, 49408)?], move |x| {
                let (text, image) = model.forward(&x[0], &x[1])?;
                Ok(vec![text, image])
            })
        },
    },
    Entry {
        name: "mobileclip-s1",
        build: |at| {
            let weights = at.weights_without(|name, _| {
                let late = name.contains("stages.2.") || name.contains("stages.3.");
                not_in_fastvit(name)
                    || name.contains(".pos_emb.") && !name.contains("stages.3.")
                    || name.contains(".proj.0.se.") && !late
            });
            let model = mobileclip::MobileClipModel::new(weights, &mobileclip::MobileClipConfig::s1())?;
            Model::new([at.image(256)?, at.tokens(77, 49408)?], move |x| {
                let (text, image) = model.forward(&x[0], &x[1])?;
                Ok(vec![text, image])
            })
        },
    },
    Entry {
        name: "siglip-base",
        build: |at| {
            let model = siglip::Model::new(&siglip::Config::base_patch16_224(), at.weights())?;
            Model::new([at.image(224)?, at.tokens(64, 32000)?], move |x| {
                let (text, image) = model.forward(&x[0], &x[1])?;
                Ok(vec![text, image])
            })
        },
    },
    Entry {
        name: "blip-large-vision",
        build: |at| {
            let config = blip::Config::image_captioning_large();
            let model = blip::BlipForConditionalGeneration::new(&config, at.weights())?;
            Model::module(model.vision_model().clone(), at.image(384)?)
        },
    },
    Entry {
        name: "trocr-base",
        build: |at| {
            let encoder = vit::Config::microsoft_trocr_base_handwritten();
            let model = trocr::TrOCRModel::new(&encoder, &trocr::TrOCRConfig::default(), at.weights())?;
            // The decoder uses one mask for both of its attentions, so that only an input of one token works.
            Model::fresh(model, [at.image(384)?, at.tokens(1, 50265)?], |model, x| {
                let image = model.encoder().forward(&x[0])?;
                model.decode(&x[1], &image, 0)
            })
        },
    },
];

pub fn vgg(at: &Target, which: vgg::Models) -> anyhow::Result<Model> {
    let model = vgg::Vgg::new(at.weights(), which)?;
    Model::new([at.noise((3, 224, 224))?], move |x| Ok(vec![model.forward_t(&x[0], false)?]))
}

pub fn efficientnet(at: &Target, blocks: Vec<efficientnet::MBConvConfig>, size: usize) -> anyhow::Result<Model> {
    Model::module(efficientnet::EfficientNet::new(at.weights(), blocks, CLASSES)?, at.image(size)?)
}

/// A variant without attention has no scales of layers, and no empty weights.
pub fn mobilenetv4(at: &Target, config: &mobilenetv4::Config, size: usize) -> anyhow::Result<Model> {
    let weights = at.weights_without(|name, shape| shape.contains(&0) || name.contains("layer_scale"));
    Model::module(mobilenetv4::mobilenetv4(config, CLASSES, weights)?, at.image(size)?)
}

pub fn convnext(at: &Target, config: &convnext::Config) -> anyhow::Result<Model> {
    let weights = at.weights_without(|name, _| name.contains(".grn."));
    Model::module(convnext::convnext(config, CLASSES, weights)?, at.image(224)?)
}

pub fn convnextv2(at: &Target, config: &convnext::Config) -> anyhow::Result<Model> {
    let weights = at.weights_without(|name, _| name.ends_with(".gamma"));
    Model::module(convnext::convnext(config, CLASSES, weights)?, at.image(224)?)
}

/// A block has a projection only where the width changes.
pub fn hiera(at: &Target, config: &hiera::Config) -> anyhow::Result<Model> {
    let weights = at.weights_without(|name, shape| {
        name.ends_with(".proj.weight") && !name.contains(".attn.") && shape.len() == 2 && shape[0] == shape[1]
    });
    Model::module(hiera::hiera(config, CLASSES, weights)?, at.image(224)?)
}

/// Segformer: layers and widths of its stages, and the width of its decoder.
pub fn segformer(at: &Target, depths: [usize; 4], widths: [usize; 4], decoder: usize) -> anyhow::Result<Model> {
    let config = config(json!({
        "num_channels": 3, "num_encoder_blocks": 4, "depths": depths, "sr_ratios": [8, 4, 2, 1],
        "hidden_sizes": widths, "patch_sizes": [7, 3, 3, 3], "strides": [4, 2, 2, 2],
        "num_attention_heads": [1, 2, 5, 8], "mlp_ratios": [4, 4, 4, 4], "hidden_act": "gelu",
        "layer_norm_eps": 1e-6, "decoder_hidden_size": decoder
    }))?;
    Model::module(segformer::SemanticSegmentationModel::new(&config, 150, at.weights())?, at.image(512)?)
}

/// Is this weight missing in all FastViT checkpoints? The model's blocks have different branches.
pub fn not_in_fastvit(name: &str) -> bool {
    const NONE: [&str; 7] = [
        "stages.0.downsample.",
        ".norm.conv_",
        "stem.2.conv_scale.",
        ".proj.1.conv_scale.",
        "stem.0.identity.",
        "stem.1.identity.",
        "final_conv.identity.",
    ];
    let excitation = name.contains(".se.") && !name.contains("final_conv.") && !name.contains(".proj.0.");
    excitation || NONE.iter().any(|part| name.contains(part))
}
