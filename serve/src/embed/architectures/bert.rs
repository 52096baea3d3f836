//! BERT, and the architectures that differ from it by the names of tensors and by tables: all run on this library's BERT, which is
//! faster than candle's.

use opara_models::bert::{BertModel, Config, HiddenAct};
use opara_weights::{Fields, Harmless, Unread, TRANSFORMERS};
use serde_json::Value;

use super::super::adapted::{adapted, unprefixed, Source};
use super::super::architecture::{Architecture, Sizes};
use super::super::layers::{Function, Layer, IDENTITY};
use super::super::{PoolingMode, Result};
use opara_candle::ops;

/// Fields that change no answer of an encoder: of poolers, of heads for training, and of caches.
const HARMLESS: Harmless = Harmless {
    names: &[
        "cls_token_id",
        "classifier_dropout_prob",
        "dropout",
        "qa_dropout",
        "sentence_transformers",
        "sbert_ce_default_activation_function",
        "seq_classif_dropout",
        "summary_activation",
        "summary_last_dropout",
        "summary_type",
        "summary_use_proj",
        "tie_weights_",
    ],
    neutral: &[
        ("inner_group_num", "1"),
        ("is_decoder", "false"),
        ("net_structure_type", "0"),
        ("num_hidden_groups", "1"),
        ("num_memory_blocks", "0"),
        ("down_scale_factor", "1"),
        ("gap_size", "0"),
        ("position_embedding_type", "\"absolute\""),
        ("sinusoidal_pos_embds", "false"),
        ("tie_word_embeddings", "true"),
        ("tie_word_embeddings", "false"),
    ],
};

/// How an architecture differs from BERT.
struct Kin {
    /// What stands before the names of its encoder's tensors in the file of a whole model.
    prefix: &'static str,
    /// Rows of the table of positions before that of the first token.
    first_position: usize,
    /// Its name of a tensor of BERT.
    rename: fn(&str) -> String,
    has_types: bool,
    /// Layers from the hidden state of the first token to the logits of classes.
    classes: Vec<Layer>,
    /// Layers from a hidden state to the logits of the vocabulary.
    words: Vec<Layer>,
    is_unused: fn(&str) -> bool,
}

const ANCHOR: &str = "embeddings.word_embeddings.weight";

impl Kin {
    fn describe(self, config: Config) -> Architecture {
        let Self { prefix, first_position, rename, has_types, classes, words, is_unused } = self;
        let sizes = Sizes {
            vocabulary: config.vocab_size,
            width: config.hidden_size,
            positions: config.max_position_embeddings,
            token_types: config.type_vocab_size,
        };
        let names = move |name: &str| match name {
            "embeddings.position_embeddings.weight" if first_position > 0 => {
                Source::RowsFrom(name.to_owned(), first_position)
            }
            "embeddings.token_type_embeddings.weight" if !has_types => Source::Zeros,
            name => Source::Named(rename(name)),
        };
        let head = config.hidden_size / config.num_attention_heads.max(1);
        let load = move |vb| BertModel::load(adapted(&unprefixed(&vb, &[prefix], ANCHOR), names), &config);
        let load_packed = load.clone();
        Architecture::new(sizes, move |vb, _| {
            let bert = load(vb)?;
            Ok(Box::new(move |tokens| bert.forward(tokens.ids, tokens.types, Some(tokens.mask))))
        })
        .packed(head, move |vb| {
            let bert = load_packed(vb)?;
            Ok(Box::new(move |of| bert.forward_packed([of.ids, of.types, of.positions], of.ranges)))
        })
        .on_own_operators()
        .classified(PoolingMode::Cls, classes)
        .with_vocabulary(words)
        .without(is_unused)
    }
}

fn function(act: HiddenAct) -> Function {
    match act {
        HiddenAct::Gelu => ops::gelu_erf,
        HiddenAct::GeluNew => ops::gelu,
        HiddenAct::Relu => ops::relu,
    }
}

/// BERT.
pub(super) fn bert(json: &Value, unread: Unread) -> Result<Architecture> {
    Ok(of(Config::from_json(json, unread)?))
}

