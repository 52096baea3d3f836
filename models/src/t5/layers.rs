//! The parts of a block: products, attention, the feed-forward network.

use candle::{Module, Result, Tensor};
use candle_nn::VarBuilder;
use opara_candle::nn::{Linear, RmsNorm};
use opara_candle::ops::{self, Activation, CachedAttention, NewTokens};
use opara_candle::scope;

use super::stream::{onto_stream, stream_norm, Stream};
use super::Config;

/// `(out, input)`, the matrix called `name`.
pub(super) fn weight(input: usize, out: usize, name: &str, vb: &VarBuilder) -> Result<Tensor> {
    vb.pp(name).get_with_hints((out, input), "weight", candle_nn::init::DEFAULT_KAIMING_NORMAL)
}

/// The matrix called `name` as a layer that adds to the stream.
fn output(input: usize, name: &str, vb: &VarBuilder, config: &Config) -> Result<Linear> {
    Ok(Linear::new(name, onto_stream(weight(input, config.d_model, name, vb)?)?, None))
}

/// Several products of one input, as one.
pub(super) struct Products {
    name: &'static str,
    /// `(products * width, d_model)`.
    weight: Tensor,
    /// `(products, d_model, width)`, a view of that.
    weights: Tensor,
}

impl Products {
    /// Concatenates `weights`. A matrix of shape `(n * width, d_model)` gives `n` products.
    pub fn new(name: &'static str, weights: &[Tensor], width: usize) -> Result<Self> {
        let weight = Tensor::cat(weights, 0)?;
        let (out, input) = weight.dims2()?;
        let weights = weight.reshape((out / width, width, input))?.transpose(1, 2)?;
        Ok(Self { name, weight, weights })
    }

    /// `(products, batch, seq, width)` of `(batch, seq, d_model)`. Each is contiguous, so that it can be multiplied without a copy.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _scope = scope(self.name);
        let (products, input, width) = self.weights.dims3()?;
        let (batch, seq, _) = x.dims3()?;
        let x = ops::reshape(x, (1, batch * seq, input))?;
        let x = ops::broadcast_as(&x, (products, batch * seq, input))?;
        ops::reshape(&ops::matmul(&x, &self.weights)?, (products, batch, seq, width))
    }

    /// The same of what is read, for attention, which takes heads as they lie on a GPU, where one product is faster.
    fn forward_heads(&self, x: &mut Stream, norm: &RmsNorm) -> Result<Tensor> {
        if !self.weight.device().is_cuda() {
            return self.forward(&x.read(norm)?);
        }
        let (products, _, width) = self.weights.dims3()?;
        let y = self.forward_side_by_side(x, norm)?;
        let (batch, seq, _) = y.dims3()?;
        let side_by_side = ops::reshape(&y, (batch, seq, products, width))?;
        ops::transpose(&ops::transpose(&side_by_side, 0, 2)?, 1, 2)
    }

    /// The same as `(batch, seq, products * width)`.
    fn forward_side_by_side(&self, x: &mut Stream, norm: &RmsNorm) -> Result<Tensor> {
        let _scope = scope(self.name);
        x.read_product(norm, &self.weight)
    }
}

/// Attention of `(heads, batch, seq, d_kv)` queries to keys and values, which are in one tensor of
/// `(2 * heads, batch, len, d_kv)`: `(batch, seq, heads * d_kv)`. `bias` broadcasts to the scores.
fn attend(query: &Tensor, keys_values: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let (heads, batch, seq, width) = query.dims4()?;
    let key = ops::narrow(keys_values, 0, 0, heads)?;
    let value = ops::narrow(keys_values, 0, heads, heads)?;
    // A GPU does it in one launch, wherever heads lie.
    if query.device().is_cuda() {
        let by_batch = |x: &Tensor| ops::transpose(x, 0, 1);
        let bias = bias.map(by_batch).transpose()?;
        let context = ops::attention(&by_batch(query)?, &by_batch(&key)?, &by_batch(&value)?, bias.as_ref(), 1.)?;
        return ops::merge_heads(&context);
    }
    let context = ops::attention(query, &key, &value, bias, 1.)?;
    let context = ops::merge_heads(&ops::reshape(&context, (1, heads, batch * seq, width))?)?;
    ops::reshape(&context, (batch, seq, heads * width))
}

/// Attention of a sequence to itself.
pub(super) struct SelfAttention {
    norm: RmsNorm,
    qkv: Products,
    output: Linear,
    of: CachedAttention,
}

impl SelfAttention {
    pub fn load(vb: VarBuilder, config: &Config) -> Result<Self> {
        let (attention, inner) = (vb.pp("SelfAttention"), config.num_heads * config.d_kv);
        let weights = ["q", "k", "v"].map(|name| weight(config.d_model, inner, name, &attention));
        let weights = weights.into_iter().collect::<Result<Vec<_>>>()?;
        Ok(Self {
            norm: stream_norm(config, vb.pp("layer_norm"))?,
            qkv: Products::new("qkv", &weights, config.d_kv)?,
            output: output(inner, "o", &attention, config)?,
            of: CachedAttention {
                heads: config.num_heads,
                kv_heads: config.num_heads,
                head_dim: config.d_kv,
                scale: 1.,
                window: None,
                eps: 0.,
            },
        })
    }

