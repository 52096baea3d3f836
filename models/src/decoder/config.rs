//! What a checkpoint's `config.json` says, in one form for all architectures.

use opara_candle::ops::Activation;
use serde_json::Value;

use super::architecture::Architecture;
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
    /// What is added to the mean square in a norm.
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
}

/// Fields of a JSON object.
#[derive(Clone, Copy)]
struct Fields<'a>(&'a Value);

impl<'a> Fields<'a> {
    /// A field that is there and not null.
    fn get(self, name: &str) -> Option<&'a Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    fn parsed<T>(self, name: &str, kind: &str, parse: impl Fn(&'a Value) -> Option<T>) -> Result<Option<T>> {
        let wrong = |value: &Value| DecoderError::config(format!("`{name}` is {value}, not {kind}"));
        self.get(name).map(|value| parse(value).ok_or_else(|| wrong(value))).transpose()
    }

    /// A number of things, which is never none.
    fn count(self, name: &str) -> Result<Option<usize>> {
        self.parsed(name, "a number above 0", |value| value.as_u64().filter(|&n| n > 0).map(|n| n as usize))
    }

    fn needed(self, name: &str) -> Result<usize> {
        self.count(name)?.ok_or_else(|| DecoderError::config(format!("`{name}` is missing")))
    }

    fn number(self, name: &str) -> Result<Option<f64>> {
        self.parsed(name, "a number", Value::as_f64)
    }

    fn needed_number(self, name: &str) -> Result<f64> {
        self.number(name)?.ok_or_else(|| DecoderError::config(format!("`{name}` is missing")))
    }

    fn flag(self, name: &str) -> Result<Option<bool>> {
        self.parsed(name, "true or false", Value::as_bool)
    }

    fn text(self, name: &str) -> Result<Option<&'a str>> {
        self.parsed(name, "a text", Value::as_str)
    }

    fn numbers(self, name: &str) -> Result<Option<Vec<f64>>> {
        self.parsed(name, "a list of numbers", |value| value.as_array()?.iter().map(Value::as_f64).collect())
    }

    /// Tokens: one, or a list.
    fn tokens(self, name: &str) -> Result<Vec<u32>> {
        let token = |value: &Value| value.as_u64().and_then(|token| u32::try_from(token).ok());
        let tokens = self.parsed(name, "a token or a list of tokens", |value| match value {
            Value::Array(tokens) => tokens.iter().map(token).collect::<Option<Vec<u32>>>(),
            one => Some(vec![token(one)?]),
        });
        Ok(tokens?.unwrap_or_default())
    }
}

