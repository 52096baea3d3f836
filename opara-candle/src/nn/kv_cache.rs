//! A cache of keys and values for decoders that are written with candle's operators.

use candle::{bail, DType, Device, Result, Tensor};

use crate::gradient;
use crate::ops;
use crate::reentrancy::is_nested;
use crate::state::StepState;

/// Keys and values of a batch of sequences of equal length, in memory of a fixed size: the state of a decoder that is written with
/// candle's operators. The position is on the device, so that one graph serves all lengths.
///
/// A decoder of candle-transformers concatenates new keys and values to those before, cuts its rotary tables at an offset that the host
/// counts, and makes a mask of the size of the text. In their places come [`append`](Self::append), [`rows`](Self::rows) and
/// [`mask`](Self::mask); [`advance`](Self::advance) ends a pass. Attention then runs over all `context` places, of which the mask
/// excludes those that are not written. Their keys and values are zeros in what `append` gives, whatever an earlier text has left there.
///
/// ```
/// use candle::{DType, Device::Cpu, Tensor};
/// use opara_candle::nn::KvCache;
///
/// let cache = KvCache::new(1, (1, 2, 4), 8, DType::F32, &Cpu)?; // one layer; (batch, heads, head_dim); 8 tokens at most
/// let k = Tensor::ones((1, 2, 3, 4), DType::F32, &Cpu)?; // three new tokens
/// let (keys, values) = cache.append(0, &k, &k)?;
/// assert_eq!((keys.dims(), values.dims()), (&[1, 2, 8, 4][..], &[1, 2, 8, 4][..]));
/// let first = cache.mask(3, None)?.get(0)?.to_vec1::<f32>()?;
/// assert_eq!(first[..2], [0., f32::NEG_INFINITY]); // the first token sees itself alone
/// cache.advance(3)?;
/// # Ok::<(), candle::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct KvCache {
    /// For each layer `(batch, heads, context, head_dim)`.
    layers: Vec<[Tensor; 2]>,
    /// `(1)`, of u32: where the next token stands.
    position: Tensor,
    /// `(context)`, of u32: 0, 1, 2, ..
    places: Tensor,
}

impl KvCache {
    /// An empty one for this many layers, for `(batch, heads of keys, head_dim)` and up to `context` tokens.
    ///
    /// # Errors
    /// No memory left.
    pub fn new(
        layers: usize,
        (batch, heads, head_dim): (usize, usize, usize),
        context: usize,
        dtype: DType,
        device: &Device,
    ) -> Result<Self> {
        let buffer = || Tensor::zeros((batch, heads, context, head_dim), dtype, device);
        Ok(Self {
            layers: (0..layers).map(|_| Ok([buffer()?, buffer()?])).collect::<Result<_>>()?,
            position: Tensor::zeros(1, DType::U32, device)?,
            places: Tensor::arange(0, context as u32, device)?,
        })
    }

    /// Tokens that there is room for.
    pub fn context(&self) -> usize {
        self.places.dims()[0]
    }

    /// Writes keys and values of new tokens, `(batch, heads, tokens, head_dim)`, behind those of earlier ones, and gives all of the layer:
    /// `(batch, heads, context, head_dim)`, with zeros behind the new tokens.
    ///
    /// # Errors
    /// A layer that there is not; shapes or dtypes that do not agree; on the CPU, tokens beyond the context, which a GPU skips.
    pub fn append(&self, layer: usize, k: &Tensor, v: &Tensor) -> Result<(Tensor, Tensor)> {
        let Some([keys, values]) = self.layers.get(layer) else {
            bail!("layer {layer} of a cache for {} layers", self.layers.len())
        };
        ops::write_rows(keys, k, &self.position)?;
        ops::write_rows(values, v, &self.position)?;
        let given = |all: &Tensor, new: &Tensor| match gradient::variable([new]) {
            // What a recording gives has no gradient in any case.
            Some(variable) if !is_nested() => gradient::with_error(&("KvCache::append", variable), all.clone()),
            _ => Ok(all.clone()),
        };
        let (keys, values) = (self.written(keys, k.dim(2)?)?, self.written(values, v.dim(2)?)?);
        Ok((given(&keys, k)?, given(&values, v)?))
    }

    /// Keys or values with zeros behind so many new tokens. What is there may be infinite, or NaN: a mask does not hide that, since a
    /// weight of zero times it is NaN.
    fn written(&self, all: &Tensor, tokens: usize) -> Result<Tensor> {
        ops::custom("cache_written", &[all, &self.places, &self.position], move |t| {
            let end = t[2].broadcast_add(&Tensor::full(tokens as u32, 1, t[2].device())?)?;
            let is_written = t[1].broadcast_lt(&end)?.unsqueeze(1)?.broadcast_as(t[0].shape())?;
            let zeros = Tensor::zeros((), t[0].dtype(), t[0].device())?;
            is_written.where_cond(t[0], &zeros.broadcast_as(t[0].shape())?)
        })
    }

    /// Rows of a table, `(places, width)`, for the new tokens: `(tokens, width)`. For rotary embeddings, and learned ones.
    ///
    /// # Errors
    /// More tokens than the context; on the CPU, rows beyond the table. On a GPU those are an assertion failure.
    pub fn rows(&self, table: &Tensor, tokens: usize) -> Result<Tensor> {
        let new = ops::narrow(&self.places, 0, 0, tokens)?;
        ops::custom("cache_rows", &[table, &new, &self.position], |t| {
            t[0].contiguous()?.index_select(&t[1].broadcast_add(t[2])?, 0)
        })
    }

    /// What is added to the scores of new tokens, `(tokens, context)`: zero where a token sees a place, minus infinity elsewhere. A
    /// token sees itself and those before, or with a window that many of them.
    ///
    /// # Errors
    /// More tokens than the context.
    pub fn mask(&self, tokens: usize, window: Option<usize>) -> Result<Tensor> {
        let Some([keys, _]) = self.layers.first() else { bail!("a cache without layers has no mask") };
        let (dtype, window) = (keys.dtype(), window.map(|window| window as f64));
        let new = ops::narrow(&self.places, 0, 0, tokens)?;
        ops::custom("cache_mask", &[&self.places, &new, &self.position], move |t| {
            let (places, rows) = (t[0].unsqueeze(0)?, t[1].broadcast_add(t[2])?.unsqueeze(1)?);
            let mut is_seen = places.broadcast_le(&rows)?;
            if let Some(window) = window {
                is_seen = (is_seen * places.affine(1., window)?.broadcast_gt(&rows)?)?;
            }
            let seen = Tensor::zeros(is_seen.dims(), dtype, is_seen.device())?;
            let hidden = Tensor::full(f32::NEG_INFINITY, is_seen.dims(), is_seen.device())?.to_dtype(dtype)?;
            is_seen.where_cond(&seen, &hidden)
        })
    }

    /// The next tokens stand behind these: the end of a pass.
    ///
    /// # Errors
    /// A call of the device that failed.
    pub fn advance(&self, tokens: usize) -> Result<()> {
        ops::advance(&self.position, tokens as u32)
    }
}

/// Its tensors are the position, and keys and values of each layer.
impl StepState for KvCache {
    fn tensors(&self) -> Vec<Tensor> {
        [self.position.clone()].into_iter().chain(self.layers.iter().flatten().cloned()).collect()
    }

    fn with(&self, tensors: Vec<Tensor>) -> Self {
        let layers = tensors[1..].chunks_exact(2).map(|two| [two[0].clone(), two[1].clone()]).collect();
        Self { layers, position: tensors[0].clone(), places: self.places.clone() }
    }
}
