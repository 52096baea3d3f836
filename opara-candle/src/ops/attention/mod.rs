//! Attention.

mod backward;
mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(feature = "cuda")]
mod gradient_cuda;
#[cfg(feature = "cuda")]
pub(super) mod gradient_launch;
#[cfg(feature = "cuda")]
pub(super) mod launch;
mod ranged;
#[cfg(any(feature = "cuda", test))]
mod scores;
mod sharing;
#[cfg(feature = "cuda")]
pub(super) mod tiles;

use candle::{bail, Result, Tensor};

use self::backward::attention_backward;
#[cfg(any(feature = "cuda", test))]
pub(crate) use self::backward::{attention_backward_of_scores, AttentionGradients};
pub use self::ranged::{has_ranged_attention, ranged_attention};
#[cfg(any(feature = "cuda", test))]
pub(crate) use self::scores::{Bias, Scores};
use self::sharing::repeated;
use super::differentiable::differentiable;
use super::{add_softmax, affine, has_own_kernels, matmul, own_on, runs_own, transpose};
use crate::cpu::kernels::is_wide;
use crate::cpu::record::apply;

/// Scaled dot-product attention per head: `softmax(q kᵀ · scale + bias) v`, like PyTorch's
/// `scaled_dot_product_attention`.
///
/// `q` is `(batch, heads, queries, dim)`; `k` and `v` are `(batch, heads, keys, dim)`, or have a fraction of the heads, each of
/// which as many consecutive heads of `q` share ("grouped queries"). Views with contiguous rows are not copied. `bias`, for
/// example a mask of zeros and negative infinities, broadcasts to `(batch, heads, queries, keys)`. The result is `(batch, heads,
/// queries, dim)`.
///
/// On GPUs since Ampere it is one launch (Dao, "FlashAttention-2", 2023; on Hopper in 16 bits Shah et al., "FlashAttention-3", 2024) for
/// heads of up to 160 elements in 16-bit types, and up to 80 in f32, whose rows are multiples of 16 bytes; `v` may have other ones than `q`
/// and `k`. Scores are neither rounded nor stored. The result is a view of `(batch, queries, heads, dim)`, so that
/// [`merge_heads`](super::merge_heads) copies nothing. In f32, every product is three TF32 products, which keep 22 of
/// the 24 bits, and sums of 16 terms are added outside of the tensor cores, which round towards zero: the error is about that of f32
/// products and a softmax, under any mask, for scores of any size, and where one key has a row for itself. Rows with operands
/// beyond 4e34 are recomputed without tensor cores. One query a head takes a launch whose warps share the keys, for head
/// dimensions up to 256 that 8 divides. On a CPU it is one kernel in f32 and f64, with
/// a result of the same layout, whose scores are not stored either. Otherwise attention runs as two matmuls and a softmax.
///
/// ```
/// # use candle::{DType, Device::Cpu, Tensor};
/// # use opara_candle::ops;
/// let q = Tensor::zeros((2, 4, 8, 16), DType::F32, &Cpu)?; // (batch, heads, queries, dim)
/// let kv = Tensor::zeros((2, 4, 10, 16), DType::F32, &Cpu)?; // (batch, heads, keys, dim)
/// let mask = Tensor::zeros((2, 1, 1, 10), DType::F32, &Cpu)?; // broadcasts over heads and queries
/// let y = ops::attention(&q, &kv, &kv, Some(&mask), 0.25)?;
/// assert_eq!(y.dims(), [2, 4, 8, 16]);
/// # Ok::<(), candle::Error>(())
/// ```
///
/// # Errors
/// Shapes or dtypes that do not agree.
pub fn attention(q: &Tensor, k: &Tensor, v: &Tensor, bias: Option<&Tensor>, scale: f64) -> Result<Tensor> {
    let by_own_kernel = runs_own(q) || q.device().is_cpu() && has_own_kernels() && is_wide(q.dtype());
    if !by_own_kernel {
        return by_matmuls(q, k, v, scale, |scores| add_softmax(scores, bias));
    }
    let scores = q.elem_count() as u64 * k.dim(2)? as u64;
    let forward = move |t: &[&Tensor]| {
        let bias = t.get(3).copied();
        let on_cpu = || cpu::attention(t[0], t[1], t[2], bias, scale);
        let own = || gpu!(cuda::attention(t[0], t[1], t[2], bias, scale));
        own_on(t[0], on_cpu, own)?
            .map_or_else(|| by_matmuls(t[0], t[1], t[2], scale, |scores| add_softmax(scores, bias)), Ok)
    };
    let run = move |t: &[&Tensor]| {
        differentiable(
            "attention",
            t,
            |t| Ok((forward(t)?, Vec::new())),
            move |passed| {
                let [q, k, v, bias @ ..] = passed.operands else { bail!("attention without values") };
                let of = attention_backward(
                    [q, k, v],
                    bias.first(),
                    scale,
                    [passed.result, passed.gradient],
                    passed.needs(3),
                )?;
                Ok(vec![Some(of.q), Some(of.k), Some(of.v), of.bias])
            },
        )
    };
    match bias {
        Some(bias) => apply("attention", &[q, k, v, bias], 4 * scores, run),
        None => apply("attention", &[q, k, v], 4 * scores, run),
    }
}

