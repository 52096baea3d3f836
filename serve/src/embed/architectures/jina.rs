//! Jina's BERT with linear biases instead of positions: candle's module, unchanged. It has no mask.

use candle::Module;
use candle_nn::Activation;
use candle_transformers::models::jina_bert::{BertModel, Config, PositionEmbeddingType};
use opara_weights::{Fields, Harmless, Unread, TRANSFORMERS};
use serde_json::Value;

use super::super::adapted::unprefixed;
use super::super::architecture::{Architecture, Padding, Sizes};
use super::super::Result;

const HARMLESS: Harmless = Harmless {
    names: &["model_max_length", "sentence_transformers"],
    neutral: &[
        ("emb_pooler", "\"mean\""),
        ("feed_forward_type", "\"geglu\""),
        ("hidden_act", "\"gelu\""),
        ("is_decoder", "false"),
        ("tie_word_embeddings", "true"),
        ("tie_word_embeddings", "false"),
    ],
};

pub(super) fn read(json: &Value, unread: Unread) -> Result<Architecture> {
    let fields = Fields::of(json)?;
    fields.get("position_embedding_type");
    let config = Config {
        vocab_size: fields.needed("vocab_size")?,
        hidden_size: fields.needed("hidden_size")?,
        num_hidden_layers: fields.needed("num_hidden_layers")?,
        num_attention_heads: fields.needed("num_attention_heads")?,
        intermediate_size: fields.needed("intermediate_size")?,
        hidden_act: Activation::Gelu,
        max_position_embeddings: fields.needed("max_position_embeddings")?,
        type_vocab_size: fields.count("type_vocab_size")?.unwrap_or(2),
        initializer_range: 0.,
        layer_norm_eps: fields.epsilon("layer_norm_eps")?.unwrap_or(1e-12),
        pad_token_id: 0,
        position_embedding_type: PositionEmbeddingType::Alibi,
    };
    if fields.text("feed_forward_type")? != Some("geglu") {
        return Err(fields.unsound("feed_forward_type", "is not \"geglu\", which candle's module has").into());
    }
    fields.check(&[TRANSFORMERS, HARMLESS], unread)?;
    let sizes = Sizes::without_types(config.vocab_size, config.hidden_size, config.max_position_embeddings);
    let architecture = Architecture::new(sizes, move |vb, limit| {
        // Its biases are a table of every pair of positions.
        let config = Config { max_position_embeddings: limit, ..config.clone() };
        let model = BertModel::new(unprefixed(&vb, &["bert"], "embeddings.word_embeddings.weight"), &config)?;
        Ok(Box::new(move |tokens| model.forward(tokens.ids)))
    });
    Ok(architecture
        .padded(Padding::None, 0)
        .in_f32_only()
        .without(|name| name.contains("pooler.") || name.starts_with("cls.")))
}
