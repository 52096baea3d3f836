//! What the metadata of a GGUF file says about the model.

use candle::quantized::gguf_file::Value;
use candle::DType;
use opara_candle::ops::Activation;
use opara_weights::Unread;

use super::architecture::Architecture;
use super::config::{Config, LayerConfig};
use super::draws::Draws;
use super::error::{DecoderError, Result};
use super::gguf::Gguf;
use super::header::whole;
use super::kinds::Kinds;
use super::rotary::{Rotary, Scaling};

impl Gguf {
    /// The configuration that the metadata describes. Keys that are not known are refused.
    pub fn config(&mut self, unread: Unread) -> Result<Config> {
        let (hidden, heads) = (self.needed(".embedding_length")?, self.needed(".attention.head_count")?);
        let kv_heads = self.optional(".attention.head_count_kv")?.unwrap_or(heads);
        self.heads = (heads, kv_heads);
        let head_dim = self.optional(".attention.key_length")?.unwrap_or(hidden / heads);
        if let Some(other) = self.optional(".attention.value_length")?.filter(|length| *length != head_dim) {
            return Err(
                self.damaged(format!("keys have {head_dim} elements and values {other}: known are heads of one size"))
            );
        }
        let rows =
            self.header.tensors.get("token_embd.weight").and_then(|stored| stored.info.shape.dims().first().copied());
        let vocab = rows.ok_or_else(|| self.damaged("tensor `token_embd.weight` is missing"))?;
        let max_positions = self.needed(".context_length")?;
        let is_gemma = self.architecture == Architecture::Gemma3;
        let rotary = self.rotary(head_dim, max_positions)?;
        let layers = self.needed(".block_count")?;
        if layers > self.header.tensors.len() {
            let tensors = self.header.tensors.len();
            return Err(self.damaged(format!("`.block_count` is {layers}, and there are {tensors} tensors")));
        }
        // The other architectures have no window in llama.cpp.
        let window = match self.architecture {
            Architecture::Gemma3 | Architecture::Phi3 => {
                self.optional(".attention.sliding_window")?.filter(|&window| window > 0)
            }
            _ => None,
        };
        let (local_theta, slides, logit_cap) = match is_gemma {
            true => {
                (self.number(".rope.freq_base_swa")?, self.slides(layers)?, self.number(".final_logit_softcapping")?)
            }
            false => (None, Vec::new(), None),
        };
        let local = Rotary { theta: local_theta.unwrap_or(1e4), dim: rotary.dim, scaling: Scaling::Default };
        let layer = |layer: usize| match is_gemma {
            true if slides[layer] => LayerConfig { window: window.or(Some(1024)), rotary: 1 },
            true => LayerConfig { window: None, rotary: 0 },
            false => LayerConfig { window, rotary: 0 },
        };
        // Gemma 3 of 27B alone scales by another size than a head's.
        let scale_of = if is_gemma && layers == 62 { hidden / heads } else { head_dim };
        let eps = self.number(".attention.layer_norm_rms_epsilon")?;
        let config = Config {
            architecture: self.architecture,
            vocab,
            hidden,
            intermediate: self.needed(".feed_forward_length")?,
            heads,
            kv_heads,
            head_dim,
            layers: (0..layers).map(layer).collect(),
            rotaries: if is_gemma { vec![rotary, local] } else { vec![rotary] },
            max_positions,
            eps: eps.ok_or_else(|| self.damaged("the epsilon of norms is missing"))?,
            activation: if is_gemma { Activation::Gelu } else { Activation::Silu },
            qkv_bias: self.has("blk.0.attn_q.bias"),
            output_bias: self.has("blk.0.attn_output.bias"),
            mlp_bias: self.has("blk.0.ffn_up.bias"),
            head_norms: self.has("blk.0.attn_q_norm.weight"),
            post_norms: is_gemma,
            one_plus: is_gemma,
            packed: self.has("blk.0.attn_qkv.weight"),
            tied: !self.has("output.weight"),
            embedding_scale: is_gemma.then(|| (hidden as f64).sqrt()),
            attention_scale: (scale_of as f64).powf(-0.5),
            logit_cap: logit_cap.filter(|cap| *cap != 0.),
            bos: self.count("tokenizer.ggml.bos_token_id").map(|token| token as u32),
            draws: Draws::default(),
            eos: Kinds::of(self, &self.texts("tokenizer.ggml.tokens").unwrap_or_default())?.into_ends(),
        };
        config.check()?;
        self.check_metadata(max_positions, unread)?;
        Ok(config)
    }

