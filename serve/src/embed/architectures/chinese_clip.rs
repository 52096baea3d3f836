//! The towers of Chinese CLIP: candle's modules, unchanged. The first token stands for a text.

use std::sync::Arc;

use candle::Module;
use candle_nn::VarBuilder;
use candle_transformers::models::chinese_clip::text_model::{
    ChineseClipTextConfig, ChineseClipTextTransformer, PositionEmbeddingType,
};
use candle_transformers::models::chinese_clip::vision_model::{ChineseClipVisionConfig, ChineseClipVisionTransformer};
use candle_transformers::models::chinese_clip::Activation;
use opara_weights::{Fields, Harmless, Unread, WeightsError, TRANSFORMERS};
use serde_json::Value;

use super::super::architecture::{Architecture, Pictures, Sizes, Tower};
use super::super::{PoolingMode, Result};
use super::towers::{self, is_of_pictures};

const HARMLESS: Harmless = Harmless {
    // Of training, of the scale of a comparison, and of a pooler that the model does not use.
    names: &[
        "directionality",
        "dropout",
        "logit_scale_init_value",
        "pooler_fc_size",
        "pooler_num_attention_heads",
        "pooler_num_fc_layers",
        "pooler_size_per_head",
        "pooler_type",
        "sentence_transformers",
    ],
    neutral: &[
        ("is_decoder", "false"),
        ("position_embedding_type", "\"absolute\""),
        ("tie_word_embeddings", "true"),
        ("tie_word_embeddings", "false"),
    ],
};

pub(super) fn read(json: &Value, unread: Unread) -> Result<Architecture> {
    let whole = Fields::of(json)?;
    let projected = whole.count("projection_dim")?.unwrap_or(512);
    let read = |fields: &Fields<&Value>| texts(fields, unread);
    let config = read(&whole.object("text_config")?)?;
    towers::check_second(&whole, "text_config_dict", &config, read)?;
    let read = |fields: &Fields<&Value>| pictures(fields, projected, unread);
    let seen = read(&whole.object("vision_config")?)?;
    towers::check_second(&whole, "vision_config_dict", &seen, read)?;
    whole.check(&[TRANSFORMERS, HARMLESS], unread)?;
    let sizes = Sizes {
        vocabulary: config.vocab_size,
        width: projected,
        positions: config.max_position_embeddings,
        token_types: config.type_vocab_size,
    };
    let architecture = Architecture::new(sizes, move |vb, _| {
        let model = ChineseClipTextTransformer::new(vb.pp("text_model"), &config)?;
        let projection = candle_nn::linear_no_bias(config.hidden_size, projected, vb.pp("text_projection"))?;
        Ok(Box::new(move |tokens| {
            let first = model.forward(tokens.ids, Some(tokens.types), Some(tokens.mask))?;
            projection.forward(&first.contiguous()?)
        }))
    });
    // The module multiplies the mask by the least number of f32. That is infinite in 16 bits, and zero times infinity is NaN.
    Ok(architecture
        .pooled(PoolingMode::Cls)
        .pooling_itself()
        .in_f32_only()
        .seeing(Some(tower(seen, projected)))
        .without(|name| is_of_pictures(name) || name.starts_with("text_model.pooler.")))
}

fn texts(fields: &Fields<&Value>, unread: Unread) -> Result<ChineseClipTextConfig> {
    let default = |name: &str, default: usize| fields.count(name).map(|count| count.unwrap_or(default));
    let config = ChineseClipTextConfig {
        vocab_size: default("vocab_size", 30_522)?,
        hidden_size: default("hidden_size", 768)?,
        num_hidden_layers: default("num_hidden_layers", 12)?,
        num_attention_heads: default("num_attention_heads", 12)?,
        intermediate_size: default("intermediate_size", 3_072)?,
        hidden_act: activation(fields, Activation::Gelu)?,
        max_position_embeddings: default("max_position_embeddings", 512)?,
        type_vocab_size: default("type_vocab_size", 2)?,
        layer_norm_eps: fields.epsilon("layer_norm_eps")?.unwrap_or(1e-12),
        position_embedding_type: PositionEmbeddingType::Absolute,
        ..ChineseClipTextConfig::default()
    };
    fields.check(&[TRANSFORMERS, HARMLESS], unread)?;
    Ok(config)
}

fn pictures(fields: &Fields<&Value>, projected: usize, unread: Unread) -> Result<ChineseClipVisionConfig> {
    let default = |name: &str, default: usize| fields.count(name).map(|count| count.unwrap_or(default));
    // The projection is read of the whole model.
    fields.count("projection_dim")?;
    let config = ChineseClipVisionConfig {
        hidden_size: default("hidden_size", 768)?,
        intermediate_size: default("intermediate_size", 3_072)?,
        projection_dim: projected,
        num_hidden_layers: default("num_hidden_layers", 12)?,
        num_attention_heads: default("num_attention_heads", 12)?,
        num_channels: default("num_channels", 3)?,
        image_size: default("image_size", 224)?,
        patch_size: default("patch_size", 32)?,
        hidden_act: activation(fields, Activation::QuickGelu)?,
        layer_norm_eps: fields.epsilon("layer_norm_eps")?.unwrap_or(1e-5),
        ..ChineseClipVisionConfig::default()
    };
    fields.check(&[TRANSFORMERS, HARMLESS], unread)?;
    towers::check_patches(fields, config.image_size, config.patch_size)?;
    Ok(config)
}

fn tower(config: ChineseClipVisionConfig, projected: usize) -> Pictures {
    let (channels, side) = (config.num_channels, config.image_size);
    let load = move |vb: VarBuilder<'static>| -> candle::Result<Tower> {
        // Where it is missing the module takes random numbers.
        vb.get(config.hidden_size, "vision_model.embeddings.class_embedding")?;
        let tower = ChineseClipVisionTransformer::new(vb.pp("vision_model"), &config)?;
        let projection = candle_nn::linear_no_bias(config.hidden_size, projected, vb.pp("visual_projection"))?;
        Ok(Box::new(move |pixels| projection.forward(&tower.forward(pixels)?)))
    };
    Pictures { channels, side, load: Arc::new(load) }
}

fn activation(fields: &Fields<&Value>, default: Activation) -> Result<Activation, WeightsError> {
    let named = |act: &Value| match act.as_str()? {
        "quick_gelu" => Some(Activation::QuickGelu),
        "gelu" => Some(Activation::Gelu),
        "gelu_new" => Some(Activation::GeluNew),
        "relu" => Some(Activation::Relu),
        _ => None,
    };
    Ok(fields.parsed("hidden_act", "one of quick_gelu, gelu, gelu_new, relu", named)?.unwrap_or(default))
}
