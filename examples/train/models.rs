//! A small convolutional net and a small transformer, of operators that have a backward pass in candle.

use candle::{Module, Result, Tensor, D};
use candle_nn::{conv2d, embedding, linear, loss, ops, Conv2d, Conv2dConfig, Embedding, Linear, VarBuilder};

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
    pub fn loss(&self, batch: &[Tensor]) -> Result<Tensor> {
        let layer = |x: Tensor, convolution: &Conv2d| convolution.forward(&x)?.relu()?.avg_pool2d(2);
        let x = self.convolutions.iter().try_fold(batch[0].clone(), layer)?;
        loss::cross_entropy(&self.head.forward(&x.flatten_from(1)?)?, &batch[1])
    }
}

const WIDTH: usize = 64;
const HEADS: usize = 4;

/// Blocks of causal attention and a gated layer, with norms before them.
#[derive(Clone)]
pub struct Transformer {
    tokens: Embedding,
    places: Tensor,
    blocks: Vec<Block>,
    head: Linear,
    mask: Tensor,
}

#[derive(Clone)]
struct Block {
    qkv: Linear,
    out: Linear,
    up: Linear,
    down: Linear,
}

impl Transformer {
    pub fn new(vb: VarBuilder) -> Result<Self> {
        let block = |at: usize| -> Result<Block> {
            let vb = vb.pp(format!("block.{at}"));
            Ok(Block {
                qkv: linear(WIDTH, 3 * WIDTH, vb.pp("qkv"))?,
                out: linear(WIDTH, WIDTH, vb.pp("out"))?,
                up: linear(WIDTH, 4 * WIDTH, vb.pp("up"))?,
                down: linear(4 * WIDTH, WIDTH, vb.pp("down"))?,
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
    pub fn loss(&self, batch: &[Tensor]) -> Result<Tensor> {
        let mut x = self.tokens.forward(&batch[0])?.broadcast_add(&self.places)?;
        for block in &self.blocks {
            x = (&x + self.attention(block, &norm(&x)?)?)?;
            x = (&x + block.down.forward(&block.up.forward(&norm(&x)?)?.silu()?)?)?;
        }
        loss::cross_entropy(&self.head.forward(&norm(&x)?)?.flatten_to(1)?, &batch[1].flatten_all()?)
    }

    fn attention(&self, block: &Block, x: &Tensor) -> Result<Tensor> {
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
