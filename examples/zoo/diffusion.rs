//! Models that generate images from noise, at 256 by 256 pixels.

use candle::Tensor;
use candle_transformers::models::*;

use crate::entry::{Entry, Model};

/// Height and width of a latent image.
const LATENT: usize = 32;

/// Tokens of a prompt.
const PROMPT: usize = 77;

/// The diffusion step.
const STEP: f64 = 500.;

/// The models.
pub const ENTRIES: &[Entry] = &[
    Entry {
        name: "sd-1.5-text",
        build: |at| {
            let config = stable_diffusion::clip::Config::v1_5();
            let model = stable_diffusion::clip::ClipTextTransformer::new(at.weights(), &config)?;
            Model::module(model, at.tokens(PROMPT, 49408)?)
        },
    },
    Entry {
        name: "sd-1.5-unet",
        build: |at| {
            // Version 1.5 differs from the default only in this.
            let config = stable_diffusion::unet_2d::UNet2DConditionModelConfig {
                cross_attention_dim: 768,
                ..Default::default()
            };
            let model = stable_diffusion::unet_2d::UNet2DConditionModel::new(at.weights(), 4, 4, false, config)?;
            Model::new([at.noise((1, 4, LATENT, LATENT))?, at.noise((1, PROMPT, 768))?], move |x| {
                Ok(vec![model.forward(&x[0], STEP, &x[1])?])
            })
        },
    },
    Entry {
        name: "sd-1.5-vae-decoder",
        build: |at| {
            let config = stable_diffusion::vae::AutoEncoderKLConfig {
                block_out_channels: vec![128, 256, 512, 512],
                layers_per_block: 2,
                ..Default::default()
            };
            let model = stable_diffusion::vae::AutoEncoderKL::new(at.weights(), 3, 3, config)?;
            Model::new([at.noise((1, 4, LATENT, LATENT))?], move |x| Ok(vec![model.decode(&x[0])?]))
        },
    },
    Entry {
        // The model computes the embedding of its step in f16, whatever its weights' dtype.
        name: "sd3-medium-mmdit",
        build: |at| {
            let step = Tensor::full(STEP as f32, 1, &at.device)?;
            let prompt = at.noise((1, 2 * PROMPT, 4096))?;
            let inputs = [at.noise((1, 16, LATENT, LATENT))?, step, at.noise((1, 2048))?, prompt];
            // Only version 3.5 has a second attention.
            let weights = at.weights_without(|name, _| name.contains(".attn2."));
            Model::local(inputs, weights, |weights| {
                let model = mmdit::model::MMDiT::new(&mmdit::model::Config::sd3_medium(), false, weights)?;
                Ok(move |x: &[Tensor]| Ok(vec![model.forward(&x[0], &x[1], &x[2], &x[3], None)?]))
            })
        },
    },
    Entry {
        name: "flux-vae-decoder",
        build: |at| {
            let model = flux::autoencoder::AutoEncoder::new(&flux::autoencoder::Config::schnell(), at.weights())?;
            Model::new([at.noise((1, 16, LATENT, LATENT))?], move |x| Ok(vec![model.decode(&x[0])?]))
        },
    },
    Entry {
        name: "wuerstchen-vq-decoder",
        build: |at| {
            let model = wuerstchen::paella_vq::PaellaVQ::new(at.weights())?;
            Model::new([at.noise((1, 4, 64, 64))?], move |x| Ok(vec![model.decode(&x[0])?]))
        },
    },
];
