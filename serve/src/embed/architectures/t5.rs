//! The encoders of T5 and mT5: candle's module, unchanged. It has no mask, and its positions have no end.

use candle_nn::Activation;
use candle_transformers::models::t5::{ActivationWithOptionalGating, Config, T5EncoderModel};
use opara_weights::{Fields, Harmless, Unread, WeightsError, TRANSFORMERS};
use serde_json::Value;

use super::super::adapted::unprefixed;
use super::super::architecture::{Architecture, Padding, Sizes};
use super::super::Result;

const HARMLESS: Harmless = Harmless {
    // Of the decoder, and a length that transformers does not read.
    names: &[
        "is_encoder_decoder",
        "n_positions",
        "num_decoder_layers",
        "scale_decoder_outputs",
        "sentence_transformers",
        "tie_word_embeddings",
    ],
    neutral: &[("is_decoder", "false")],
};

/// More tokens than anybody asks of attention without windows: texts are limited by their tokenizer and by the buckets.
const POSITIONS: usize = 1 << 16;

/// Functions by transformers' names.
const FUNCTIONS: [(&str, Activation); 5] = [
    ("relu", Activation::Relu),
    ("gelu", Activation::Gelu),
    ("gelu_new", Activation::NewGelu),
    ("silu", Activation::Silu),
    ("swish", Activation::Silu),
];

pub(super) fn t5(json: &Value, unread: Unread) -> Result<Architecture> {
    read(json, "relu", unread)
}

pub(super) fn mt5(json: &Value, unread: Unread) -> Result<Architecture> {
    read(json, "gated-gelu", unread)
}

/// `default` is the feed-forward layer where the configuration names none.
fn read(json: &Value, default: &str, unread: Unread) -> Result<Architecture> {
    let fields = Fields::of(json)?;
    let (buckets, distance) = buckets(&fields)?;
    let config = Config {
        vocab_size: fields.needed("vocab_size")?,
        d_model: fields.needed("d_model")?,
        d_kv: fields.needed("d_kv")?,
        d_ff: fields.needed("d_ff")?,
        num_layers: fields.needed("num_layers")?,
        num_heads: fields.needed("num_heads")?,
        relative_attention_num_buckets: buckets,
        relative_attention_max_distance: distance,
        layer_norm_epsilon: fields.epsilon("layer_norm_epsilon")?.unwrap_or(1e-6),
        feed_forward_proj: feed_forward(&fields, default)?,
        is_encoder_decoder: false,
        use_cache: false,
        ..Config::default()
    };
    fields.check(&[TRANSFORMERS, HARMLESS], unread)?;
    let sizes = Sizes::without_types(config.vocab_size, config.d_model, POSITIONS);
    let architecture = Architecture::new(sizes, move |vb, _| {
        let model = T5EncoderModel::load(unprefixed(&vb, &["transformer"], "shared.weight"), &config)?;
        // Its `forward` may change a cache, which an encoder does not have. A clone shares the weights.
        Ok(Box::new(move |tokens| model.clone().forward(tokens.ids)))
    });
    Ok(architecture.padded(Padding::None, 0).without(is_unused))
}

/// The decoder, and the table of tokens under a second name.
fn is_unused(name: &str) -> bool {
    let name = name.strip_prefix("transformer.").unwrap_or(name);
    ["decoder.", "lm_head.", "encoder.embed_tokens."].iter().any(|part| name.starts_with(part))
}

/// How many biases there are for distances between tokens, and from which distance on they are all the same.
fn buckets(fields: &Fields<&Value>) -> Result<(usize, usize), WeightsError> {
    let buckets = fields.count("relative_attention_num_buckets")?.unwrap_or(32);
    let distance = fields.count("relative_attention_max_distance")?.unwrap_or(128);
    // Half of them are for each direction, and half of those for distances one by one.
    if buckets < 4 || buckets % 2 != 0 {
        return Err(
            fields.unsound("relative_attention_num_buckets", format!("is {buckets}, not an even number from 4"))
        );
    }
    if distance <= buckets / 4 {
        return Err(
            fields.unsound("relative_attention_max_distance", format!("is {distance}: {buckets} reach further"))
        );
    }
    Ok((buckets, distance))
}

/// The function of the feed-forward layers, and whether a second product gates it.
fn feed_forward(fields: &Fields<&Value>, default: &str) -> Result<ActivationWithOptionalGating, WeightsError> {
    const NAME: &str = "feed_forward_proj";
    let name = fields.text(NAME)?.unwrap_or(default);
    let (gated, function) = match name.strip_prefix("gated-") {
        // transformers reads it so.
        Some("gelu") => (true, "gelu_new"),
        Some(function) => (true, function),
        None => (false, name),
    };
    let Some(&(_, activation)) = FUNCTIONS.iter().find(|(known, _)| *known == function) else {
        let known = FUNCTIONS.map(|(name, _)| name).join(", ");
        return Err(fields.unsound(NAME, format!("is {name:?}: {known} are known, and gated- before them")));
    };
    // Without a gate the module computes this one, whatever its configuration says.
    if !gated && activation != Activation::Relu {
        return Err(fields.unsound(NAME, format!("is {name:?}: without a gate candle's module has relu alone")));
    }
    // What transformers makes of the name, and saves beside it.
    if let Some(other) = fields.text("dense_act_fn")?.filter(|&other| other != function) {
        return Err(fields.unsound("dense_act_fn", format!("is {other:?}, and `{NAME}` is {name:?}")));
    }
    if let Some(other) = fields.flag("is_gated_act")?.filter(|&other| other != gated) {
        return Err(fields.unsound("is_gated_act", format!("is {other}, and `{NAME}` is {name:?}")));
    }
    Ok(ActivationWithOptionalGating { gated, activation })
}
