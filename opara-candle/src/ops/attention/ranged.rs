//! Attention of queries that each see a range of the keys: of texts that lie side by side.

use candle::{bail, DType, Device, Result, Tensor};

use super::{attention, by_matmuls};
use crate::cpu::record::apply;
use crate::ops::differentiable::recomputed;
use crate::ops::range_means::seen;
use crate::ops::{add_softmax, own_on};

/// [`attention`](super::attention) whose queries each see a range of the keys. So texts of several lengths that lie side by side attend to
/// themselves alone, without padding, as in "variable length" attention of other libraries.
///
/// `q` is `(batch, heads, queries, dim)`; `k` and `v` are `(batch, heads, keys, dim)`, or have a fraction of the heads. `ranges`,
/// `(batch, queries, 2)` of u32, has of each query the first key that it sees, and the one behind the last. A query that sees none of the keys
/// gets NaN. The result is `(batch, heads, queries, dim)`.
///
/// On GPUs since Ampere it is one launch for the same heads as [`attention`](super::attention). A block goes through the keys from the first
/// to the last that its 64 queries see, or 128 of long heads. On a CPU, neighbours that see the same keys attend together. For other heads on
/// a GPU the scores of all keys are computed; there NaN and infinity among values reach queries that do not see them.
///
/// ```
/// # use candle::{Device::Cpu, Tensor};
/// # use opara_candle::ops;
/// let x = Tensor::rand(-1f32, 1., (1, 2, 5, 8), &Cpu)?;
/// // Two texts, of two tokens and of three.
/// let ranges = Tensor::new(&[[[0u32, 2], [0, 2], [2, 5], [2, 5], [2, 5]]], &Cpu)?;
/// let y = ops::ranged_attention(&x, &x, &x, &ranges, 0.5)?;
/// let second = x.narrow(2, 2, 3)?;
/// let alone = ops::attention(&second, &second, &second, None, 0.5)?;
/// assert!((y.narrow(2, 2, 3)? - alone)?.abs()?.max_all()?.to_scalar::<f32>()? < 1e-5);
/// # Ok::<(), candle::Error>(())
/// ```
///
/// # Errors
/// Shapes or dtypes that do not agree.
pub fn ranged_attention(q: &Tensor, k: &Tensor, v: &Tensor, ranges: &Tensor, scale: f64) -> Result<Tensor> {
    let ((batch, _, queries, _), keys) = (q.dims4()?, k.dim(2)?);
    if ranges.dims() != [batch, queries, 2] || ranges.dtype() != DType::U32 {
        bail!(
            "ranges are {:?} of {:?}, and {batch} x {queries} queries need (batch, queries, 2) of u32",
            ranges.dims(),
            ranges.dtype()
        );
    }
    let composed = move |t: &[&Tensor]| {
        if t[0].device().is_cpu() && keys > 0 {
            return by_ranges(t, scale);
        }
        let hidden = seen(t[3], keys)?.eq(0u8)?.unsqueeze(1)?;
        let zeros = Tensor::zeros(hidden.shape(), t[0].dtype(), t[0].device())?;
        let bias = hidden.where_cond(&zeros.affine(0., f64::NEG_INFINITY)?, &zeros)?;
        by_matmuls(t[0], t[1], t[2], scale, |scores| add_softmax(scores, Some(&bias)))
    };
    let forward = move |t: &[&Tensor]| {
        let own = || gpu!(super::cuda::ranged_attention(t[0], t[1], t[2], t[3], scale));
        own_on(t[0], || Ok(None), own)?.map_or_else(|| composed(t), Ok)
    };
    let cost = 4 * q.elem_count() as u64 * keys as u64;
    apply("ranged_attention", &[q, k, v, ranges], cost, move |t| recomputed("ranged_attention", t, forward, composed))
}

/// Queries side by side that see the same keys attend to these alone.
fn by_ranges(t: &[&Tensor], scale: f64) -> Result<Tensor> {
    let [q, k, v, ranges] = t else { bail!("attention of ranges has four operands") };
    let (keys, size, heads) = (k.dim(2)?, v.dim(3)?, q.dim(1)?);
    let mut items = Vec::new();
    for (item, ranges) in ranges.to_vec3::<u32>()?.iter().enumerate() {
        let (mut parts, mut at) = (Vec::new(), 0);
        for alike in ranges.chunk_by(|a, b| a == b) {
            let end = (alike[0][1] as usize).min(keys);
            let (first, count) = (alike[0][0] as usize, end.saturating_sub(alike[0][0] as usize));
            let of = |x: &Tensor, first: usize, count: usize| x.narrow(0, item, 1)?.narrow(2, first, count);
            // Side by side as attention gives them, `(1, queries, heads, size)`: strides do not depend on the ranges.
            parts.push(match count {
                0 => Tensor::full(f64::NAN, (1, alike.len(), heads, size), q.device())?.to_dtype(q.dtype())?,
                _ => attention(&of(q, at, alike.len())?, &of(k, first, count)?, &of(v, first, count)?, None, scale)?
                    .transpose(1, 2)?
                    .contiguous()?,
            });
            at += alike.len();
        }
        items.push(Tensor::cat(&parts, 1)?);
    }
    Tensor::cat(&items, 0)?.transpose(1, 2)
}

/// Whether [`ranged_attention`] of heads of `dim` elements is one launch.
///
/// # Errors
/// A failed driver call.
pub fn has_ranged_attention(device: &Device, dtype: DType, dim: usize) -> Result<bool> {
    let has = gpu!(super::cuda::has_ranged_attention(device, dtype, dim))?;
    Ok(has.unwrap_or(false))
}
