//! Alibaba's GTE, of which Stella of 400M is one: candle's `stella_en_v5`, unchanged.

use std::ops::RangeInclusive;

use candle_nn::{Activation, VarBuilder};
use candle_transformers::models::stella_en_v5::{Config, EmbedDim, Model, ModelVariant};
use opara_candle::ops;
use opara_weights::{Fields, Harmless, Unread, WeightsError, TRANSFORMERS};
use serde_json::Value;

use super::super::adapted::{adapted, prefixed, unprefixed, Source};
use super::super::architecture::{Architecture, Sizes};
use super::super::layers::{Layer, IDENTITY};
use super::super::{PoolingMode, Result};

/// Those of its own code, and of transformers.
const HARMLESS: Harmless = Harmless {
    names: &["logn_attention_clip1", "sentence_transformers", "unpad_inputs", "use_memory_efficient_attention"],
    neutral: &[
        ("is_decoder", "false"),
        ("layer_norm_type", "\"layer_norm\""),
        ("logn_attention_scale", "false"),
        ("pack_qkv", "true"),
        ("position_embedding_type", "\"rope\""),
        ("tie_word_embeddings", "true"),
        ("tie_word_embeddings", "false"),
    ],
};

/// What files of a whole model have before the names of the encoder's tensors.
const PREFIXES: [&str; 2] = ["new", "gte"];
const ANCHOR: &str = "embeddings.word_embeddings.weight";
/// Rows of the longest table of positions. Published models have up to 65,536.
const ROWS: f64 = 1_048_576.;
/// What bases are sound.
const BASES: RangeInclusive<f64> = 1.0..=1e12;
const TYPES: &str = "new.embeddings.token_type_embeddings.weight";

/// Checkpoints that come with code of their own.
pub(super) fn new(json: &Value, unread: Unread) -> Result<Architecture> {
    read(json, 10_000., unread)
}

/// Those of transformers, and with its names for them.
pub(super) fn gte(json: &Value, unread: Unread) -> Result<Architecture> {
    read(json, 160_000., unread)
}

/// `theta` is the base of rotary embeddings where the configuration has none.
fn read(json: &Value, theta: f64, unread: Unread) -> Result<Architecture> {
    let fields = Fields::of(json)?;
    let (width, heads) = (fields.needed("hidden_size")?, fields.needed("num_attention_heads")?);
    let positions = fields.needed("max_position_embeddings")?;
    let (rope_theta, scaling_factor) = rotary(&fields, theta, (width / heads, positions), unread)?;
    let types = fields.parsed("type_vocab_size", "a number", Value::as_u64)?.unwrap_or(1) as usize;
    let config = Config {
        variant: ModelVariant::Small,
        vocab_size: fields.needed("vocab_size")?,
        hidden_size: width,
        intermediate_size: fields.needed("intermediate_size")?,
        num_hidden_layers: fields.needed("num_hidden_layers")?,
        num_attention_heads: heads,
        max_position_embeddings: positions,
        norm_eps: fields.epsilon("layer_norm_eps")?.unwrap_or(1e-12),
        activation_fn: activation(&fields)?,
        type_vocab_size: types.max(1),
        rope_theta,
        scaling_factor,
        // Of a head that is not loaded: sentence-transformers' Dense is one.
        embed_head: EmbedDim::default().config(1),
        num_key_value_heads: 0,
    };
    fields.check(&[TRANSFORMERS, HARMLESS], unread)?;
    let sizes = Sizes::without_types(config.vocab_size, config.hidden_size, config.max_position_embeddings);
    let architecture = Architecture::new(sizes, move |vb, limit| {
        let config = Config { max_position_embeddings: limit, ..config.clone() };
        let model = Model::new(&config, tensors(&vb, types > 0))?;
        // Its `forward` changes nothing of a clone, which shares the weights.
        Ok(Box::new(move |tokens| model.clone().forward(tokens.ids, tokens.mask)))
    });
    let pooler = |part: &str| PREFIXES.map(|prefix| format!("{prefix}.pooler.dense.{part}")).to_vec();
    let pooler = Layer::Linear { weights: pooler("weight"), biases: pooler("bias"), function: ops::tanh };
    Ok(architecture
        .in_f32_only()
        .classified(PoolingMode::Cls, vec![pooler, Layer::linear("classifier", IDENTITY)])
        .without(|name| name.starts_with("lm_head.") || name.starts_with("classifier.") || name.contains("pooler.")))
}