/// BERT of this configuration.
pub(super) fn of(config: Config) -> Architecture {
    let words = vec![
        Layer::linear("cls.predictions.transform.dense", function(config.hidden_act)),
        Layer::norm("cls.predictions.transform.LayerNorm", config.layer_norm_eps),
        Layer::tied(
            &["cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"],
            &["cls.predictions.bias", "cls.predictions.decoder.bias"],
        ),
    ];
    let kin = Kin {
        prefix: "bert",
        first_position: 0,
        rename: str::to_owned,
        has_types: true,
        classes: vec![Layer::linear("bert.pooler.dense", ops::tanh), Layer::linear("classifier", IDENTITY)],
        words,
        is_unused: BertModel::is_head,
    };
    kin.describe(config)
}

/// The fields that these architectures share, for names that differ: layers, heads, width, inner width, function.
fn config(fields: &Fields<&Value>, names: [&str; 5], first_position: usize) -> Result<Config> {
    let [layers, heads, width, inner, act] = names;
    let act = fields.parsed(act, "one of gelu, gelu_new, relu", |act| HiddenAct::named(act.as_str()?))?;
    let positions = fields.needed("max_position_embeddings")?;
    let max_position_embeddings = positions.checked_sub(first_position).filter(|&n| n > 0).ok_or_else(|| {
        fields.unsound(
            "max_position_embeddings",
            format!("is {positions}, and the first token has position {first_position}"),
        )
    })?;
    let hidden_size = fields.needed(width)?;
    Ok(Config {
        vocab_size: fields.needed("vocab_size")?,
        embedding_size: fields.count("embedding_size")?.unwrap_or(hidden_size),
        hidden_size,
        num_hidden_layers: fields.needed(layers)?,
        num_attention_heads: fields.needed(heads)?,
        intermediate_size: fields.needed(inner)?,
        hidden_act: act.unwrap_or(HiddenAct::Gelu),
        max_position_embeddings,
        type_vocab_size: fields.count("type_vocab_size")?.unwrap_or(2),
        layer_norm_eps: fields.epsilon("layer_norm_eps")?.unwrap_or(1e-12),
    })
}

const NAMES: [&str; 5] = ["num_hidden_layers", "num_attention_heads", "hidden_size", "intermediate_size", "hidden_act"];

/// RoBERTa, XLM-R and CamemBERT: positions are counted from behind the padding token's.
pub(super) fn roberta(json: &Value, unread: Unread) -> Result<Architecture> {
    let fields = Fields::of(json)?;
    let pad = fields.parsed("pad_token_id", "a token", Value::as_u64)?.unwrap_or(1);
    let first_position = usize::try_from(pad).unwrap_or(usize::MAX).saturating_add(1);
    let config = config(&fields, NAMES, first_position)?;
    fields.check(&[TRANSFORMERS, HARMLESS], unread)?;
    let words = vec![
        Layer::linear("lm_head.dense", ops::gelu_erf),
        Layer::norm("lm_head.layer_norm", config.layer_norm_eps),
        Layer::tied(
            &["lm_head.decoder.weight", "roberta.embeddings.word_embeddings.weight"],
            &["lm_head.bias", "lm_head.decoder.bias"],
        ),
    ];
    let kin = Kin {
        prefix: "roberta",
        first_position,
        rename: str::to_owned,
        has_types: true,
        classes: vec![Layer::linear("classifier.dense", ops::tanh), Layer::linear("classifier.out_proj", IDENTITY)],
        words,
        is_unused: |name| {
            name.starts_with("lm_head.") || name.ends_with("pooler.dense.weight") || name.ends_with("pooler.dense.bias")
        },
    };
    // transformers gives a padding token within a text the position of padding.
    Ok(kin.describe(config).barring(pad as u32))
}

