//! Audio models.

use candle_transformers::models::*;
use serde_json::json;

use crate::entry::{config, Entry, Model, Target};

/// The models.
pub const ENTRIES: &[Entry] = &[
    Entry {
        name: "whisper-tiny-encoder",
        build: |at| {
            let model = whisper_tiny(at)?;
            Model::fresh(model.encoder, [spectrogram(at)?], |encoder, x| encoder.forward(&x[0], true))
        },
    },
    Entry {
        name: "whisper-tiny",
        build: |at| {
            Model::fresh(whisper_tiny(at)?, [spectrogram(at)?, at.tokens(32, 51865)?], |model, x| {
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

fn whisper_tiny(at: &Target) -> anyhow::Result<whisper::model::Whisper> {
    let config = config(json!({
        "num_mel_bins": 80, "max_source_positions": 1500, "d_model": 384, "encoder_attention_heads": 6,
        "encoder_layers": 4, "vocab_size": 51865, "max_target_positions": 448, "decoder_attention_heads": 6,
        "decoder_layers": 4
    }))?;
    Ok(whisper::model::Whisper::load(&at.weights(), config)?)
}

/// 30 seconds of sound, as a spectrogram.
fn spectrogram(at: &Target) -> anyhow::Result<candle::Tensor> {
    at.noises((80, whisper::N_FRAMES))
}
