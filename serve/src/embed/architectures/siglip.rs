//! The towers of SigLIP: candle's modules, unchanged. That of texts sees padding, since it was trained on texts of one length.

use std::sync::Arc;

use candle::Module;
use candle_nn::{Activation, VarBuilder};
use candle_transformers::models::siglip::{TextConfig, TextModel, VisionConfig, VisionModel};
use opara_weights::{Fields, Harmless, Unread, TRANSFORMERS};
use serde_json::Value;

use super::super::architecture::{Architecture, Padding, Pictures, Sizes, Tower};
use super::super::Result;
use super::towers::{self, is_of_pictures};

const HARMLESS: Harmless = Harmless {
    names: &["sentence_transformers"],
    neutral: &[
        ("hidden_act", "\"gelu_pytorch_tanh\""),
        ("is_decoder", "false"),
        ("vision_use_head", "true"),
        ("tie_word_embeddings", "true"),
        ("tie_word_embeddings", "false"),
    ],
};

pub(super) fn read(json: &Value, unread: Unread) -> Result<Architecture> {
    let whole = Fields::of(json)?;
    let fields = whole.object("text_config")?;
    let default = |name: &str, default: usize| fields.count(name).map(|count| count.unwrap_or(default));
    let width = default("hidden_size", 768)?;
    if let Some(size) = fields.count("projection_size")?.filter(|&size| size != width) {
        return Err(fields
            .unsound("projection_size", format!("is {size}: candle's module gives {width} elements"))
            .into());
    }
    let pad = fields.parsed("pad_token_id", "a token", |token| u32::try_from(token.as_u64()?).ok())?.unwrap_or(1);
    let config = TextConfig {
        vocab_size: default("vocab_size", 32_000)?,
        hidden_size: width,
        intermediate_size: default("intermediate_size", 3_072)?,
        num_hidden_layers: default("num_hidden_layers", 12)?,
        num_attention_heads: default("num_attention_heads", 12)?,
        max_position_embeddings: default("max_position_embeddings", 64)?,
        hidden_act: Activation::GeluPytorchTanh,
        layer_norm_eps: fields.epsilon("layer_norm_eps")?.unwrap_or(1e-6),
        pad_token_id: pad,
        bos_token_id: 0,
        eos_token_id: 0,
    };
    fields.check(&[TRANSFORMERS, HARMLESS], unread)?;
    let pictures = pictures(&whole.object("vision_config")?, unread)?;
    whole.check(&[TRANSFORMERS, HARMLESS], unread)?;
    let sizes = Sizes::without_types(config.vocab_size, width, config.max_position_embeddings);
    let architecture = Architecture::new(sizes, move |vb, _| {
        let model = TextModel::new(&config, vb.pp("text_model"))?;
        Ok(Box::new(move |tokens| model.forward(tokens.ids)))
    });
    Ok(architecture.padded(Padding::Full, pad).pooling_itself().seeing(Some(pictures)).without(is_of_pictures))
}

fn pictures(fields: &Fields<&Value>, unread: Unread) -> Result<Pictures> {
    let default = |name: &str, default: usize| fields.count(name).map(|count| count.unwrap_or(default));
    let config = VisionConfig {
        hidden_size: default("hidden_size", 768)?,
        intermediate_size: default("intermediate_size", 3_072)?,
        num_hidden_layers: default("num_hidden_layers", 12)?,
        num_attention_heads: default("num_attention_heads", 12)?,
        num_channels: default("num_channels", 3)?,
        image_size: default("image_size", 224)?,
        patch_size: default("patch_size", 16)?,
        hidden_act: Activation::GeluPytorchTanh,
        layer_norm_eps: fields.epsilon("layer_norm_eps")?.unwrap_or(1e-6),
    };
    fields.check(&[TRANSFORMERS, HARMLESS], unread)?;
    towers::check_patches(fields, config.image_size, config.patch_size)?;
    let (channels, side) = (config.num_channels, config.image_size);
    let load = move |vb: VarBuilder<'static>| -> candle::Result<Tower> {
        let tower = VisionModel::new(&config, true, vb.pp("vision_model"))?;
        Ok(Box::new(move |pixels| tower.forward(pixels)))
    };
    Ok(Pictures { channels, side, load: Arc::new(load) })
}