    /// Adds the result to the stream.
    pub fn forward(&self, x: &mut Stream, bias: &Tensor) -> Result<()> {
        let _scope = scope("SelfAttention");
        let (qkv, heads) = (self.qkv.forward_heads(x, &self.norm)?, self.of.heads);
        let (query, keys_values) = (ops::narrow(&qkv, 0, 0, heads)?, ops::narrow(&qkv, 0, heads, 2 * heads)?);
        x.add_product(&attend(&query, &keys_values, Some(bias))?, &self.output)
    }

    /// The same for one new token, `(batch, 1, d_model)`, at the position of each text, `(batch)`, with a bias by head and distance.
    /// Its keys and values go into the cache, which is `(batch, 2, heads, len, d_kv)`.
    pub fn step(&self, x: &mut Stream, by_distance: &Tensor, cache: &Tensor, positions: &Tensor) -> Result<()> {
        let _scope = scope("SelfAttention");
        let qkv = self.qkv.forward_side_by_side(x, &self.norm)?;
        let by_distance = Some(by_distance);
        let new = NewTokens {
            qkv: &qkv,
            start: positions,
            counts: None,
            pages: None,
            rotary: None,
            norms: None,
            by_distance,
        };
        x.add_product(&ops::cached_attention(&self.of, cache, new)?, &self.output)
    }
}

/// Attention of the output to the input. Keys and values come from outside: they are the same for all tokens.
pub(super) struct CrossAttention {
    norm: RmsNorm,
    query: Products,
    output: Linear,
}

impl CrossAttention {
    pub fn load(vb: VarBuilder, config: &Config) -> Result<Self> {
        let (attention, inner) = (vb.pp("EncDecAttention"), config.num_heads * config.d_kv);
        Ok(Self {
            norm: stream_norm(config, vb.pp("layer_norm"))?,
            query: Products::new("q", &[weight(config.d_model, inner, "q", &attention)?], config.d_kv)?,
            output: output(inner, "o", &attention, config)?,
        })
    }

    /// Adds the result to the stream.
    pub fn forward(&self, x: &mut Stream, keys_values: &Tensor, mask: Option<&Tensor>) -> Result<()> {
        let _scope = scope("EncDecAttention");
        let query = self.query.forward_heads(x, &self.norm)?;
        x.add_product(&attend(&query, keys_values, mask)?, &self.output)
    }
}

/// The feed-forward network.
pub(super) struct FeedForward {
    norm: RmsNorm,
    input: Input,
    activation: Activation,
    output: Linear,
}

enum Input {
    Plain(Linear),
    /// Two matmuls: the activation is applied to the first result, and the second multiplies it.
    Gated(Products),
}

impl FeedForward {
    pub fn load(vb: VarBuilder, config: &Config) -> Result<Self> {
        let dense = vb.pp("DenseReluDense");
        let weight = |name| weight(config.d_model, config.d_ff, name, &dense);
        Ok(Self {
            norm: stream_norm(config, vb.pp("layer_norm"))?,
            input: if config.feed_forward_proj.is_gated() {
                Input::Gated(Products::new("wi", &[weight("wi_0")?, weight("wi_1")?], config.d_ff)?)
            } else {
                Input::Plain(Linear::new("wi", weight("wi")?, None))
            },
            activation: config.feed_forward_proj.into(),
            output: output(config.d_ff, "wo", &dense, config)?,
        })
    }

    /// Adds the result to the stream.
    pub fn forward(&self, x: &mut Stream) -> Result<()> {
        let _scope = scope("DenseReluDense");
        let hidden = match &self.input {
            Input::Plain(input) if x.has_few_rows() => {
                let _scope = scope(input.name());
                x.read_few(&self.norm, |x, norm| ops::norm_linear_act(x, norm, input.weight(), None, self.activation))?
            }
            Input::Gated(input) if x.has_few_rows() => {
                let _scope = scope(input.name);
                x.read_few(&self.norm, |x, norm| ops::norm_gated(x, norm, &input.weight, None, self.activation))?
            }
            Input::Plain(input) => input.forward_act(&x.read(&self.norm)?, self.activation)?,
            Input::Gated(input) => {
                let both = input.forward(&x.read(&self.norm)?)?;
                let gate = self.activation.forward(&ops::narrow(&both, 0, 0, 1)?)?;
                ops::squeeze(&ops::mul(&gate, &ops::narrow(&both, 0, 1, 1)?)?, 0)?
            }
        };
        x.add_product(&hidden, &self.output)
    }
}
