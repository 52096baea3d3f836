//! What a checkpoint's `config.json` says, in one form for all architectures.

use opara_candle::ops::Activation;
use opara_weights::{Fields, Harmless, Unread, TRANSFORMERS};
use serde_json::Value;

use super::architecture::Architecture;
use super::draws::Draws;
use super::error::{DecoderError, Result};
use super::rotary::{Rotary, Scaling};

impl Architecture {
    pub(super) fn of(name: &str) -> Result<Self> {
        Self::named(name).ok_or_else(|| DecoderError::UnknownArchitecture { found: name.into() })
    }
}

/// What differs between the layers of one model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerConfig {
    /// How many tokens a token sees, itself included; all before it, if not given.
    pub window: Option<usize>,
    /// Which of [`Config::rotaries`] turns queries and keys.
    pub rotary: usize,
}

/// A decoder: what its operators are, and how large.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The architecture, which says how the weights are named.
    pub architecture: Architecture,
    /// Tokens of the vocabulary.
    pub vocab: usize,
    /// Elements of a token between layers.
    pub hidden: usize,
    /// Elements inside the feed-forward network.
    pub intermediate: usize,
    /// Heads of the queries.
    pub heads: usize,
    /// Heads of keys and values; each serves `heads / kv_heads` of the queries'.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// One for each layer.
    pub layers: Vec<LayerConfig>,
    /// Kinds of rotary embeddings.
    pub rotaries: Vec<Rotary>,
    /// Tokens of the longest text.
    pub max_positions: usize,
    /// Epsilon, added to the mean square in a norm.
    pub eps: f64,
    /// Non-linearity of the gate.
    pub activation: Activation,
    /// Queries, keys and values have a bias.
    pub qkv_bias: bool,
    /// The product after attention has a bias.
    pub output_bias: bool,
    /// The products of the feed-forward network have a bias.
    pub mlp_bias: bool,
    /// Each head of queries and keys is normalised.
    pub head_norms: bool,
    /// What attention and the feed-forward network give is normalised, too, before it is added (Gemma).
    pub post_norms: bool,
    /// Norms scale by one plus the weight (Gemma).
    pub one_plus: bool,
    /// Queries, keys and values are one tensor of the checkpoint, and so are gate and up (Phi-3).
    pub packed: bool,
    /// The head is the table of embeddings.
    pub tied: bool,
    /// What embeddings are multiplied by.
    pub embedding_scale: Option<f64>,
    /// What scores are multiplied by.
    pub attention_scale: f64,
    /// Logits are `cap * tanh(logit / cap)`.
    pub logit_cap: Option<f64>,
    /// The token before every text, if there is one.
    pub bos: Option<u32>,
    /// The tokens that end one.
    pub eos: Vec<u32>,
    /// How tokens are drawn where a request does not say, by `generation_config.json`.
    pub draws: Draws,
}

/// Fields of decoders that change no answer.
const HARMLESS: Harmless = Harmless {
    names: &[
        // Attention of later tokens is hidden in every decoder.
        "is_decoder",
        "is_llama_config",
        // The layers say it in `layer_types`, or in fields that are read.
        "_sliding_window_pattern",
        // Limits that `max_position_embeddings` says, too.
        "max_sequence_length",
        "model_max_length",
        // Of pictures, which a text does not have.
        "boi_token_index",
        "boi_token_id",
        "eoi_token_index",
        "eoi_token_id",
        "image_token_index",
        "image_token_id",
        "mm_tokens_per_image",
        "vision_config",
    ],
    neutral: &[
        ("attn_logit_softcapping", "0"),
        ("embedding_multiplier", "1"),
        ("full_attn_mod", "1"),
        ("interpolate_factor", "1"),
        ("is_causal", "true"),
        ("lm_head_bias", "false"),
        ("logit_scale", "1"),
        ("logits_scaling", "1"),
        ("num_experts", "0"),
        ("num_local_experts", "0"),
        ("qk_layernorm", "false"),
        ("residual_multiplier", "1"),
        ("rope_interleaved", "false"),
        ("use_bidirectional_attention", "false"),
        ("use_mrope", "false"),
        ("use_qk_norm", "false"),
    ],
};

/// More weights than any machine has room for: bytes of so many do not overflow 64 bits.
const MOST_WEIGHTS: u64 = 1 << 50;

/// The most layers that a configuration may name: the deepest models have a hundredth of them.
const MOST_LAYERS: usize = 1 << 14;

impl Config {
    /// Reads a checkpoint's `config.json`, as any version of transformers wrote it, and refuses fields that are not known.
    ///
    /// # Errors
    /// [`DecoderError::UnknownArchitecture`], [`DecoderError::Config`], [`DecoderError::Weights`] for an unknown field or quantization.
    pub fn from_json(json: &Value) -> Result<Self> {
        Self::read(json, Unread::Refuse)
    }

