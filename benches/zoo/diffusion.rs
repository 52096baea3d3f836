//! Models that generate images from noise, at 256 by 256 pixels, and at 512 by 512 those called `-64`.

use anyhow::Result;
use candle::Tensor;
use candle_transformers::models::flux::WithForward;
use candle_transformers::models::*;

use crate::entry::{Entry, Model, Target};

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
    Entry { name: "sd-1.5-unet", build: |at| unet(at, LATENT) },
    Entry { name: "sd-1.5-unet-64", build: |at| unet(at, 64) },
    Entry { name: "sd-1.5-vae-decoder", build: |at| vae_decoder(at, LATENT) },
    Entry { name: "sd-1.5-vae-decoder-64", build: |at| vae_decoder(at, 64) },
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
    Entry { name: "flux-small", build: flux_small },
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

/// The UNet of Stable Diffusion 1.5 for a latent image of this height and width.
fn unet(at: &Target, latent: usize) -> Result<Model> {
    // Version 1.5 differs from the default only in this.
    let config =
        stable_diffusion::unet_2d::UNet2DConditionModelConfig { cross_attention_dim: 768, ..Default::default() };
    let model = stable_diffusion::unet_2d::UNet2DConditionModel::new(at.weights(), 4, 4, false, config)?;
    Model::new([at.noises((4, latent, latent))?, at.noises((PROMPT, 768))?], move |x| {
        Ok(vec![model.forward(&x[0], STEP, &x[1])?])
    })
}

/// Flux's transformer with an eighth of its heads and a tenth of its blocks, on an image of 16 by 16 patches.
fn flux_small(at: &Target) -> Result<Model> {
    const PATCHES: usize = 16 * 16;
    let config = flux::model::Config {
        context_in_dim: 768,
        hidden_size: 3 * 128,
        num_heads: 3,
        depth: 2,
        depth_single_blocks: 4,
        ..flux::model::Config::schnell()
    };
    let model = flux::model::Flux::new(&config, at.weights())?;
    let step = Tensor::full(STEP as f32 / 1000., 1, &at.device)?.to_dtype(at.dtype)?;
    let places = Tensor::arange(0f32, PATCHES as f32, &at.device)?;
    let row = (&places / 16.)?.floor()?;
    let places = Tensor::stack(&[row.zeros_like()?, row.clone(), (places - row * 16.)?], 1)?;
    let inputs = [
        at.noise((1, PATCHES, config.in_channels))?,
        places.unsqueeze(0)?.to_dtype(at.dtype)?,
        at.noise((1, PROMPT, config.context_in_dim))?,
        Tensor::zeros((1, PROMPT, 3), at.dtype, &at.device)?,
        step,
        at.noise((1, config.vec_in_dim))?,
    ];
    Model::new(inputs, move |x| Ok(vec![model.forward(&x[0], &x[1], &x[2], &x[3], &x[4], &x[5], None)?]))
}

/// Its decoder from a latent image of this height and width to one of eight times as many pixels.
fn vae_decoder(at: &Target, latent: usize) -> Result<Model> {
    let config = stable_diffusion::vae::AutoEncoderKLConfig {
        block_out_channels: vec![128, 256, 512, 512],
        layers_per_block: 2,
        ..Default::default()
    };
    let model = stable_diffusion::vae::AutoEncoderKL::new(at.weights(), 3, 3, config)?;
    Model::new([at.noises((4, latent, latent))?], move |x| Ok(vec![model.decode(&x[0])?]))
}
