//! `config.json` of every family (`a`), and `generation_config.json` (`b`). A model that a small configuration describes must run.

use std::cell::RefCell;

use candle::{DType, Device, Result, Tensor};
use opara_models::{bert, decoder, t5};
use opara_weights::{seeded, Checkpoint, Unread};

use crate::folder::Folder;
use crate::parts::{part, split};

thread_local! {
    static FOLDER: RefCell<Folder> = RefCell::default();
}

/// Weights of the largest model that is run.
const MOST: usize = 1 << 16;

/// Reads an input, and says whether it could be read.
pub fn run(bytes: &[u8]) -> bool {
    let parts = split(bytes);
    let config = part(&parts, b'a').unwrap_or_default();
    let checkpoint = FOLDER.with_borrow_mut(|folder| {
        folder.put("config.json", config);
        folder.set("generation_config.json", part(&parts, b'b'));
        folder.put("model.safetensors", include_bytes!("../../weights/tests/data/same.safetensors"));
        Checkpoint::find(&folder.path().display().to_string())
    });
    let Ok(checkpoint) = checkpoint.map(|checkpoint| checkpoint.allow_unread(bytes.len().is_multiple_of(2))) else {
        return false;
    };
    let mut is_read = false;
    if let Ok(config) = decoder::Config::of_checkpoint(&checkpoint) {
        is_read = true;
        let _ = config.fits(1, config.max_positions.min(8), DType::F32, &Device::Cpu);
        if config.parameters() < MOST as u64 && config.layers.len() <= 4 {
            let _ = decode(&config);
        }
    }
    if let Ok(config) = bert::Config::of_checkpoint(&checkpoint) {
        is_read = true;
        let _ = encode(&config);
    }
    if let Ok(config) = t5::Config::of_checkpoint(&checkpoint) {
        is_read = true;
        let _ = translate(&config);
    }
    let Ok(json) = checkpoint.config::<serde_json::Value>() else { return false };
    for unread in [Unread::Refuse, Unread::Warn] {
        let _ = bert::Config::from_json(&json, unread);
        let _ = t5::Config::from_json(&json, unread);
    }
    let _ = decoder::Config::from_json(&json);
    is_read
}

fn ids(vocab: usize) -> Result<Tensor> {
    Tensor::new(&[[0u32, (vocab - 1) as u32, 0]], &Device::Cpu)
}

fn decode(config: &decoder::Config) -> decoder::Result<()> {
    let context = config.max_positions.min(8);
    let model = decoder::Decoder::load(seeded(1, DType::F32, &Device::Cpu), config, context)?;
    let cache = model.cache(1)?;
    let hidden = model.forward(&ids(config.vocab)?, &cache)?;
    let logits = model.logits(&hidden)?;
    assert_eq!(logits.dims(), [1, 3, config.vocab]);
    Ok(())
}

fn encode(config: &bert::Config) -> Result<()> {
    let bert::Config { vocab_size, hidden_size: hidden, num_hidden_layers: layers, .. } = *config;
    let tables = vocab_size.saturating_add(config.type_vocab_size).saturating_add(config.max_position_embeddings);
    let layer = hidden.saturating_mul(4).saturating_add(config.intermediate_size.saturating_mul(2));
    let all = tables.saturating_add(layers.saturating_mul(layer)).saturating_mul(hidden);
    if all > MOST || layers > 4 {
        return Ok(());
    }
    let model = bert::BertModel::load(seeded(1, DType::F32, &Device::Cpu), config)?;
    let ids = ids(vocab_size.max(1))?;
    model.forward(&ids, &ids.zeros_like()?, Some(&ids.ones_like()?))?;
    Ok(())
}

fn translate(config: &t5::Config) -> Result<()> {
    let inner = config.d_kv.saturating_mul(config.num_heads);
    let layers = config.num_layers.saturating_add(config.decoder_layers());
    let layer = inner.saturating_mul(8).saturating_add(config.d_ff.saturating_mul(3));
    let all = layers.saturating_mul(layer).saturating_add(config.vocab_size.saturating_mul(2));
    let all = all.saturating_add(config.relative_attention_num_buckets).saturating_mul(config.d_model.max(inner));
    if all > MOST || layers > 6 || config.n_positions > 64 {
        return Ok(());
    }
    let model = t5::T5::load(seeded(1, DType::F32, &Device::Cpu), config)?;
    let ids = ids(config.vocab_size.max(1))?;
    model.forward(&ids, &ids, None)?;
    Ok(())
}