impl Config {
    /// Reads a checkpoint's `config.json`, as any version of transformers wrote it.
    ///
    /// # Errors
    /// [`DecoderError::UnknownArchitecture`], [`DecoderError::Config`].
    pub fn from_json(json: &Value) -> Result<Self> {
        let outer = Fields(json);
        let name = outer.text("model_type")?.ok_or_else(|| DecoderError::config("`model_type` is missing"))?;
        let architecture = Architecture::of(name)?;
        // Gemma 3 of 4B and more has the text model's configuration beside that of pictures.
        let of = Fields(outer.get("text_config").unwrap_or(json));
        let is_gemma = architecture == Architecture::Gemma3;
        // What Gemma's files leave out.
        let or_gemmas = |name: &str, gemmas: usize| match of.count(name)? {
            Some(count) => Ok(count),
            None if is_gemma => Ok(gemmas),
            None => of.needed(name),
        };

        let hidden = of.needed("hidden_size")?;
        let heads = or_gemmas("num_attention_heads", 8)?;
        let kv_heads = of.count("num_key_value_heads")?.unwrap_or(if is_gemma { 4 } else { heads });
        let head_dim = of.count("head_dim")?.unwrap_or(if is_gemma { 256 } else { hidden / heads });
        let max_positions = or_gemmas("max_position_embeddings", 131_072)?;
        let rotary = |scope: Rope| rotary_of(of, architecture, head_dim, max_positions, scope);
        let rotaries = match is_gemma {
            true => vec![rotary(Rope::Full)?, rotary(Rope::Sliding)?],
            false => vec![rotary(Rope::Only)?],
        };
        let windows = windows(of, architecture, of.needed("num_hidden_layers")?)?;
        let layer = |window: Option<usize>| LayerConfig { window, rotary: usize::from(is_gemma && window.is_some()) };
        let attention_bias = of.flag("attention_bias")?.unwrap_or(false);
        let attention_scale = match is_gemma {
            true => of.number("query_pre_attn_scalar")?.unwrap_or(256.).powf(-0.5),
            false => (head_dim as f64).powf(-0.5),
        };
        let activation = of.text("hidden_activation")?.or(of.text("hidden_act")?);
        let config = Self {
            architecture,
            vocab: or_gemmas("vocab_size", 262_208)?,
            hidden,
            intermediate: of.needed("intermediate_size")?,
            heads,
            kv_heads,
            head_dim,
            layers: windows.into_iter().map(layer).collect(),
            rotaries,
            max_positions,
            eps: of.number("rms_norm_eps")?.unwrap_or(1e-6),
            activation: activation_of(activation.unwrap_or(if is_gemma { "gelu_pytorch_tanh" } else { "silu" }))?,
            qkv_bias: attention_bias || architecture == Architecture::Qwen2,
            output_bias: attention_bias,
            mlp_bias: of.flag("mlp_bias")?.unwrap_or(false),
            head_norms: matches!(architecture, Architecture::Qwen3 | Architecture::Gemma3),
            post_norms: is_gemma,
            one_plus: is_gemma,
            packed: architecture == Architecture::Phi3,
            tied: of.flag("tie_word_embeddings")?.or(outer.flag("tie_word_embeddings")?).unwrap_or(is_gemma),
            embedding_scale: is_gemma.then(|| (hidden as f64).sqrt()),
            attention_scale,
            logit_cap: of.number("final_logit_softcapping")?,
            bos: of.tokens("bos_token_id")?.first().copied(),
            eos: of.tokens("eos_token_id")?,
        };
        config.check()?;
        Ok(config)
    }

    /// Takes the tokens that end a text from `generation_config.json`, if it names any.
    pub(super) fn end_as(&mut self, generation: &Value) -> Result<()> {
        let named = Fields(generation).tokens("eos_token_id")?;
        if !named.is_empty() {
            self.eos = named;
        }
        Ok(())
    }

    /// Fails on sizes that no model can have.
    pub(super) fn check(&self) -> Result<()> {
        let Self { heads, kv_heads, head_dim, .. } = *self;
        if !heads.is_multiple_of(kv_heads) {
            return Err(DecoderError::config(format!("{kv_heads} heads of keys do not divide {heads} of queries")));
        }
        for Rotary { dim, theta, scaling } in &self.rotaries {
            if *dim > head_dim || !dim.is_multiple_of(2) || *dim == 0 {
                return Err(DecoderError::config(format!(
                    "{dim} elements of a head of {head_dim} cannot turn in pairs"
                )));
            }
            let lists = match scaling {
                Scaling::Factors(factors) => vec![factors],
                Scaling::LongRope { short, long, .. } => vec![short, long],
                _ => Vec::new(),
            };
            if let Some(list) = lists.into_iter().find(|list| list.len() != dim / 2) {
                let reason = format!("{} rotary factors, where {} pairs of elements turn", list.len(), dim / 2);
                return Err(DecoderError::config(reason));
            }
            if !theta.is_finite() || *theta <= 0. {
                return Err(DecoderError::config(format!("`rope_theta` is {theta}")));
            }
        }
        Ok(())
    }

    /// Rows of the packed queries, keys and values.
    pub fn qkv_rows(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_dim
    }

