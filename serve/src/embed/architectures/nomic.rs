//! Nomic's BERT with rotary embeddings: candle's module, unchanged.

use candle_transformers::models::nomic_bert::{Config, NomicBertModel};
use opara_weights::{Fields, Harmless, Unread, TRANSFORMERS};
use serde_json::Value;

use super::super::adapted::unprefixed;
use super::super::architecture::{Architecture, Sizes};
use super::super::Result;
use super::rotary;

/// Those of its own code, and of transformers.
const HARMLESS: Harmless = Harmless {
    names: &[
        "attn_pdrop",
        "dense_seq_output",
        "fused_bias_fc",
        "fused_dropout_add_ln",
        "last_layer_subset",
        "max_trained_positions",
        "pad_vocab_size_multiple",
        "reorder_and_upcast_attn",
        "rotary_emb_scale_base",
        "sentence_transformers",
        "summary_activation",
        "summary_first_dropout",
        "summary_proj_to_labels",
        "summary_type",
        "summary_use_proj",
        "use_flash_attn",
        "use_xentropy",
    ],
    neutral: &[
        ("activation_function", "\"swiglu\""),
        ("causal", "false"),
        ("hidden_act", "\"silu\""),
        ("mlp_fc1_bias", "false"),
        ("mlp_fc2_bias", "false"),
        ("parallel_block", "false"),
        ("parallel_block_tied_norm", "false"),
        ("qkv_proj_bias", "false"),
        ("rotary_emb_fraction", "1"),
        ("scale_attn_by_inverse_layer_idx", "false"),
        ("scale_attn_weights", "true"),
        ("tie_word_embeddings", "true"),
        ("tie_word_embeddings", "false"),
        ("use_rms_norm", "false"),
    ],
};

pub(super) fn read(json: &Value, unread: Unread) -> Result<Architecture> {
    let fields = Fields::of(json)?;
    let size = |name: &str, other: &str| -> Result<usize> {
        Ok(match fields.count(name)? {
            Some(size) => size,
            None => fields.needed(other)?,
        })
    };
    let (width, heads) = (size("n_embd", "hidden_size")?, size("n_head", "num_attention_heads")?);
    if let Some(dim) = fields.count("head_dim")?.filter(|dim| dim * heads != width) {
        return Err(fields.unsound("head_dim", format!("is {dim}: {heads} heads have {width} elements")).into());
    }
    let base = fields.number_in("rotary_emb_base", 1.0..=1e12)?;
    let epsilon = fields.epsilon("layer_norm_eps")?;
    let config = Config {
        vocab_size: fields.needed("vocab_size")?,
        n_embd: width,
        n_head: heads,
        n_layer: size("n_layer", "num_hidden_layers")?,
        n_inner: size("n_inner", "intermediate_size")?,
        n_positions: size("n_positions", "max_position_embeddings")?,
        type_vocab_size: fields.parsed("type_vocab_size", "a number", Value::as_u64)?.unwrap_or(2) as usize,
        layer_norm_epsilon: fields.epsilon("layer_norm_epsilon")?.or(epsilon).unwrap_or(1e-12),
        rotary_emb_fraction: 1.,
        rotary_emb_base: rotary::theta(&fields, "rope_theta", base.unwrap_or(1_000.))?,
        rotary_emb_interleaved: fields.flag("rotary_emb_interleaved")?.unwrap_or(false),
        qkv_proj_bias: false,
        mlp_fc1_bias: false,
        mlp_fc2_bias: false,
        activation_function: "swiglu".into(),
        prenorm: fields.flag("prenorm")?.unwrap_or(false),
        model_type: None,
    };
    fields.check(&[TRANSFORMERS, HARMLESS], unread)?;
    let sizes = Sizes {
        vocabulary: config.vocab_size,
        width,
        positions: config.n_positions,
        token_types: config.type_vocab_size.max(1),
    };
    let architecture = Architecture::new(sizes, move |vb, limit| {
        let config = Config { n_positions: limit, ..config.clone() };
        let vb = unprefixed(&vb, &["bert", "nomic_bert"], "embeddings.word_embeddings.weight");
        let model = NomicBertModel::load(vb, &config)?;
        Ok(Box::new(move |tokens| model.forward(tokens.ids, Some(tokens.types), Some(tokens.mask))))
    });
    Ok(architecture.without(|name| name.starts_with("cls.") || name.contains("pooler.")))
}