    /// The same, and what becomes of unknown fields.
    pub(super) fn read(json: &Value, unread: Unread) -> Result<Self> {
        let outer = Fields::of(json)?;
        let name = outer.text("model_type")?.ok_or_else(|| DecoderError::config("`model_type` is missing"))?;
        let architecture = Architecture::of(name)?;
        // Gemma 3 of 4B and more has the text model's configuration beside that of pictures.
        let inner = outer.inside("text_config")?;
        let of = inner.as_ref().unwrap_or(&outer);
        if let Some(kind) = of.text("model_type")?.filter(|kind| Architecture::named(kind) != Some(architecture)) {
            return Err(of.unsound("model_type", format!("is `{kind}` inside of a `{name}`")).into());
        }
        let is_gemma = architecture == Architecture::Gemma3;
        // What Gemma's files leave out.
        let or_gemmas = |name: &str, gemmas: usize| match of.count(name)? {
            Some(count) => Ok::<_, DecoderError>(count),
            None if is_gemma => Ok(gemmas),
            None => Ok(of.needed(name)?),
        };

        let hidden = of.needed("hidden_size")?;
        let heads = or_gemmas("num_attention_heads", 8)?;
        let kv_heads = of.count("num_key_value_heads")?.unwrap_or(if is_gemma { 4 } else { heads });
        let head_dim = of.count("head_dim")?.unwrap_or(if is_gemma { 256 } else { hidden / heads });
        let max_positions = or_gemmas("max_position_embeddings", 131_072)?;
        let rotary = |scope: Rope| rotary_of(of, architecture, head_dim, max_positions, scope, unread);
        let rotaries = match is_gemma {
            true => vec![rotary(Rope::Full)?, rotary(Rope::Sliding)?],
            false => vec![rotary(Rope::Only)?],
        };
        let layers = of.needed("num_hidden_layers")?;
        if layers > MOST_LAYERS {
            return Err(of
                .unsound("num_hidden_layers", format!("is {layers}: no model has more than {MOST_LAYERS}"))
                .into());
        }
        let windows = windows(of, architecture, layers)?;
        let layer = |window: Option<usize>| LayerConfig { window, rotary: usize::from(is_gemma && window.is_some()) };
        let attention_bias = of.flag("attention_bias")?.unwrap_or(false);
        let attention_scale = match is_gemma {
            true => of.number_in("query_pre_attn_scalar", 1e-6..=1e9)?.unwrap_or(256.).powf(-0.5),
            false => (head_dim as f64).powf(-0.5),
        };
        let old = of.text("hidden_act")?;
        let activation = if is_gemma { of.text("hidden_activation")?.or(old) } else { old };
        // `tie_word_embeddings` of the whole model counts where the text's says nothing.
        let (tied, all_tied) = (of.flag("tie_word_embeddings")?, outer.flag("tie_word_embeddings")?);
        let vocab = or_gemmas("vocab_size", 262_208)?;
        let config = Self {
            architecture,
            vocab,
            hidden,
            intermediate: of.needed("intermediate_size")?,
            heads,
            kv_heads,
            head_dim,
            layers: windows.into_iter().map(layer).collect(),
            rotaries,
            max_positions,
            eps: of.epsilon("rms_norm_eps")?.unwrap_or(if architecture == Architecture::Phi3 { 1e-5 } else { 1e-6 }),
            activation: activation_of(activation.unwrap_or(if is_gemma { "gelu_pytorch_tanh" } else { "silu" }))?,
            qkv_bias: attention_bias || architecture == Architecture::Qwen2,
            output_bias: attention_bias,
            mlp_bias: of.flag("mlp_bias")?.unwrap_or(false),
            head_norms: matches!(architecture, Architecture::Qwen3 | Architecture::Gemma3),
            post_norms: is_gemma,
            one_plus: is_gemma,
            packed: architecture == Architecture::Phi3,
            tied: tied.or(all_tied).unwrap_or(is_gemma),
            embedding_scale: is_gemma.then(|| (hidden as f64).sqrt()),
            attention_scale,
            logit_cap: of.number_in("final_logit_softcapping", 1e-6..=1e9)?,
            bos: of.tokens("bos_token_id")?.first().copied(),
            draws: Draws::default(),
            eos: match of.has("eos_token_id") {
                true => of.tokens("eos_token_id")?,
                false => architecture.end().filter(|end| (*end as usize) < vocab).into_iter().collect(),
            },
        };
        config.check()?;
        let harmless = [TRANSFORMERS, HARMLESS];
        outer.check(&harmless, unread)?;
        if let Some(inner) = &inner {
            inner.check(&harmless, unread)?;
        }
        Ok(config)
    }