/// The tensors under the module's names. A model without types of tokens adds nothing for them.
fn tensors(vb: &VarBuilder<'static>, has_types: bool) -> VarBuilder<'static> {
    let vb = prefixed(&unprefixed(vb, &PREFIXES, ANCHOR), "new", ANCHOR);
    match has_types {
        true => vb,
        false => adapted(&vb, |name: &str| match name {
            TYPES => Source::Zeros,
            _ => Source::Named(name.to_owned()),
        }),
    }
}

fn activation(fields: &Fields<&Value>) -> Result<Activation, WeightsError> {
    let named = |act: &Value| match act.as_str()? {
        "gelu" => Some(Activation::Gelu),
        "gelu_new" | "gelu_pytorch_tanh" => Some(Activation::NewGelu),
        "relu" => Some(Activation::Relu),
        "silu" | "swish" => Some(Activation::Silu),
        _ => None,
    };
    let known = "one of gelu, gelu_new, gelu_pytorch_tanh, relu, silu";
    Ok(fields.parsed("hidden_act", known, named)?.unwrap_or(Activation::Gelu))
}

/// Rotary embeddings: their base, and by which factor NTK scales them for all lengths; 0 if it does not.
type Rotary = (f64, f64);

/// What `rope_parameters` says, or `rope_scaling`, its name before version 5 of transformers. `sizes` are elements of a head, and positions.
fn rotary(fields: &Fields<&Value>, default: f64, sizes: (usize, usize), unread: Unread) -> Result<Rotary> {
    let theta = fields.number_in("rope_theta", BASES)?.unwrap_or(default);
    let read = |name: &str| match fields.inside(name)?.filter(|inner| !inner.is_empty()) {
        Some(inner) => scaling(&inner, theta, sizes, unread).map(Some),
        None => Ok(None),
    };
    match (read("rope_parameters")?, read("rope_scaling")?) {
        // Which of them counts depends on the version of transformers.
        (Some(new), Some(old)) if !is_same(new, old) => Err(fields
            .unsound("rope_scaling", "says something else than `rope_parameters`: leave one of them out")
            .into()),
        (new, old) => Ok(new.or(old).unwrap_or((theta, 0.))),
    }
}

/// Those of one object. `theta` is the base where it has none.
fn scaling(fields: &Fields<&Value>, theta: f64, (head, positions): (usize, usize), unread: Unread) -> Result<Rotary> {
    let theta = fields.number_in("rope_theta", BASES)?.unwrap_or(theta);
    let mut kind = "default";
    for name in ["type", "rope_type"] {
        kind = match fields.text(name)? {
            None | Some("default") => kind,
            Some(known @ ("ntk" | "linear")) => known,
            Some(other) => {
                let reason = format!("is {other:?}: candle's module scales as ntk alone, of which linear is a form");
                return Err(fields.unsound(name, reason).into());
            }
        };
    }
    // A lesser one than 1 scales nothing in the checkpoint's code, and does in candle's.
    let factor = || fields.number_in("factor", 1.0..=1e6)?.ok_or_else(|| fields.unsound("factor", "is missing"));
    let read = match kind {
        "ntk" => (theta, factor()?),
        // NTK multiplies the base by its factor, and divides positions by a root of it. transformers saves the results of both.
        "linear" => {
            let factor = factor()?.powf(head as f64 / 2.);
            (theta / factor, factor)
        }
        _ => (theta, 0.),
    };
    // The module makes a table of so many rows before it has read a tensor.
    if positions as f64 * read.1 > ROWS {
        let reason = format!("is too large: positions of {positions} tokens become {:e}", positions as f64 * read.1);
        return Err(fields.unsound("factor", reason).into());
    }
    // Among them `mixed_b`, which candle's module does not have.
    fields.check(&[], unread)?;
    Ok(read)
}

/// Whether two agree within the digits of a file.
fn is_same(one: Rotary, two: Rotary) -> bool {
    let is_near = |a: f64, b: f64| (a - b).abs() <= 1e-6 * a.abs().max(b.abs());
    is_near(one.0, two.0) && is_near(one.1, two.1)
}
