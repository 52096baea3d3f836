//! DeBERTa v2 and v3: candle's module, unchanged.

use candle_transformers::models::debertav2::{Config, DebertaV2Model, HiddenAct};
use opara_candle::ops;
use opara_weights::{Fields, Harmless, Unread, TRANSFORMERS};
use serde_json::Value;

use super::super::adapted::unprefixed;
use super::super::architecture::{Architecture, Sizes};
use super::super::layers::{Function, Layer, IDENTITY};
use super::super::{PoolingMode, Result};

const HARMLESS: Harmless = Harmless {
    names: &[
        "cls_dropout",
        "legacy",
        "pooler_dropout",
        "pooler_hidden_size",
        "sbert_ce_default_activation_function",
        "sentence_transformers",
        "summary_activation",
        "summary_last_dropout",
        "summary_type",
        "summary_use_proj",
    ],
    // candle's module has no convolution behind the first layer, and no steps of its decoder.
    neutral: &[
        ("conv_kernel_size", "0"),
        ("is_decoder", "false"),
        ("z_steps", "0"),
        ("tie_word_embeddings", "true"),
        ("tie_word_embeddings", "false"),
    ],
};

fn act(fields: &Fields<&Value>, name: &str) -> Result<HiddenAct> {
    let named = |act: &Value| match act.as_str()? {
        "gelu" => Some(HiddenAct::Gelu),
        "gelu_new" | "gelu_pytorch_tanh" => Some(HiddenAct::GeluApproximate),
        "relu" => Some(HiddenAct::Relu),
        _ => None,
    };
    Ok(fields.parsed(name, "one of gelu, gelu_new, relu", named)?.unwrap_or(HiddenAct::Gelu))
}

fn function(act: HiddenAct) -> Function {
    match act {
        HiddenAct::Gelu => ops::gelu_erf,
        HiddenAct::GeluApproximate => ops::gelu,
        HiddenAct::Relu => ops::relu,
    }
}

/// The kinds of attention over positions, as a list or in one text.
fn kinds(value: &Value) -> Option<Vec<String>> {
    let names: Vec<String> = match value {
        Value::String(names) => names.split('|').filter(|name| !name.is_empty()).map(str::to_owned).collect(),
        Value::Array(names) => names.iter().map(|name| Some(name.as_str()?.to_owned())).collect::<Option<_>>()?,
        _ => return None,
    };
    names.iter().all(|name| matches!(name.as_str(), "c2p" | "p2c")).then_some(names)
}

pub(super) fn read(json: &Value, unread: Unread) -> Result<Architecture> {
    let fields = Fields::of(json)?;
    let number = |name: &str| fields.parsed(name, "a whole number", Value::as_i64);
    let width = fields.needed("hidden_size")?;
    let config = Config {
        vocab_size: fields.needed("vocab_size")?,
        hidden_size: width,
        num_hidden_layers: fields.needed("num_hidden_layers")?,
        num_attention_heads: fields.needed("num_attention_heads")?,
        intermediate_size: fields.needed("intermediate_size")?,
        hidden_act: act(&fields, "hidden_act")?,
        hidden_dropout_prob: 0.,
        attention_probs_dropout_prob: 0.,
        max_position_embeddings: fields.needed("max_position_embeddings")?,
        type_vocab_size: fields.parsed("type_vocab_size", "a number", Value::as_u64)?.unwrap_or(0) as usize,
        initializer_range: 0.,
        layer_norm_eps: fields.epsilon("layer_norm_eps")?.unwrap_or(1e-7),
        relative_attention: fields.flag("relative_attention")?.unwrap_or(false),
        max_relative_positions: number("max_relative_positions")?.unwrap_or(-1) as isize,
        pad_token_id: None,
        position_biased_input: fields.flag("position_biased_input")?.unwrap_or(true),
        pos_att_type: fields.parsed("pos_att_type", "a list of c2p and p2c", kinds)?.unwrap_or_default(),
        position_buckets: number("position_buckets")?.map(|buckets| buckets as isize),
        share_att_key: fields.flag("share_att_key")?,
        attention_head_size: fields.count("attention_head_size")?,
        embedding_size: fields.count("embedding_size")?,
        norm_rel_ebd: fields.text("norm_rel_ebd")?.map(str::to_owned),
        conv_kernel_size: None,
        conv_groups: None,
        conv_act: None,
        id2label: None,
        label2id: None,
        pooler_dropout: None,
        pooler_hidden_act: None,
        pooler_hidden_size: None,
        cls_dropout: None,
    };
    let pooler = function(act(&fields, "pooler_hidden_act")?);
    fields.check(&[TRANSFORMERS, HARMLESS], unread)?;
    let sizes = Sizes {
        vocabulary: config.vocab_size,
        width,
        positions: config.max_position_embeddings,
        token_types: config.type_vocab_size.max(1),
    };
    let architecture = Architecture::new(sizes, move |vb, _| {
        let model = DebertaV2Model::load(unprefixed(&vb, &["deberta"], "embeddings.word_embeddings.weight"), &config)?;
        Ok(Box::new(move |tokens| model.forward(tokens.ids, Some(tokens.types.clone()), Some(tokens.mask.clone()))))
    });
    Ok(architecture
        .in_f32_only()
        .classified(
            PoolingMode::Cls,
            vec![Layer::linear("pooler.dense", pooler), Layer::linear("classifier", IDENTITY)],
        )
        .without(|name| {
            ["pooler.", "classifier.", "cls.", "lm_predictions.", "mask_predictions."]
                .iter()
                .any(|head| name.starts_with(head))
        }))
}
