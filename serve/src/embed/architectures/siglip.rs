//! The tower of SigLIP that reads texts: candle's module, unchanged. It sees padding, since it was trained on texts of one length.

use candle::Module;
use candle_nn::Activation;
use candle_transformers::models::siglip::{TextConfig, TextModel};
use opara_weights::{Fields, Harmless, Unread, TRANSFORMERS};
use serde_json::Value;

use super::super::architecture::{Architecture, Padding, Sizes};
use super::super::Result;
use super::clip::is_of_pictures;

const HARMLESS: Harmless = Harmless {
    names: &["sentence_transformers", "vision_config"],
    neutral: &[
        ("hidden_act", "\"gelu_pytorch_tanh\""),
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
    whole.check(&[TRANSFORMERS, HARMLESS], unread)?;
    let sizes =
        Sizes { vocabulary: config.vocab_size, width, positions: config.max_position_embeddings, token_types: 1 };
    let architecture = Architecture::new(sizes, move |vb, _| {
        let model = TextModel::new(&config, vb.pp("text_model"))?;
        Ok(Box::new(move |tokens| model.forward(tokens.ids)))
    });
    Ok(architecture.padded(Padding::Full, pad).without(is_of_pictures))
}
