//! Qwen 2 and 3 as encoders: candle's modules, unchanged. No token sees those behind it, and the last one stands for the text; the
//! field `is_causal` may say otherwise.

use candle_nn::Activation;
use candle_transformers::models::{qwen2, qwen3};
use opara_weights::{Fields, Harmless, Unread, WeightsError, TRANSFORMERS};
use serde_json::Value;

use super::super::adapted::prefixed;
use super::super::architecture::{Architecture, Sizes};
use super::super::layers::{Layer, IDENTITY};
use super::super::{PoolingMode, Result};
use super::rotary;

const HARMLESS: Harmless = Harmless {
    names: &["max_window_layers", "sentence_transformers"],
    neutral: &[("tie_word_embeddings", "true"), ("tie_word_embeddings", "false"), ("use_sliding_window", "false")],
};

const ANCHOR: &str = "embed_tokens.weight";

/// Names in `auto_map` of the models that give vectors, or logits of classes.
const OWN: [&str; 2] = ["AutoModel", "AutoModelForSequenceClassification"];

pub(super) fn activation(fields: &Fields<&Value>) -> Result<Activation, WeightsError> {
    let named = |act: &Value| match act.as_str()? {
        "silu" | "swish" => Some(Activation::Silu),
        "gelu" => Some(Activation::Gelu),
        "gelu_pytorch_tanh" => Some(Activation::GeluPytorchTanh),
        _ => None,
    };
    Ok(fields.parsed("hidden_act", "one of silu, gelu, gelu_pytorch_tanh", named)?.unwrap_or(Activation::Silu))
}

/// Reads what windows there are, of which candle's modules know none.
fn refuse_windows(fields: &Fields<&Value>) -> Result<(), WeightsError> {
    let uses = fields.flag("use_sliding_window")?.unwrap_or(false);
    // Without the flag above it says nothing.
    fields.get("sliding_window");
    let kinds = fields.take::<Vec<String>>("layer_types")?.unwrap_or_default();
    match uses || kinds.iter().any(|kind| kind != "full_attention") {
        true => Err(fields.unsound("use_sliding_window", "is true: candle's module has no windows")),
        false => Ok(()),
    }
}

/// Whether no token sees those behind it. Where the checkpoint has code of its own, that may do otherwise, and nobody runs it here.
fn is_causal(fields: &Fields<&Value>, unread: Unread) -> Result<bool, WeightsError> {
    if let Some(is_causal) = fields.flag("is_causal")? {
        return Ok(is_causal);
    }
    let own = fields.get("auto_map").and_then(|map| OWN.iter().find_map(|name| map.get(name)?.as_str()));
    if let Some(class) = own {
        let reason = format!(
            "names {class:?}, which is not run and may see later tokens: say by `is_causal` whether no token does"
        );
        unread.report(fields.unsound("auto_map", reason))?;
    }
    Ok(true)
}

fn finish(architecture: Architecture) -> Architecture {
    architecture
        .pooled(PoolingMode::LastToken)
        .classified(PoolingMode::LastToken, vec![Layer::linear("score", IDENTITY)])
        .without(|name| name.starts_with("lm_head."))
}

pub(super) fn qwen2(json: &Value, unread: Unread) -> Result<Architecture> {
    let fields = Fields::of(json)?;
    refuse_windows(&fields)?;
    let heads = fields.needed("num_attention_heads")?;
    let is_causal = is_causal(&fields, unread)?;
    let config = qwen2::Config {
        vocab_size: fields.needed("vocab_size")?,
        hidden_size: fields.needed("hidden_size")?,
        intermediate_size: fields.needed("intermediate_size")?,
        num_hidden_layers: fields.needed("num_hidden_layers")?,
        num_attention_heads: heads,
        num_key_value_heads: fields.count("num_key_value_heads")?.unwrap_or(heads),
        max_position_embeddings: fields.needed("max_position_embeddings")?,
        sliding_window: usize::MAX / 2,
        max_window_layers: 0,
        tie_word_embeddings: false,
        rope_theta: rotary::theta(&fields, "rope_theta", 10_000.)?,
        rms_norm_eps: fields.epsilon("rms_norm_eps")?.unwrap_or(1e-6),
        use_sliding_window: false,
        hidden_act: activation(&fields)?,
    };
    fields.check(&[TRANSFORMERS, HARMLESS], unread)?;
    let sizes = Sizes::without_types(config.vocab_size, config.hidden_size, config.max_position_embeddings);
    Ok(finish(Architecture::new(sizes, move |vb, limit| {
        let config = qwen2::Config { max_position_embeddings: limit, ..config.clone() };
        let model = qwen2::Model::new(&config, prefixed(&vb, "model", ANCHOR))?;
        Ok(Box::new(move |tokens| {
            // A clone begins with an empty cache, and shares the weights.
            model.clone().forward(tokens.ids, 0, (!is_causal).then_some(tokens.mask))
        }))
    })))
}

pub(super) fn qwen3(json: &Value, unread: Unread) -> Result<Architecture> {
    let fields = Fields::of(json)?;
    refuse_windows(&fields)?;
    let heads = fields.needed("num_attention_heads")?;
    let hidden_size = fields.needed("hidden_size")?;
    if !is_causal(&fields, unread)? {
        return Err(fields.unsound("is_causal", "is false: candle's module is causal").into());
    }
    let config = qwen3::Config {
        vocab_size: fields.needed("vocab_size")?,
        hidden_size,
        intermediate_size: fields.needed("intermediate_size")?,
        num_hidden_layers: fields.needed("num_hidden_layers")?,
        num_attention_heads: heads,
        head_dim: fields.count("head_dim")?.unwrap_or(128),
        attention_bias: fields.flag("attention_bias")?.unwrap_or(false),
        num_key_value_heads: fields.count("num_key_value_heads")?.unwrap_or(heads),
        max_position_embeddings: fields.needed("max_position_embeddings")?,
        sliding_window: None,
        max_window_layers: 0,
        tie_word_embeddings: false,
        rope_theta: rotary::theta(&fields, "rope_theta", 10_000.)?,
        rms_norm_eps: fields.epsilon("rms_norm_eps")?.unwrap_or(1e-6),
        use_sliding_window: false,
        hidden_act: activation(&fields)?,
    };
    fields.check(&[TRANSFORMERS, HARMLESS], unread)?;
    let sizes = Sizes::without_types(config.vocab_size, config.hidden_size, config.max_position_embeddings);
    Ok(finish(Architecture::new(sizes, move |vb, limit| {
        let config = qwen3::Config { max_position_embeddings: limit, ..config.clone() };
        let model = qwen3::Model::new(&config, prefixed(&vb, "model", ANCHOR))?;
        Ok(Box::new(move |tokens| model.clone().forward(tokens.ids, 0)))
    })))
}
