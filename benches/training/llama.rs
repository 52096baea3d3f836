//! Llama 3.2 of 1 billion weights, which stay, with changes of low rank behind all linear layers of its blocks. candle-transformers' Llama
//! makes its layers itself, and takes no such changes.

use candle::{DType, Module, Result, Shape, Tensor};
use candle_nn::{linear_no_bias, ops, rotary_emb, Embedding, Init, Linear, RmsNorm, VarBuilder};
use candle_transformers::utils::{build_causal_mask, repeat_kv};

use super::STAYS;

pub const WORDS: usize = 128_256;
/// Tokens of a text.
pub const TOKENS: usize = 512;

const WIDTH: usize = 2048;
const INSIDE: usize = 8192;
const LAYERS: usize = 16;
const HEADS: usize = 32;
const OF_KEYS: usize = 8;
const SIZE: usize = WIDTH / HEADS;
const RANK: usize = 16;
const SCALE: f64 = 2.;

/// A weight that stays, of a layer of this name.
fn stays(shape: impl Into<Shape>, init: Init, vb: &VarBuilder, name: &str) -> Result<Tensor> {
    Ok(vb.pp(name).get_with_hints(shape, "weight", init)?.detach())
}

fn matrix(rows: usize, columns: usize, vb: &VarBuilder, name: &str) -> Result<Tensor> {
    let most = (columns as f64).powf(-0.5);
    stays((rows, columns), Init::Uniform { lo: -most, up: most }, vb, name)
}

fn norm(vb: &VarBuilder, name: &str) -> Result<RmsNorm> {
    Ok(RmsNorm::new(stays(WIDTH, Init::Const(1.), vb, name)?, 1e-5))
}

/// A layer that stays, and its change.
struct Changed {
    stays: Linear,
    down: Linear,
    up: Linear,
}

impl Changed {
    fn new(from: usize, to: usize, vb: VarBuilder) -> Result<Self> {
        let stays = Linear::new(matrix(to, from, &vb, STAYS)?, None);
        let (down, up) = (linear_no_bias(from, RANK, vb.pp("lora_A"))?, linear_no_bias(RANK, to, vb.pp("lora_B"))?);
        Ok(Self { stays, down, up })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.stays.forward(x)? + (self.up.forward(&self.down.forward(x)?)? * SCALE)?
    }
}

struct Layer {
    norms: [RmsNorm; 2],
    heads: [Changed; 3],
    out: Changed,
    gate: Changed,
    up: Changed,
    down: Changed,
}

/// Operands of attention that all layers share: sines and cosines of places, and a mask with 1 for keys that a token does not see.
struct Places {
    cos: Tensor,
    sin: Tensor,
    hidden: Tensor,
}

impl Places {
    fn new(vb: &VarBuilder) -> Result<Self> {
        let rates = (0..SIZE / 2).map(|at| 500_000f32.powf(-(2. * at as f32) / SIZE as f32));
        let angles = (0..TOKENS).flat_map(|place| rates.clone().map(move |rate| place as f32 * rate));
        let angles = Tensor::from_iter(angles, vb.device())?.reshape((TOKENS, SIZE / 2))?;
        let of = |table: Tensor| table.to_dtype(vb.dtype());
        Ok(Self {
            cos: of(angles.cos()?)?,
            sin: of(angles.sin()?)?,
            hidden: build_causal_mask(TOKENS, 0, vb.device())?,
        })
    }
}

impl Layer {
    fn new(vb: VarBuilder) -> Result<Self> {
        let fixed = vb.pp(STAYS);
        let of = |from: usize, to: usize, name: &str| Changed::new(from, to, vb.pp(name));
        let keys = OF_KEYS * SIZE;
        Ok(Self {
            norms: [norm(&fixed, "input_layernorm")?, norm(&fixed, "post_attention_layernorm")?],
            heads: [of(WIDTH, WIDTH, "q_proj")?, of(WIDTH, keys, "k_proj")?, of(WIDTH, keys, "v_proj")?],
            out: of(WIDTH, WIDTH, "o_proj")?,
            gate: of(WIDTH, INSIDE, "gate_proj")?,
            up: of(WIDTH, INSIDE, "up_proj")?,
            down: of(INSIDE, WIDTH, "down_proj")?,
        })
    }

    /// As candle-transformers' block.
    fn forward(&self, x: &Tensor, places: &Places) -> Result<Tensor> {
        let (texts, tokens, _) = x.dims3()?;
        let inside = self.norms[0].forward(x)?;
        let heads = |of: &Changed| of.forward(&inside)?.reshape((texts, tokens, (), SIZE))?.transpose(1, 2);
        let turned = |of: &Changed| rotary_emb::rope(&heads(of)?.contiguous()?, &places.cos, &places.sin);
        let [q, k, v] = &self.heads;
        let several = |x: Tensor| repeat_kv(x, HEADS / OF_KEYS)?.to_dtype(DType::F32);
        let (q, k, v) = (turned(q)?.to_dtype(DType::F32)?, several(turned(k)?)?, several(heads(v)?)?);
        let scores = (q.matmul(&k.t()?)? / (SIZE as f64).sqrt())?;
        let nothing = Tensor::new(f32::NEG_INFINITY, x.device())?.broadcast_as(scores.shape())?;
        let scores = places.hidden.broadcast_as(scores.shape())?.where_cond(&nothing, &scores)?;
        let mixed = ops::softmax_last_dim(&scores)?.matmul(&v.contiguous()?)?.to_dtype(x.dtype())?;
        let x = (x + self.out.forward(&mixed.transpose(1, 2)?.reshape(x.shape())?)?)?;
        let inside = self.norms[1].forward(&x)?;
        let gated = (ops::silu(&self.gate.forward(&inside)?)? * self.up.forward(&inside)?)?;
        &x + self.down.forward(&gated)?
    }
}

/// From ids, `(texts, tokens)`, to logits of the words at each, `(texts * tokens, words)`.
pub fn llama(vb: VarBuilder) -> Result<impl Fn(&Tensor) -> Result<Tensor>> {
    let fixed = vb.pp(STAYS);
    let words = Embedding::new(matrix(WORDS, WIDTH, &fixed, "embed_tokens")?, WIDTH);
    let layers = (0..LAYERS).map(|at| Layer::new(vb.pp(at))).collect::<Result<Vec<_>>>()?;
    let last = norm(&fixed, "norm")?;
    let places = Places::new(&vb)?;
    Ok(move |ids: &Tensor| {
        let x = layers.iter().try_fold(words.forward(ids)?, |x, layer| layer.forward(&x, &places))?;
        last.forward(&x)?.flatten_to(1)?.matmul(&words.embeddings().t()?)
    })
}
