//! The tower of CLIP that reads texts: candle's module, unchanged. The last token stands for the text.

use candle::Module;
use candle_transformers::models::clip::text_model::{Activation, ClipTextConfig, ClipTextTransformer};
use opara_weights::{Fields, Harmless, Unread, TRANSFORMERS};
use serde_json::Value;

use super::super::architecture::{Architecture, Sizes};
use super::super::{PoolingMode, Result};

const HARMLESS: Harmless = Harmless {
    names: &[
        "dropout",
        "logit_scale_init_value",
        "sentence_transformers",
        "text_config_dict",
        "vision_config",
        "vision_config_dict",
    ],
    neutral: &[
        // candle's module has these.
        ("hidden_act", "\"quick_gelu\""),
        ("layer_norm_eps", "1e-05"),
        ("tie_word_embeddings", "true"),
        ("tie_word_embeddings", "false"),
    ],
};

pub(super) fn read(json: &Value, unread: Unread) -> Result<Architecture> {
    let whole = Fields::of(json)?;
    let text = whole.inside("text_config")?;
    let fields = text.as_ref().unwrap_or(&whole);
    let default = |name: &str, default: usize| fields.count(name).map(|count| count.unwrap_or(default));
    let projected = whole.count("projection_dim")?;
    let projected = fields.count("projection_dim")?.or(projected).unwrap_or(512);
    let config = ClipTextConfig {
        vocab_size: default("vocab_size", 49_408)?,
        embed_dim: default("hidden_size", 512)?,
        activation: Activation::QuickGelu,
        intermediate_size: default("intermediate_size", 2_048)?,
        max_position_embeddings: default("max_position_embeddings", 77)?,
        pad_with: None,
        num_hidden_layers: default("num_hidden_layers", 12)?,
        num_attention_heads: default("num_attention_heads", 8)?,
        projection_dim: projected,
    };
    fields.check(&[TRANSFORMERS, HARMLESS], unread)?;
    whole.check(&[TRANSFORMERS, HARMLESS], unread)?;
    let sizes = Sizes {
        vocabulary: config.vocab_size,
        width: projected,
        positions: config.max_position_embeddings,
        token_types: 1,
    };
    let architecture = Architecture::new(sizes, move |vb, _| {
        let model = ClipTextTransformer::new(vb.pp("text_model"), &config)?;
        let projection = candle_nn::linear_no_bias(config.embed_dim, projected, vb.pp("text_projection"))?;
        // No token sees those behind it, so that padding needs no mask.
        Ok(Box::new(move |tokens| projection.forward(&model.forward_with_mask(tokens.ids, usize::MAX)?)))
    });
    Ok(architecture.pooled(PoolingMode::LastToken).without(is_of_pictures))
}

/// Tensors of the tower that sees pictures, and of the comparison of the two.
pub(super) fn is_of_pictures(name: &str) -> bool {
    ["vision_model.", "visual_projection.", "logit_scale", "logit_bias"].iter().any(|part| name.starts_with(part))
}
