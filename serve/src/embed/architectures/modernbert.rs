//! ModernBERT: candle's module, unchanged.

use candle_transformers::models::modernbert::{Config, ModernBert};
use opara_candle::ops;
use opara_weights::{Fields, Harmless, Unread, TRANSFORMERS};
use serde_json::Value;

use super::super::adapted::prefixed;
use super::super::architecture::{Architecture, Sizes};
use super::super::layers::{Layer, IDENTITY};
use super::super::{PoolingMode, Result};

const HARMLESS: Harmless = Harmless {
    names: &[
        "classifier_bias",
        "cls_token_id",
        "decoder_bias",
        "deterministic_flash_attn",
        "embedding_dropout",
        "initializer_cutoff_factor",
        "mlp_dropout",
        "reference_compile",
        "repad_logits_with_grad",
        "sbert_ce_default_activation_function",
        "sentence_transformers",
        "sep_token_id",
        "sparse_pred_ignore_index",
        "sparse_prediction",
    ],
    neutral: &[
        ("attention_bias", "false"),
        ("classifier_activation", "\"gelu\""),
        ("hidden_activation", "\"gelu\""),
        ("mlp_bias", "false"),
        ("norm_bias", "false"),
        ("position_embedding_type", "\"absolute\""),
        ("tie_word_embeddings", "true"),
        ("tie_word_embeddings", "false"),
    ],
};

const ANCHOR: &str = "embeddings.tok_embeddings.weight";

pub(super) fn read(json: &Value, unread: Unread) -> Result<Architecture> {
    let fields = Fields::of(json)?;
    let ropes = fields.object("rope_parameters")?;
    let theta = |of: &str, name: &str, default: f64| -> Result<f64> {
        let rope = ropes.object(of)?;
        if let Some(kind) = rope.text("rope_type")?.filter(|&kind| kind != "default") {
            return Err(rope.unsound("rope_type", format!("is {kind:?}, which candle's module does not scale")).into());
        }
        Ok(rope.number("rope_theta")?.or(fields.number(name)?).unwrap_or(default))
    };
    let every = fields.count("global_attn_every_n_layers")?.unwrap_or(3);
    let layers = fields.needed("num_hidden_layers")?;
    if let Some(kinds) = fields.take::<Vec<String>>("layer_types")? {
        let is_expected = |(layer, kind): (usize, &String)| (kind == "full_attention") == (layer % every == 0);
        if kinds.len() != layers || !kinds.iter().enumerate().all(is_expected) {
            return Err(fields
                .unsound("layer_types", format!("does not have full attention in every layer of {every}"))
                .into());
        }
    }
    let epsilon = fields.epsilon("norm_eps")?;
    let epsilon = fields.epsilon("layer_norm_eps")?.or(epsilon).unwrap_or(1e-5);
    let pooling = match fields.text("classifier_pooling")?.unwrap_or("cls") {
        "cls" => PoolingMode::Cls,
        "mean" => PoolingMode::Mean,
        other => {
            return Err(fields.unsound("classifier_pooling", format!("is {other:?}: cls and mean are known")).into())
        }
    };
    let config = Config {
        vocab_size: fields.needed("vocab_size")?,
        hidden_size: fields.needed("hidden_size")?,
        num_hidden_layers: layers,
        num_attention_heads: fields.needed("num_attention_heads")?,
        intermediate_size: fields.needed("intermediate_size")?,
        max_position_embeddings: fields.needed("max_position_embeddings")?,
        layer_norm_eps: epsilon,
        pad_token_id: 0,
        global_attn_every_n_layers: every,
        global_rope_theta: theta("full_attention", "global_rope_theta", 160_000.)?,
        local_attention: fields.count("local_attention")?.unwrap_or(128),
        local_rope_theta: theta("sliding_attention", "local_rope_theta", 10_000.)?,
        classifier_config: None,
    };
    fields.check(&[TRANSFORMERS, HARMLESS], unread)?;
    let sizes = Sizes::without_types(config.vocab_size, config.hidden_size, config.max_position_embeddings);
    let head = || vec![Layer::linear("head.dense", ops::gelu_erf), Layer::norm("head.norm", epsilon)];
    let classes = [head(), vec![Layer::linear("classifier", IDENTITY)]].concat();
    let table = Layer::tied(&["decoder.weight", "model.embeddings.tok_embeddings.weight"], &["decoder.bias"]);
    let architecture = Architecture::new(sizes, move |vb, limit| {
        let config = Config { max_position_embeddings: limit, ..config.clone() };
        let model = ModernBert::load(prefixed(&vb, "model", ANCHOR), &config)?;
        Ok(Box::new(move |tokens| model.forward(tokens.ids, tokens.mask)))
    });
    Ok(architecture
        .in_f32_only()
        .classified(pooling, classes)
        .with_vocabulary([head(), vec![table]].concat())
        .without(|name| ["head.", "decoder.", "classifier."].iter().any(|head| name.starts_with(head))))
}
