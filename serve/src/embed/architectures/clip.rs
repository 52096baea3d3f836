//! The towers of CLIP: candle's modules, unchanged. The last token stands for a text.

use std::sync::Arc;

use candle::Module;
use candle_nn::VarBuilder;
use candle_transformers::models::clip::text_model::{Activation, ClipTextConfig, ClipTextTransformer};
use candle_transformers::models::clip::vision_model::{ClipVisionConfig, ClipVisionTransformer};
use opara_weights::{Fields, Harmless, Unread, TRANSFORMERS};
use serde_json::Value;

use super::super::architecture::{Architecture, Pictures, Sizes, Tower};
use super::super::{PoolingMode, Result};
use super::towers::{self, is_of_pictures};

const HARMLESS: Harmless = Harmless {
    names: &["dropout", "logit_scale_init_value", "sentence_transformers"],
    neutral: &[
        // candle's module has these.
        ("hidden_act", "\"quick_gelu\""),
        ("is_decoder", "false"),
        ("layer_norm_eps", "1e-05"),
        ("tie_word_embeddings", "true"),
        ("tie_word_embeddings", "false"),
    ],
};

pub(super) fn read(json: &Value, unread: Unread) -> Result<Architecture> {
    let whole = Fields::of(json)?;
    let text = whole.inside("text_config")?;
    let projected = whole.count("projection_dim")?;
    let read = |fields: &Fields<&Value>| texts(fields, projected, unread);
    let config = read(text.as_ref().unwrap_or(&whole))?;
    towers::check_second(&whole, "text_config_dict", &config, read)?;
    let projected = config.projection_dim;
    let pictures = match whole.inside("vision_config")? {
        Some(fields) => {
            let read = |fields: &Fields<&Value>| pictures(fields, projected, unread);
            let config = read(&fields)?;
            towers::check_second(&whole, "vision_config_dict", &config, read)?;
            Some(tower(config, projected))
        }
        None => None,
    };
    whole.check(&[TRANSFORMERS, HARMLESS], unread)?;
    let sizes = Sizes::without_types(config.vocab_size, projected, config.max_position_embeddings);
    let architecture = Architecture::new(sizes, move |vb, _| {
        let model = ClipTextTransformer::new(vb.pp("text_model"), &config)?;
        let projection = candle_nn::linear_no_bias(config.embed_dim, projected, vb.pp("text_projection"))?;
        // No token sees those behind it, so that padding needs no mask.
        Ok(Box::new(move |tokens| projection.forward(&model.forward_with_mask(tokens.ids, usize::MAX)?)))
    });
    Ok(architecture.pooled(PoolingMode::LastToken).seeing(pictures).without(is_of_pictures))
}

fn texts(fields: &Fields<&Value>, projected: Option<usize>, unread: Unread) -> Result<ClipTextConfig> {
    let default = |name: &str, default: usize| fields.count(name).map(|count| count.unwrap_or(default));
    let config = ClipTextConfig {
        vocab_size: default("vocab_size", 49_408)?,
        embed_dim: default("hidden_size", 512)?,
        activation: Activation::QuickGelu,
        intermediate_size: default("intermediate_size", 2_048)?,
        max_position_embeddings: default("max_position_embeddings", 77)?,
        pad_with: None,
        num_hidden_layers: default("num_hidden_layers", 12)?,
        num_attention_heads: default("num_attention_heads", 8)?,
        projection_dim: fields.count("projection_dim")?.or(projected).unwrap_or(512),
    };
    fields.check(&[TRANSFORMERS, HARMLESS], unread)?;
    Ok(config)
}

fn pictures(fields: &Fields<&Value>, projected: usize, unread: Unread) -> Result<ClipVisionConfig> {
    let default = |name: &str, default: usize| fields.count(name).map(|count| count.unwrap_or(default));
    // The projection is read of the whole model.
    fields.count("projection_dim")?;
    let config = ClipVisionConfig {
        embed_dim: default("hidden_size", 768)?,
        activation: Activation::QuickGelu,
        intermediate_size: default("intermediate_size", 3_072)?,
        num_hidden_layers: default("num_hidden_layers", 12)?,
        num_attention_heads: default("num_attention_heads", 12)?,
        projection_dim: projected,
        num_channels: default("num_channels", 3)?,
        image_size: default("image_size", 224)?,
        patch_size: default("patch_size", 32)?,
    };
    fields.check(&[TRANSFORMERS, HARMLESS], unread)?;
    towers::check_patches(fields, config.image_size, config.patch_size)?;
    Ok(config)
}

fn tower(config: ClipVisionConfig, projected: usize) -> Pictures {
    let (channels, side) = (config.num_channels, config.image_size);
    let load = move |vb: VarBuilder<'static>| -> candle::Result<Tower> {
        let tower = ClipVisionTransformer::new(vb.pp("vision_model"), &config)?;
        let projection = candle_nn::linear_no_bias(config.embed_dim, projected, vb.pp("visual_projection"))?;
        Ok(Box::new(move |pixels| projection.forward(&tower.forward(pixels)?)))
    };
    Pictures { channels, side, load: Arc::new(load) }
}