/// DistilBERT, which has no types of tokens.
pub(super) fn distilbert(json: &Value, unread: Unread) -> Result<Architecture> {
    let fields = Fields::of(json)?;
    let config = Config {
        type_vocab_size: 1,
        ..config(&fields, ["n_layers", "n_heads", "dim", "hidden_dim", "activation"], 0)?
    };
    fields.check(&[TRANSFORMERS, HARMLESS], unread)?;
    let words = vec![
        Layer::linear("vocab_transform", function(config.hidden_act)),
        Layer::norm("vocab_layer_norm", config.layer_norm_eps),
        Layer::tied(
            &["vocab_projector.weight", "distilbert.embeddings.word_embeddings.weight"],
            &["vocab_projector.bias"],
        ),
    ];
    let kin = Kin {
        prefix: "distilbert",
        first_position: 0,
        rename: |name| {
            renamed(
                name,
                &[
                    ("encoder.layer.", "transformer.layer."),
                    (".attention.self.query.", ".attention.q_lin."),
                    (".attention.self.key.", ".attention.k_lin."),
                    (".attention.self.value.", ".attention.v_lin."),
                    (".attention.output.dense.", ".attention.out_lin."),
                    (".attention.output.LayerNorm.", ".sa_layer_norm."),
                    (".intermediate.dense.", ".ffn.lin1."),
                    (".output.dense.", ".ffn.lin2."),
                    (".output.LayerNorm.", ".output_layer_norm."),
                ],
            )
        },
        has_types: false,
        classes: vec![Layer::linear("pre_classifier", ops::relu), Layer::linear("classifier", IDENTITY)],
        words,
        is_unused: |name| name.starts_with("vocab_"),
    };
    Ok(kin.describe(config))
}

/// ELECTRA's discriminator.
pub(super) fn electra(json: &Value, unread: Unread) -> Result<Architecture> {
    let fields = Fields::of(json)?;
    let config = config(&fields, NAMES, 0)?;
    fields.check(&[TRANSFORMERS, HARMLESS], unread)?;
    let kin = Kin {
        prefix: "electra",
        first_position: 0,
        rename: str::to_owned,
        has_types: true,
        classes: vec![Layer::linear("classifier.dense", ops::gelu_erf), Layer::linear("classifier.out_proj", IDENTITY)],
        words: Vec::new(),
        is_unused: |name| name.starts_with("discriminator_predictions.") || name.starts_with("generator_"),
    };
    Ok(kin.describe(config))
}

/// ALBERT, all of whose layers are one.
pub(super) fn albert(json: &Value, unread: Unread) -> Result<Architecture> {
    let fields = Fields::of(json)?;
    let config = config(&fields, NAMES, 0)?;
    fields.check(&[TRANSFORMERS, HARMLESS], unread)?;
    let kin = Kin {
        prefix: "albert",
        first_position: 0,
        rename: |name| {
            let Some((_, rest)) = name.strip_prefix("encoder.layer.").and_then(|rest| rest.split_once('.')) else {
                return name.replace("embeddings_project.", "encoder.embedding_hidden_mapping_in.");
            };
            let rest = renamed(
                rest,
                &[
                    ("attention.self.", "attention."),
                    ("attention.output.", "attention."),
                    ("intermediate.dense.", "ffn."),
                    ("output.dense.", "ffn_output."),
                    ("output.LayerNorm.", "full_layer_layer_norm."),
                ],
            );
            format!("encoder.albert_layer_groups.0.albert_layers.0.{rest}")
        },
        has_types: true,
        classes: vec![Layer::linear("albert.pooler", ops::tanh), Layer::linear("classifier", IDENTITY)],
        words: Vec::new(),
        is_unused: |name| {
            let name = name.strip_prefix("albert.").unwrap_or(name);
            ["pooler.", "predictions.", "sop_classifier."].iter().any(|head| name.starts_with(head))
        },
    };
    Ok(kin.describe(config))
}

/// A name in which the first of these parts, and that of the layers, are others.
fn renamed(name: &str, parts: &[(&str, &str)]) -> String {
    let is_layers = |part: &str| part.starts_with("encoder.layer.");
    let layers = parts.iter().find(|(part, _)| is_layers(part) && name.starts_with(part));
    let name = layers.map_or_else(|| name.to_owned(), |(part, other)| name.replacen(part, other, 1));
    match parts.iter().find(|(part, _)| !is_layers(part) && name.contains(part)) {
        Some((part, other)) => name.replacen(part, other, 1),
        None => name,
    }
}
