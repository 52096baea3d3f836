//! A decoder in the style of candle-transformers, with a cache of fixed size and without any.

use std::sync::Arc;

use candle::{Device, Result, Tensor};
use opara_candle::nn::KvCache;
use opara_candle::{ops, Mode, OnUncapturable, OparaExecutor, StepState};

use super::waves;

const VOCAB: usize = 50;
const WIDTH: usize = 32;
const HEADS: usize = 2;
const DIM: usize = WIDTH / HEADS;
const LAYERS: usize = 2;
pub const CONTEXT: usize = 24;
/// Tokens that a layer sees; the first one sees all.
const WINDOWS: [Option<usize>; LAYERS] = [None, Some(5)];

pub struct TinyDecoder {
    table: Tensor,
    /// Weights for queries, keys, values and the output.
    layers: Vec<[Tensor; 4]>,
    cos: Tensor,
    sin: Tensor,
}

impl TinyDecoder {
    pub fn new(device: &Device) -> Result<Self> {
        let weight = |i, rows: usize| (waves(i, (rows, WIDTH))? * 0.3)?.to_device(device);
        let layer = |at: usize| {
            Ok([
                weight(4 * at + 1, WIDTH)?,
                weight(4 * at + 2, WIDTH)?,
                weight(4 * at + 3, WIDTH)?,
                weight(4 * at + 4, WIDTH)?,
            ])
        };
        let angles = Tensor::arange(0f32, CONTEXT as f32, device)?.reshape((CONTEXT, 1))?;
        let angles =
            angles.broadcast_mul(&Tensor::arange(1f32, 1. + DIM as f32 / 2., device)?.recip()?.unsqueeze(0)?)?;
        Ok(Self {
            table: weight(0, VOCAB)?,
            layers: (0..LAYERS).map(layer).collect::<Result<_>>()?,
            cos: angles.cos()?,
            sin: angles.sin()?,
        })
    }

    pub fn cache(&self, batch: usize) -> Result<KvCache> {
        KvCache::new(LAYERS, (batch, HEADS, DIM), CONTEXT, self.table.dtype(), self.table.device())
    }

    /// The next token of each text behind new tokens, `(batch, tokens)`, as u32.
    pub fn step(&self, ids: &Tensor, cache: &KvCache) -> Result<Tensor> {
        let tokens = ids.dim(1)?;
        let (cos, sin) = (cache.rows(&self.cos, tokens)?, cache.rows(&self.sin, tokens)?);
        let next = self.forward(ids, [&cos, &sin], |layer, k, v| {
            let (k, v) = cache.append(layer, k, v)?;
            Ok((k, v, cache.mask(tokens, WINDOWS[layer])?))
        })?;
        cache.advance(tokens)?;
        Ok(next)
    }

    /// The same from all tokens at once, without a cache.
    pub fn whole(&self, ids: &Tensor) -> Result<Tensor> {
        let tokens = ids.dim(1)?;
        let rotary = [self.cos.narrow(0, 0, tokens)?, self.sin.narrow(0, 0, tokens)?];
        self.forward(ids, [&rotary[0], &rotary[1]], |layer, k, v| {
            let window = WINDOWS[layer].unwrap_or(tokens);
            let score = |row: usize, place: usize| match place <= row && row < place + window {
                true => 0f32,
                false => f32::NEG_INFINITY,
            };
            let mask = (0..tokens).flat_map(|row| (0..tokens).map(move |place| score(row, place)));
            Ok((k.clone(), v.clone(), Tensor::from_iter(mask, ids.device())?.reshape((tokens, tokens))?))
        })
    }

    fn forward(
        &self,
        ids: &Tensor,
        [cos, sin]: [&Tensor; 2],
        keys: impl Fn(usize, &Tensor, &Tensor) -> Result<(Tensor, Tensor, Tensor)>,
    ) -> Result<Tensor> {
        let (batch, tokens) = ids.dims2()?;
        let mut x = ops::embedding(&self.table, ids)?;
        for (layer, [q, k, v, output]) in self.layers.iter().enumerate() {
            let heads = |weight: &Tensor| {
                let y = ops::reshape(&ops::linear(&x, weight, None)?, (batch, tokens, HEADS, DIM))?;
                ops::contiguous(&ops::transpose(&y, 1, 2)?)
            };
            let turned =
                |y: Tensor| ops::custom("rope", &[&y, cos, sin], |t| candle_nn::rotary_emb::rope(t[0], t[1], t[2]));
            let (k, v, mask) = keys(layer, &turned(heads(k)?)?, &heads(v)?)?;
            let y = ops::custom("attention", &[&turned(heads(q)?)?, &k, &v, &mask], |t| {
                let scores = (t[0].matmul(&t[1].transpose(2, 3)?)? / (DIM as f64).sqrt())?.broadcast_add(t[3])?;
                candle_nn::ops::softmax_last_dim(&scores)?.matmul(t[2])
            })?;
            let y = ops::reshape(&ops::contiguous(&ops::transpose(&y, 1, 2)?)?, (batch, tokens, WIDTH))?;
            x = ops::add(&x, &ops::tanh(&ops::linear(&y, output, None)?)?)?;
        }
        let last = ops::squeeze(&ops::narrow(&x, 1, tokens - 1, 1)?, 1)?;
        ops::argmax(&ops::linear(&last, &self.table, None)?, 1)
    }
}

/// Asserts that executors write what whole passes write, from prompts of several lengths to the end of the cache.
#[track_caller]
pub fn assert_writes_like_whole_passes(device: &Device, mode: Mode) -> opara_candle::Result<()> {
    let model = Arc::new(TinyDecoder::new(device)?);
    let step = {
        let model = model.clone();
        move |x: &[Tensor], cache: &KvCache| Ok(vec![model.step(&x[0], cache)?])
    };
    let ids = |tokens: usize| -> Result<Tensor> {
        let ids = (0..2 * tokens).map(|i| (i * 17 + tokens) as u32 % VOCAB as u32);
        Tensor::from_iter(ids, device)?.reshape((2, tokens))
    };
    let strict = OparaExecutor::builder().on_uncapturable(OnUncapturable::Error);
    let executor = strict.build_step(step, &[ids(1)?], &model.cache(2)?)?;
    for prompt in [1, 4, 9] {
        let (mut cache, mut text) = (model.cache(2)?, ids(prompt)?);
        // What is at places that are not written is not read.
        for buffer in &cache.tensors()[1..] {
            ops::assign(buffer, &Tensor::full(f32::NAN, buffer.shape(), device)?.to_dtype(buffer.dtype())?)?;
        }
        let mut new = text.clone();
        while text.dim(1)? < CONTEXT {
            let next = executor.step(&[new], &mut cache)?.remove(0);
            let expected = model.whole(&text)?.to_vec1::<u32>()?;
            assert_eq!(next.to_vec1::<u32>()?, expected, "behind {} tokens", text.dim(1)?);
            new = next.unsqueeze(1)?;
            text = Tensor::cat(&[&text, &new], 1)?;
        }
    }
    assert_eq!(executor.report().mode(), mode, "{}", executor.report());
    Ok(())
}
