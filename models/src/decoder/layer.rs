//! One layer: attention over the cache, and a gated feed-forward network.

use candle::{Result, Tensor};
use opara_candle::ops::{self, Activation, CachedAttention, NewTokens};
use opara_candle::scope;

use super::config::Config;
use super::weights::{Norm, Product, Source};

/// The positions of the new tokens in the cache, and the rotary embedding of each position.
pub(super) struct CachePositions<'a> {
    pub start: &'a Tensor,
    /// The pages that sequences have, if the cache is in pages.
    pub pages: Option<&'a Tensor>,
    pub rotaries: &'a [Tensor],
    /// How many of the new tokens are each text's own, `(batch)` of u32; all, if not given.
    pub counts: Option<&'a Tensor>,
}

pub(super) struct Layer {
    of: CachedAttention,
    rotary: usize,
    activation: Activation,
    attention_norm: Norm,
    qkv: Product,
    head_norms: Option<(Tensor, Tensor)>,
    output: Product,
    after_attention: Option<Norm>,
    mlp_norm: Norm,
    gate_up: Product,
    down: Product,
    after_mlp: Option<Norm>,
}

impl Layer {
    pub fn load(source: &Source, config: &Config, at: usize) -> Result<Self> {
        let Config { hidden, intermediate, heads, kv_heads, head_dim, eps, one_plus, .. } = *config;
        let name = |part: &str| format!("model.layers.{at}.{part}");
        let norm = |part: &str, size| Norm::load(source, &name(part), size, eps, one_plus);
        let product = |label, parts: &[(&str, usize)], columns, has_bias| {
            let names: Vec<String> = parts.iter().map(|(part, _)| name(part)).collect();
            let parts: Vec<_> = names.iter().map(String::as_str).zip(parts.iter().map(|(_, rows)| *rows)).collect();
            source.product(label, &parts, columns, has_bias)
        };
        let (q, kv) = (heads * head_dim, kv_heads * head_dim);
        let (qkv, gate_up) = match config.packed {
            true => (vec![("self_attn.qkv_proj", q + 2 * kv)], vec![("mlp.gate_up_proj", 2 * intermediate)]),
            false => (
                vec![("self_attn.q_proj", q), ("self_attn.k_proj", kv), ("self_attn.v_proj", kv)],
                vec![("mlp.gate_proj", intermediate), ("mlp.up_proj", intermediate)],
            ),
        };
        // Gemma has a norm more behind attention, by the name that the others have before the feed-forward network.
        let (after_attention, mlp_norm, after_mlp) = match config.post_norms {
            true => (
                Some(norm("post_attention_layernorm", hidden)?),
                norm("pre_feedforward_layernorm", hidden)?,
                Some(norm("post_feedforward_layernorm", hidden)?),
            ),
            false => (None, norm("post_attention_layernorm", hidden)?, None),
        };
        let head_norm = |part: &str| norm(part, head_dim).map(|norm| norm.scale().0.clone());
        let head_norms = match config.head_norms {
            true => Some((head_norm("self_attn.q_norm")?, head_norm("self_attn.k_norm")?)),
            false => None,
        };
        Ok(Self {
            of: CachedAttention {
                heads,
                kv_heads,
                head_dim,
                scale: config.attention_scale,
                window: config.layers[at].window,
                eps: eps as f32,
            },
            rotary: config.layers[at].rotary,
            activation: config.activation,
            attention_norm: norm("input_layernorm", hidden)?,
            qkv: product("qkv", &qkv, hidden, config.qkv_bias)?,
            head_norms,
            output: product("output", &[("self_attn.o_proj", hidden)], q, config.output_bias)?,
            after_attention,
            mlp_norm,
            gate_up: product("gate_up", &gate_up, hidden, config.mlp_bias)?,
            down: product("down", &[("mlp.down_proj", hidden)], intermediate, config.mlp_bias)?,
            after_mlp,
        })
    }

    /// `(batch, tokens, hidden)` to the same; the cache takes the new tokens' keys and values.
    pub fn forward(&self, x: &Tensor, cache: &Tensor, places: &CachePositions) -> Result<Tensor> {
        let x = {
            let _scope = scope("attention");
            let qkv = self.qkv.forward(x, Some(&self.attention_norm), None)?;
            let new = NewTokens {
                qkv: &qkv,
                start: places.start,
                counts: places.counts,
                pages: places.pages,
                rotary: Some(&places.rotaries[self.rotary]),
                norms: self.head_norms.as_ref().map(|(q, k)| (q, k)),
                by_distance: None,
            };
            let y = ops::cached_attention(&self.of, cache, new)?;
            added(x, &y, &self.output, self.after_attention.as_ref())?
        };
        let _scope = scope("mlp");
        let y = self.gate_up.gated(&x, Some(&self.mlp_norm), self.activation)?;
        added(&x, &y, &self.down, self.after_mlp.as_ref())
    }
}

/// `x` plus the product of `y`, normalised where there is a norm.
fn added(x: &Tensor, y: &Tensor, product: &Product, norm: Option<&Norm>) -> Result<Tensor> {
    match norm {
        Some(norm) => ops::add(x, &norm.forward(&product.forward(y, None, None)?)?),
        None => product.forward(y, None, Some(x)),
    }
}
