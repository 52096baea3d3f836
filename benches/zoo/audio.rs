//! Audio models.

use candle_transformers::models::*;
use serde_json::json;

use crate::entry::{config, Entry, Model, Target};

/// The models.
pub const ENTRIES: &[Entry] = &[
    Entry { name: "whisper-tiny-encoder", build: |at| whisper_encoder(at, [384, 4, 6]) },
    Entry {
        name: "whisper-tiny",
        build: |at| {
            Model::fresh(whisper(at, [384, 4, 6])?, [spectrogram(at)?, at.tokens(32, 51865)?], |model, x| {
                let sound = model.encoder.forward(&x[0], true)?;
                let hidden = model.decoder.forward(&x[1], &sound, true)?;
                model.decoder.final_linear(&hidden)
            })
        },
    },
    // The codecs take one second of sound each.
    Entry {
        name: "encodec-24khz-decoder",
        build: |at| {
            let model = encodec::Model::new(&encodec::Config::default(), at.weights())?;
            Model::new([at.ids((1, 32, 75), 1024)?], move |x| Ok(vec![model.decode(&x[0])?]))
        },
    },
    Entry {
        name: "dac-44khz-decoder",
        build: |at| {
            let config = config(json!({
                "num_codebooks": 9, "model_bitrate": 8, "codebook_size": 1024, "latent_dim": 1024, "frame_rate": 86,
                "sampling_rate": 44100
            }))?;
            let model = dac::Model::new(&config, at.weights())?;
            Model::new([at.tokens(9 * 86, 1024)?.reshape(((), 9, 86))?], move |x| Ok(vec![model.decode_codes(&x[0])?]))
        },
    },
    Entry {
        name: "mimi-decoder",
        build: |at| {
            let model = mimi::Model::new(mimi::Config::v0_1(Some(8)), at.weights())?;
            Model::fresh(model, [at.ids((1, 8, 13), 2048)?], |model, x| model.decode(&x[0]))
        },
    },
];

/// Whisper's encoder: width, layers and heads.
pub fn whisper_encoder(at: &Target, sizes: [usize; 3]) -> anyhow::Result<Model> {
    Model::fresh(whisper(at, sizes)?.encoder, [spectrogram(at)?], |encoder, x| encoder.forward(&x[0], true))
}

fn whisper(at: &Target, [width, layers, heads]: [usize; 3]) -> anyhow::Result<whisper::model::Whisper> {
    let config = config(json!({
        "num_mel_bins": 80, "max_source_positions": 1500, "d_model": width, "encoder_attention_heads": heads,
        "encoder_layers": layers, "vocab_size": 51865, "max_target_positions": 448, "decoder_attention_heads": heads,
        "decoder_layers": layers
    }))?;
    Ok(whisper::model::Whisper::load(&at.weights(), config)?)
}

/// 30 seconds of sound, as a spectrogram.
fn spectrogram(at: &Target) -> anyhow::Result<candle::Tensor> {
    at.noises((80, whisper::N_FRAMES))
}