/// [`attention`] of any [`Scores`]. On a GPU it is the same launch; in f32, weights of 16-bit operands keep twice the bits.
///
/// # Errors
/// Shapes or dtypes that do not agree.
#[cfg(any(feature = "cuda", test))]
pub(crate) fn attention_of_scores([q, k, v]: [&Tensor; 3], bias: Option<&Tensor>, of: &Scores) -> Result<Tensor> {
    if let Some(y) = gpu!(cuda::attention_of_scores(q, k, v, bias, of))? {
        return Ok(y);
    }
    let is_plain = of.cap.is_none() && of.bias == Bias::Added;
    // Other operators round 16 bits on the way.
    let is_wide = of.in_f32 || !is_plain && q.dtype().size_in_bytes() == 2;
    let wide = |x: &Tensor| if is_wide { x.to_dtype(candle::DType::F32) } else { Ok(x.clone()) };
    let [wide_q, k, v] = [wide(q)?, wide(k)?, wide(v)?];
    if is_plain {
        let y = attention(&wide_q, &k, &v, bias, of.scale)?.to_dtype(q.dtype())?;
        return if of.by_heads { y.contiguous() } else { Ok(y) };
    }
    let weights = |products: &Tensor| {
        let scaled = affine(products, of.scale, 0.)?;
        let scores = of.cap.map_or(Ok(scaled.clone()), |cap| affine(&scaled.tanh()?, cap, 0.))?;
        let Some(bias) = bias else { return add_softmax(&scores, None) };
        let keys = scores.dim(3)?;
        let shape = (scores.dim(0)?, scores.dim(1)?, scores.dim(2)?, of.bias.row(keys));
        let bias = wide(bias)?.broadcast_as(shape)?.contiguous()?;
        match of.bias {
            Bias::Added => add_softmax(&scores, Some(&bias)),
            Bias::Hides => {
                let added = (&scores + &bias)?;
                add_softmax(&bias.eq(f64::NEG_INFINITY)?.where_cond(&bias, &added)?, None)
            }
            Bias::Replaces => add_softmax(&bias.eq(0.)?.where_cond(&scores, &bias)?, None),
            Bias::Both => {
                let added = (&scores + bias.narrow(3, 0, keys)?)?;
                let others = bias.narrow(3, keys, keys)?.contiguous()?;
                add_softmax(&others.eq(0.)?.where_cond(&added, &others)?, None)
            }
        }
    };
    by_matmuls(&wide_q, &k, &v, 1., weights)?.to_dtype(q.dtype())
}

/// Two products, and between them the weights of scaled scores.
fn by_matmuls(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    scale: f64,
    weights: impl FnOnce(&Tensor) -> Result<Tensor>,
) -> Result<Tensor> {
    let heads = q.dim(1)?;
    let together = |x: &Tensor| repeated(x, heads);
    // Scaling the query takes fewer operations than scaling the scores, and avoids overflow in f16.
    let q = if scale == 1. { together(q)? } else { affine(&together(q)?, scale, 0.)? };
    let scores = matmul(&q, &transpose(&together(k)?, 2, 3)?)?;
    matmul(&weights(&scores)?, &together(v)?)
}
