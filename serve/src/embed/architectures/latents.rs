//! Attention of hidden states over vectors of a checkpoint, its latents, and a gated layer behind it.

use candle::{Module, Tensor, D};
use candle_nn::{layer_norm, linear, linear_no_bias, LayerNorm, Linear, VarBuilder};

/// How many times as wide the gated layer is.
const INNER: usize = 4;
const EPSILON: f64 = 1e-5;

#[derive(Debug, Clone, Copy)]
pub(super) struct LatentSizes {
    /// Elements of a hidden state.
    pub width: usize,
    pub latents: usize,
    pub heads: usize,
    /// Elements of a head.
    pub head: usize,
}

/// The layer on a device.
pub(super) struct LatentAttention {
    sizes: LatentSizes,
    norm: LayerNorm,
    query: Linear,
    /// Of the latents, `(heads, head, latents)`, with the scale of scores: no text changes them.
    keys: Tensor,
    /// `(heads, latents, head)`.
    values: Tensor,
    out: Linear,
    gated_norm: LayerNorm,
    up_gate: Linear,
    down: Linear,
}

impl LatentAttention {
    pub fn load(sizes: LatentSizes, vb: &VarBuilder) -> candle::Result<Self> {
        let LatentSizes { width, latents, heads, head } = sizes;
        let blocks = vb.pp("cross_attend_blocks");
        let (attention, gated) = (blocks.pp("0"), blocks.pp("1"));
        let context = layer_norm(width, EPSILON, attention.pp("norm_context"))?;
        let context = context.forward(&vb.get((latents, width), "latents")?)?;
        let both = linear_no_bias(width, 2 * heads * head, attention.pp("fn.to_kv"))?.forward(&context)?;
        let [keys, values] = [0, 1].map(|part| -> candle::Result<Tensor> {
            let part = both.narrow(D::Minus1, part * heads * head, heads * head)?;
            part.reshape((latents, heads, head))?.transpose(0, 1)
        });
        Ok(Self {
            sizes,
            norm: layer_norm(width, EPSILON, attention.pp("norm"))?,
            query: linear_no_bias(width, heads * head, attention.pp("fn.to_q"))?,
            keys: (keys?.transpose(1, 2)?.contiguous()? / (head as f64).sqrt())?,
            values: values?.contiguous()?,
            out: linear_no_bias(heads * head, width, attention.pp("fn.to_out"))?,
            gated_norm: layer_norm(width, EPSILON, gated.pp("norm"))?,
            up_gate: linear(width, 2 * INNER * width, gated.pp("fn.net.0"))?,
            down: linear(INNER * width, width, gated.pp("fn.net.2"))?,
        })
    }

    /// Of `(batch, tokens, width)`. No token sees another.
    pub fn forward(&self, hidden: &Tensor) -> candle::Result<Tensor> {
        let LatentSizes { width, heads, head, .. } = self.sizes;
        let rows = hidden.elem_count() / width;
        let x = hidden.reshape((rows, width))?;
        let query = self.query.forward(&self.norm.forward(&x)?)?;
        let query = query.reshape((rows, heads, head))?.transpose(0, 1)?.contiguous()?;
        let shares = candle_nn::ops::softmax_last_dim(&query.matmul(&self.keys)?)?;
        let seen = shares.matmul(&self.values)?.transpose(0, 1)?.contiguous()?.reshape((rows, heads * head))?;
        let x = (self.out.forward(&seen)? + x)?;
        let up_gate = self.up_gate.forward(&self.gated_norm.forward(&x)?)?;
        let up = up_gate.narrow(1, 0, INNER * width)?;
        let gate = up_gate.narrow(1, INNER * width, INNER * width)?.gelu_erf()?;
        (self.down.forward(&(up * gate)?)? + x)?.reshape(hidden.shape())
    }
}