    /// Fails on sizes that no model can have.
    pub(super) fn check(&self) -> Result<()> {
        let Self { heads, kv_heads, head_dim, .. } = *self;
        let named = [
            ("tokens of the vocabulary", self.vocab),
            ("elements of a token", self.hidden),
            ("elements of the feed-forward network", self.intermediate),
            ("heads", heads),
            ("heads of keys", kv_heads),
            ("elements of a head", head_dim),
            ("layers", self.layers.len()),
            ("positions", self.max_positions),
            // Products of what fits cannot overflow 64 bits.
            (
                "rows of queries, keys and values",
                heads.saturating_add(kv_heads.saturating_mul(2)).saturating_mul(head_dim),
            ),
        ];
        if let Some((name, count)) = named.into_iter().find(|(_, count)| *count == 0 || u32::try_from(*count).is_err())
        {
            return Err(DecoderError::config(format!("{count} {name}: at least 1 and at most {}", u32::MAX)));
        }
        if self.parameters() > MOST_WEIGHTS {
            return Err(DecoderError::config(format!("{} weights: no machine has room for them", self.parameters())));
        }
        if !heads.is_multiple_of(kv_heads) {
            return Err(DecoderError::config(format!("{kv_heads} heads of keys do not divide {heads} of queries")));
        }
        let numbers = [
            ("the epsilon of norms", self.eps, 1e-30, 0.1),
            ("the scale of attention", self.attention_scale, 1e-9, 1e9),
            ("the scale of embeddings", self.embedding_scale.unwrap_or(1.), 1e-9, 1e9),
            ("the cap of logits", self.logit_cap.unwrap_or(1.), 1e-9, 1e9),
        ];
        for (name, number, least, most) in numbers {
            if !(least..=most).contains(&number) {
                return Err(DecoderError::config(format!("{name} is {number}, not between {least:e} and {most:e}")));
            }
        }
        self.rotaries.iter().try_for_each(|rotary| rotary.check(head_dim))
    }

    /// Rows of the packed queries, keys and values.
    pub fn qkv_rows(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_dim
    }

    /// Numbers of all weights.
    pub fn parameters(&self) -> u64 {
        let (hidden, heads) = (self.hidden as u64, (self.heads * self.head_dim) as u64);
        let layer = hidden.saturating_mul(self.qkv_rows() as u64 + heads + 3 * self.intermediate as u64);
        let table = hidden * self.vocab as u64;
        (self.layers.len() as u64).saturating_mul(layer).saturating_add(table.saturating_mul(if self.tied {
            1
        } else {
            2
        }))
    }
}

/// Which layers a rotary embedding is for.
#[derive(Clone, Copy, PartialEq)]
enum Rope {
    Only,
    Full,
    Sliding,
}

fn activation_of(name: &str) -> Result<Activation> {
    match name {
        "silu" | "swish" => Ok(Activation::Silu),
        "gelu_pytorch_tanh" | "gelu_new" => Ok(Activation::Gelu),
        "gelu" => Ok(Activation::GeluErf),
        other => {
            Err(DecoderError::config(format!("`hidden_act` is `{other}`: known are silu, gelu, gelu_pytorch_tanh")))
        }
    }
}

/// The window of each layer.
fn windows(of: &Fields<&Value>, architecture: Architecture, layers: usize) -> Result<Vec<Option<usize>>> {
    // What transformers assumes of files that do not mention a window.
    let default = match (architecture, of.has("sliding_window")) {
        (Architecture::Mistral | Architecture::Gemma3, false) => Some(4096),
        _ => None,
    };
    // transformers' Llama has windows where `layer_types` say so.
    let window = match architecture {
        Architecture::Llama if !of.has("layer_types") => None,
        _ => of.count("sliding_window")?.or(default),
    };
    let pattern = match architecture {
        Architecture::Gemma3 => of.count("sliding_window_pattern")?,
        _ => None,
    };
    // Which of Qwen's layers have a window.
    let is_qwen = matches!(architecture, Architecture::Qwen2 | Architecture::Qwen3);
    let (first, is_used) = match is_qwen {
        true => {
            let first = of.parsed("max_window_layers", "a number", Value::as_u64)?;
            (first, of.flag("use_sliding_window")?.unwrap_or(false))
        }
        false => (None, false),
    };
    let slides: Vec<bool> = if let Some(types) = of.parsed("layer_types", "a list", Value::as_array)? {
        let known = |kind: &Value| match kind.as_str() {
            Some("sliding_attention") => Ok(true),
            Some("full_attention") => Ok(false),
            _ => Err(DecoderError::config(format!("`layer_types` has {kind}, which is not known"))),
        };
        types.iter().map(known).collect::<Result<_>>()?
    } else if architecture == Architecture::Gemma3 {
        let pattern = pattern.unwrap_or(6);
        (0..layers).map(|layer| !(layer + 1).is_multiple_of(pattern)).collect()
    } else if is_qwen {
        let first = first.unwrap_or(28) as usize;
        (0..layers).map(|layer| is_used && layer >= first).collect()
    } else {
        vec![window.is_some(); layers]
    };
    if slides.len() != layers {
        return Err(DecoderError::config(format!("{} `layer_types` of {layers} layers", slides.len())));
    }
    if slides.contains(&true) && window.is_none() {
        return Err(DecoderError::config("layers have a window, and `sliding_window` is missing"));
    }
    Ok(slides.into_iter().map(|slides| window.filter(|_| slides)).collect())
}

