//! A small convolutional net and a small transformer, of operators that have a backward pass in candle.

use std::collections::HashMap;

use candle::{DType, Device, Module, Result, Tensor, D};
use candle_nn::{conv2d, embedding, linear, loss, ops, Conv2d, Conv2dConfig, Embedding, Linear, VarBuilder, VarMap};
use opara_candle::nn::{lora, LoraLinear};
use opara_examples::variables;

use super::data::{BYTES, KINDS, SIDE, WINDOW};

/// Two convolutions with pools, and a linear layer.
#[derive(Clone)]
pub struct Net {
    convolutions: [Conv2d; 2],
    head: Linear,
}

impl Net {
    pub fn new(vb: VarBuilder) -> Result<Self> {
        let config = Conv2dConfig { padding: 1, ..Default::default() };
        let convolutions = [conv2d(1, 8, 3, config, vb.pp("first"))?, conv2d(8, 16, 3, config, vb.pp("second"))?];
        Ok(Self { convolutions, head: linear(16 * SIDE * SIDE / 16, KINDS, vb.pp("head"))? })
    }

    /// The cross entropy of pictures and kinds.
    pub fn loss(&self, batch: &[Tensor]) -> Result<Vec<Tensor>> {
        let layer = |x: Tensor, convolution: &Conv2d| convolution.forward(&x)?.relu()?.avg_pool2d(2);
        let x = self.convolutions.iter().try_fold(batch[0].clone(), layer)?;
        Ok(vec![loss::cross_entropy(&self.head.forward(&x.flatten_from(1)?)?, &batch[1])?])
    }
}

const WIDTH: usize = 64;
const HEADS: usize = 4;

/// Blocks of causal attention and a gated layer, with norms before them.
#[derive(Clone)]
pub struct Transformer<L = Linear> {
    tokens: Embedding,
    places: Tensor,
    blocks: Vec<Block<L>>,
    head: Linear,
    mask: Tensor,
}

#[derive(Clone)]
struct Block<L> {
    qkv: L,
    out: L,
    up: L,
    down: L,
}

impl Transformer {
    pub fn new(vb: VarBuilder) -> Result<Self> {
        Self::of(vb, |layer, _| Ok(layer))
    }
}

impl Transformer<LoraLinear> {
    /// With changes of rank 8 behind the layers of a Transformer that stays, whose weights are the same at every call.
    pub fn adapted(adapters: VarBuilder) -> Result<Self> {
        let base = VarMap::new();
        Transformer::new(VarBuilder::from_varmap(&base, DType::F32, adapters.device()))?;
        let mut rng = fastrand::Rng::with_seed(1);
        let mut weights = HashMap::new();
        for (name, variable) in variables(&base)? {
            let values = (0..variable.elem_count()).map(|_| (rng.f32() - 0.5) * 0.2);
            let values = Tensor::from_iter(values, &Device::Cpu)?.reshape(variable.shape())?;
            weights.insert(name, values.to_device(adapters.device())?);
        }
        let base = VarBuilder::from_tensors(weights, DType::F32, adapters.device());
        Self::of(base, |layer, path| lora(layer.weight(), layer.bias(), 8, 16., adapters.pp(path)))
    }
}

impl<L: Module> Transformer<L> {
    /// `layer` gives the blocks' layers by candle's, and by their paths.
    fn of(vb: VarBuilder, layer: impl Fn(Linear, String) -> Result<L>) -> Result<Self> {
        let block = |at: usize| -> Result<Block<L>> {
            let of = |name: &str, from, to| {
                let path = format!("block.{at}.{name}");
                layer(linear(from, to, vb.pp(&path))?, path)
            };
            Ok(Block {
                qkv: of("qkv", WIDTH, 3 * WIDTH)?,
                out: of("out", WIDTH, WIDTH)?,
                up: of("up", WIDTH, 4 * WIDTH)?,
                down: of("down", 4 * WIDTH, WIDTH)?,
            })
        };
        let hidden = (0..WINDOW).flat_map(|query| (0..WINDOW).map(move |key| if key > query { -1e4f32 } else { 0. }));
        Ok(Self {
            tokens: embedding(BYTES, WIDTH, vb.pp("tokens"))?,
            places: vb.get_with_hints((WINDOW, WIDTH), "places", candle_nn::init::DEFAULT_KAIMING_NORMAL)?,
            blocks: (0..2).map(block).collect::<Result<_>>()?,
            head: linear(WIDTH, BYTES, vb.pp("head"))?,
            mask: Tensor::from_iter(hidden, vb.device())?.reshape((WINDOW, WINDOW))?,
        })
    }

    /// The cross entropy of windows and the bytes that follow.
    pub fn loss(&self, batch: &[Tensor]) -> Result<Vec<Tensor>> {
        let mut x = self.tokens.forward(&batch[0])?.broadcast_add(&self.places)?;
        for block in &self.blocks {
            x = (&x + self.attention(block, &norm(&x)?)?)?;
            x = (&x + block.down.forward(&block.up.forward(&norm(&x)?)?.silu()?)?)?;
        }
        let logits = self.head.forward(&norm(&x)?)?.flatten_to(1)?;
        Ok(vec![loss::cross_entropy(&logits, &batch[1].flatten_all()?)?])
    }

    fn attention(&self, block: &Block<L>, x: &Tensor) -> Result<Tensor> {
        let (batch, tokens, _) = x.dims3()?;
        let qkv = block.qkv.forward(x)?.reshape((batch, tokens, 3 * HEADS, WIDTH / HEADS))?.transpose(1, 2)?;
        let part = |at: usize| qkv.narrow(1, at * HEADS, HEADS)?.contiguous();
        let scores = (part(0)?.matmul(&part(1)?.t()?)? * ((WIDTH / HEADS) as f64).powf(-0.5))?;
        let weights = ops::softmax(&scores.broadcast_add(&self.mask)?, D::Minus1)?;
        let y = weights.matmul(&part(2)?)?.transpose(1, 2)?.flatten_from(2)?;
        block.out.forward(&y)
    }
}

/// The norm of rows, which has no weights.
fn norm(x: &Tensor) -> Result<Tensor> {
    x.broadcast_div(&(x.sqr()?.mean_keepdim(D::Minus1)? + 1e-6)?.sqrt()?)
}