    /// Which of Gemma's layers have a window: all but every sixth, unless the file says another number, or it for each layer.
    fn slides(&self, layers: usize) -> Result<Vec<bool>> {
        let name = ".attention.sliding_window_pattern";
        if let Some(Value::Array(values)) = self.value(name) {
            let flags = values.iter().map(|value| match value {
                Value::Bool(flag) => Some(*flag),
                value => whole(value).map(|number| number != 0),
            });
            let flags = flags.collect::<Option<Vec<_>>>().filter(|flags| flags.len() == layers);
            return flags.ok_or_else(|| self.damaged(format!("`{name}` is not a flag for each of {layers} layers")));
        }
        let pattern = self.optional(name)?.unwrap_or(6).max(1);
        Ok((1..=layers).map(|layer| !layer.is_multiple_of(pattern)).collect())
    }

    fn rotary(&self, head_dim: usize, max_positions: usize) -> Result<Rotary> {
        let is_gemma = self.architecture == Architecture::Gemma3;
        let theta = self.number(".rope.freq_base")?.unwrap_or(if is_gemma { 1e6 } else { 1e4 });
        let dim = self.optional(".rope.dimension_count")?.unwrap_or(head_dim);
        let list = |name: &str| -> Result<Vec<f64>> {
            let read = || self.dense(name)?.flatten_all()?.to_dtype(DType::F64)?.to_vec1::<f64>();
            read().map_err(|error| self.damaged(format!("tensor `{name}`: {error}")))
        };
        let kind = self.parsed(".rope.scaling.type", "a text", |of, name| of.text(name).map(str::to_owned))?;
        let kind = kind.as_deref();
        // llama.cpp divides by the factor unless the type is `none`, and takes 0 for none.
        let (factor, old) = (self.number(".rope.scaling.factor")?, self.number(".rope.scale_linear")?);
        let factor = factor.or(old).filter(|factor| *factor != 0. && kind != Some("none")).unwrap_or(1.);
        let (is_long, is_listed) = (self.has("rope_factors_long.weight"), self.has("rope_freqs.weight"));
        let original = self.optional(".rope.scaling.original_context_length")?;
        let scaling = match kind {
            None | Some("none" | "longrope") if is_long && !is_listed => {
                let original = original.unwrap_or(max_positions);
                let by = max_positions as f64 / original as f64;
                let magnitude = self.number(".rope.scaling.attn_factor")?;
                Scaling::LongRope {
                    short: list("rope_factors_short.weight")?,
                    long: list("rope_factors_long.weight")?,
                    original,
                    magnitude: magnitude.unwrap_or_else(|| Scaling::long_rope_magnitude(by, original)),
                }
            }
            None | Some("none" | "linear" | "llama3") if is_listed && factor == 1. => {
                Scaling::Factors(list("rope_freqs.weight")?)
            }
            None | Some("none" | "linear") if !is_listed => match factor {
                1. => Scaling::Default,
                factor => Scaling::Linear(factor),
            },
            other => {
                let (other, lists) =
                    (other.unwrap_or("linear"), if is_listed || is_long { " and lists of factors" } else { "" });
                let reason = format!(
                    "`rope.scaling.type` is `{other}`, by {factor}{lists}: known are none and linear, and lists of factors alone"
                );
                return Err(DecoderError::config(reason));
            }
        };
        Ok(Rotary { theta, dim, scaling })
    }
}