/// A rotary embedding: `rope_parameters` as transformers writes it since version 5, or the fields before that.
fn rotary_of(
    of: &Fields<&Value>,
    architecture: Architecture,
    head_dim: usize,
    context: usize,
    scope: Rope,
    unread: Unread,
) -> Result<Rotary> {
    let name = if scope == Rope::Sliding { "sliding_attention" } else { "full_attention" };
    let parameters = match of.inside("rope_parameters")? {
        Some(all) if scope != Rope::Only => all.inside(name)?.or(Some(all)),
        parameters => parameters,
    };
    // Gemma scales the frequencies of its layers without a window alone.
    let old = of.inside("rope_scaling")?.filter(|_| scope != Rope::Sliding);
    if parameters.is_some() && old.is_some() && of.get("rope_parameters") != of.get("rope_scaling") {
        return Err(of.unsound("rope_scaling", "says something else than `rope_parameters`").into());
    }
    let scaling = match parameters.or(old) {
        Some(scaling) => scaling,
        None => Fields::of(&Value::Null)?,
    };
    let default = if scope == Rope::Full { 1e6 } else { 1e4 };
    let outer = if scope == Rope::Sliding { "rope_local_base_freq" } else { "rope_theta" };
    let (theta, outer_theta) = (scaling.number("rope_theta")?, of.number(outer)?);
    let theta = theta.or(outer_theta).unwrap_or(default);
    let (part, outer_part) = (scaling.number("partial_rotary_factor")?, of.number("partial_rotary_factor")?);
    let dim = (head_dim as f64 * part.or(outer_part).unwrap_or(1.)) as usize;
    let outer_original = of.count("original_max_position_embeddings")?;
    let original = |fallback: usize| {
        Ok::<_, DecoderError>(scaling.count("original_max_position_embeddings")?.or(outer_original).unwrap_or(fallback))
    };
    let (new, old) = (scaling.text("rope_type")?, scaling.text("type")?);
    let needed =
        |name: &str| scaling.number(name)?.ok_or_else(|| DecoderError::from(scaling.unsound(name, "is missing")));
    let scaled = match new.or(old).unwrap_or("default") {
        "default" => Scaling::Default,
        "linear" => Scaling::Linear(needed("factor")?),
        "llama3" => Scaling::Llama3 {
            factor: needed("factor")?,
            low: needed("low_freq_factor")?,
            high: needed("high_freq_factor")?,
            original: original(8192)? as f64,
        },
        // transformers takes Phi-3's older names for LongRoPE.
        kind if kind == "longrope" || architecture == Architecture::Phi3 && matches!(kind, "su" | "yarn") => {
            let list = |name| {
                let missing = || DecoderError::from(scaling.unsound(name, "is missing"));
                scaling.numbers(name)?.ok_or_else(missing)
            };
            let original = original(context)?;
            let factor = scaling.number("factor")?.unwrap_or(context as f64 / original as f64);
            let magnitude = scaling.number("attention_factor")?;
            let magnitude = magnitude.unwrap_or_else(|| Scaling::long_rope_magnitude(factor, original));
            Scaling::LongRope { short: list("short_factor")?, long: list("long_factor")?, original, magnitude }
        }
        other => {
            let reason =
                format!("{architecture:?} with `rope_type` `{other}`: known are default, linear, llama3, longrope");
            return Err(DecoderError::config(reason));
        }
    };
    // Without a scaling, transformers writes the length of training and a factor of one all the same.
    let unscaled = Harmless { names: &[], neutral: &[("factor", "1"), ("attention_factor", "1")] };
    scaling.get("original_max_position_embeddings");
    if scope == Rope::Only || !scaling.has("full_attention") {
        scaling.check(&[unscaled], unread)?;
    }
    Ok(Rotary { theta, dim, scaling: scaled })
}