    /// Numbers of all weights.
    pub fn parameters(&self) -> u64 {
        let (hidden, heads) = (self.hidden as u64, (self.heads * self.head_dim) as u64);
        let layer = hidden * (self.qkv_rows() as u64 + heads + 3 * self.intermediate as u64);
        let table = hidden * self.vocab as u64;
        self.layers.len() as u64 * layer + table * if self.tied { 1 } else { 2 }
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
fn windows(of: Fields, architecture: Architecture, layers: usize) -> Result<Vec<Option<usize>>> {
    // What transformers assumes of files that do not mention a window.
    let default = match (architecture, of.0.get("sliding_window")) {
        (Architecture::Mistral | Architecture::Gemma3, None) => Some(4096),
        _ => None,
    };
    let window = of.count("sliding_window")?.or(default);
    let slides: Vec<bool> = if let Some(types) = of.parsed("layer_types", "a list", Value::as_array)? {
        let known = |kind: &Value| match kind.as_str() {
            Some("sliding_attention") => Ok(true),
            Some("full_attention") => Ok(false),
            _ => Err(DecoderError::config(format!("`layer_types` has {kind}, which is not known"))),
        };
        types.iter().map(known).collect::<Result<_>>()?
    } else if architecture == Architecture::Gemma3 {
        let pattern = of.count("sliding_window_pattern")?.unwrap_or(6);
        (0..layers).map(|layer| !(layer + 1).is_multiple_of(pattern)).collect()
    } else if matches!(architecture, Architecture::Qwen2 | Architecture::Qwen3) {
        let first = of.get("max_window_layers").and_then(Value::as_u64).unwrap_or(28) as usize;
        let is_used = of.flag("use_sliding_window")?.unwrap_or(false);
        (0..layers).map(|layer| is_used && layer >= first).collect()
    } else {
        vec![window.is_some() && architecture != Architecture::Llama; layers]
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
fn rotary_of(of: Fields, architecture: Architecture, head_dim: usize, context: usize, scope: Rope) -> Result<Rotary> {
    let parameters = of.get("rope_parameters");
    let name = if scope == Rope::Sliding { "sliding_attention" } else { "full_attention" };
    let parameters = parameters.map(|all| all.get(name).filter(|_| scope != Rope::Only).unwrap_or(all));
    // Gemma scales the frequencies of its layers without a window alone.
    let scaling = match parameters {
        Some(parameters) => Some(parameters),
        None => of.get("rope_scaling").filter(|_| scope != Rope::Sliding),
    };
    let nothing = Value::Null;
    let scaling = Fields(scaling.unwrap_or(&nothing));
    let default = if scope == Rope::Full { 1e6 } else { 1e4 };
    let outer = if scope == Rope::Sliding { "rope_local_base_freq" } else { "rope_theta" };
    let theta = scaling.number("rope_theta")?.or(of.number(outer)?).unwrap_or(default);
    let part = scaling.number("partial_rotary_factor")?.or(of.number("partial_rotary_factor")?).unwrap_or(1.);
    let dim = (head_dim as f64 * part) as usize;
    let original = |fallback: usize| -> Result<usize> {
        let here = scaling.count("original_max_position_embeddings")?;
        Ok(here.or(of.count("original_max_position_embeddings")?).unwrap_or(fallback))
    };
    let scaling = match scaling.text("rope_type")?.or(scaling.text("type")?).unwrap_or("default") {
        "default" => Scaling::Default,
        "linear" => Scaling::Linear(scaling.needed_number("factor")?),
        "llama3" => Scaling::Llama3 {
            factor: scaling.needed_number("factor")?,
            low: scaling.needed_number("low_freq_factor")?,
            high: scaling.needed_number("high_freq_factor")?,
            original: original(8192)? as f64,
        },
        "longrope" | "su" | "yarn" if scaling.get("long_factor").is_some() => {
            let list = |name| {
                let missing = || DecoderError::config(format!("`{name}` is missing"));
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
    Ok(Rotary { theta, dim, scaling })
}
