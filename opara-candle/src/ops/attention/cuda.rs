//! Attention in one launch.

use candle::cuda_backend::CudaDType;
use candle::{bail, DType, Device, Result, Tensor};
use cudarc::driver::DeviceRepr;

use super::launch::{self, OfLaunch};
use super::scores::{Bias, Scores};
use super::sharing::shared_by;
use crate::cuda::operator::head_rows::HeadRows;
use crate::cuda::operator::{aligned, launched, takes, with_elements, Call, Kernel};
use crate::ops::one_query::one_query;

/// [`attention_of_scores`] whose bias is added.
pub(super) fn attention(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    bias: Option<&Tensor>,
    scale: f64,
) -> Result<Option<Tensor>> {
    attention_of_scores(q, k, v, bias, &Scores { scale, cap: None, bias: Bias::Added, in_f32: false, by_heads: false })
}

/// Attention in one kernel. `q`, `k` and `v` are `(batch, heads, tokens, dim)`, where heads of `q` may share one of `k` and `v`, and rows of
/// `v` may be of another size; the bias broadcasts to the scores. The result is a transposed view of a `(batch, queries, heads, dim)` tensor. `None` if no kernel
/// supports the operands: the caller then runs other operators, which also report errors.
pub(super) fn attention_of_scores(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    bias: Option<&Tensor>,
    of: &Scores,
) -> Result<Option<Tensor>> {
    let &Scores { scale, cap, bias: does, in_f32, by_heads } = of;
    let scores = OfLaunch { scale: scale as f32, cap: cap.map_or(0., |cap| cap as f32), bias: does, in_f32, by_heads };
    let ((batch, heads, queries, dim), (_, of_keys, keys, _)) = (q.dims4()?, k.dims4()?);
    let of_values = v.dim(3)?;
    let agree = k.dims() == [batch, of_keys, keys, dim]
        && v.dims() == [batch, of_keys, keys, of_values]
        && shared_by(heads, of_keys).is_some();
    let of_bias = if in_f32 { DType::F32 } else { q.dtype() };
    let is_bias = |bias: &Tensor| bias.dtype() == of_bias && bias.device().same_device(q.device());
    if !takes(q, &[Some(k), Some(v)])
        || !bias.is_none_or(is_bias)
        || (in_f32 && q.dtype().size_in_bytes() != 2)
        || !agree
        || keys == 0
        || q.elem_count() * of_values == 0
    {
        return Ok(None);
    }
    // The kernel of many queries divides a bias of 16 bits by the scale, and scales after it has found the largest score.
    let takes_many = scores.scale.is_normal()
        && scale > 0.
        && launch::attends(q.device().as_cuda_device()?, q.dtype(), [dim, of_values])?;
    let takes_one = queries == 1 && dim == of_values && !in_f32 && does == Bias::Added;
    if !takes_one && !takes_many {
        return Ok(None);
    }
    let bias = bias.map(|bias| bias_of_scores(bias, (batch, heads, queries, does.row(keys)))).transpose()?;
    let (Some((q, of_q)), Some(k), Some(v)) = (as_taken(q)?, as_taken(k)?, as_taken(v)?) else { return Ok(None) };
    let Some(bias) = bias.map_or(Some(None), |bias| bias.map(Some)) else { return Ok(None) };
    if takes_one {
        let of_bias = bias.as_ref().map(|(bias, [item, head, _])| (bias, [*item, *head]));
        if let Some(y) = one_query((&q, of_q), (&k.0, k.1), (&v.0, v.1), of_bias, [scores.scale, scores.cap])? {
            return y.transpose(1, 2).map(Some);
        }
        if !takes_many {
            return Ok(None);
        }
    }
    let kernel = Attention { of_q, k, v, bias, scores };
    match by_heads {
        true => launched(kernel, &q, (batch, heads, queries, of_values)).map(Some),
        false => launched(kernel, &q, (batch, queries, heads, of_values))?.transpose(1, 2).map(Some),
    }
}

/// [`ranged_attention`](super::ranged_attention) in one kernel, as a transposed view of `(batch, queries, heads, dim)`. `None` if no kernel
/// supports the operands.
pub(super) fn ranged_attention(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    ranges: &Tensor,
    scale: f64,
) -> Result<Option<Tensor>> {
    let ((batch, heads, queries, dim), (_, of_keys, keys, _), of_values) = (q.dims4()?, k.dims4()?, v.dim(3)?);
    let agree = k.dims() == [batch, of_keys, keys, dim]
        && v.dims() == [batch, of_keys, keys, of_values]
        && shared_by(heads, of_keys).is_some();
    let is_known = takes(q, &[Some(k), Some(v)]) && ranges.device().same_device(q.device());
    let is_sound = (scale as f32).is_normal() && scale > 0. && keys > 0 && q.elem_count() * of_values > 0;
    if !agree || !is_known || !is_sound || !launch::attends(q.device().as_cuda_device()?, q.dtype(), [dim, of_values])?
    {
        return Ok(None);
    }
    let ranges = aligned(ranges)?;
    let (Some((q, of_q)), Some(k), Some(v)) = (as_taken(q)?, as_taken(k)?, as_taken(v)?) else { return Ok(None) };
    let kernel = Ranged { of_q, k, v, ranges, scale: scale as f32 };
    launched(kernel, &q, (batch, queries, heads, of_values))?.transpose(1, 2).map(Some)
}

/// Whether heads of `dim` elements have a kernel of ranges.
pub(super) fn has_ranged_attention(device: &Device, dtype: DType, dim: usize) -> Result<Option<bool>> {
    match device {
        Device::Cuda(device) => launch::attends(device, dtype, [dim; 2]).map(Some),
        _ => Ok(None),
    }
}

/// A tensor as the kernels read it, with its layout; a copy where they do not read its own.
fn as_taken(x: &Tensor) -> Result<Option<(Tensor, HeadRows)>> {
    let rows_of = |x: &Tensor| HeadRows::of(x.layout(), x.dtype());
    match rows_of(x) {
        Some(rows) => Ok(Some((x.clone(), rows))),
        None => x.contiguous().map(|x| rows_of(&x).map(|rows| (x, rows))),
    }
}

/// Broadcasts the bias to the shape of the scores. Returns it with its strides over batches, heads and queries; `None`
/// if a stride does not fit into 32 bits.
pub(super) fn bias_of_scores(
    bias: &Tensor,
    shape: (usize, usize, usize, usize),
) -> Result<Option<(Tensor, [usize; 3])>> {
    let bias = bias.broadcast_as(shape)?;
    let bias = if bias.stride()[3] == 1 || shape.3 == 1 { bias } else { bias.contiguous()? };
    let strides = [bias.stride()[0], bias.stride()[1], bias.stride()[2]];
    Ok(strides.iter().all(|&stride| stride <= u32::MAX as usize).then_some((bias, strides)))
}

struct Attention {
    of_q: HeadRows,
    k: (Tensor, HeadRows),
    v: (Tensor, HeadRows),
    /// The bias of the scores, with its strides over batches, heads and queries.
    bias: Option<(Tensor, [usize; 3])>,
    scores: OfLaunch,
}

impl Kernel for Attention {
    const NAME: &'static str = "attention";

    fn launch<T: CudaDType + DeviceRepr>(&self, Call { device, dtype, x, y }: Call<T>) -> Result<()> {
        let Self { of_q, k, v, bias, scores } = self;
        with_elements([Some(&k.0), Some(&v.0)], |[keys, values]| {
            let (Some(keys), Some(values)) = (keys, values) else { bail!("attention without keys or values") };
            let operands = [(&x, *of_q), (&keys, k.1), (&values, v.1)];
            let added = bias.as_ref().map(|(bias, _)| bias);
            let strides = bias.as_ref().map(|(_, strides)| *strides);
            if scores.in_f32 {
                return with_elements([added], |[added]| {
                    launch::attention::<T, f32>(device, dtype, *scores, operands, added.as_ref().zip(strides), y)
                });
            }
            with_elements([added], |[added]| {
                launch::attention::<T, T>(device, dtype, *scores, operands, added.as_ref().zip(strides), y)
            })
        })
    }
}

struct Ranged {
    of_q: HeadRows,
    k: (Tensor, HeadRows),
    v: (Tensor, HeadRows),
    ranges: Tensor,
    scale: f32,
}

impl Kernel for Ranged {
    const NAME: &'static str = "ranged_attention";

    fn launch<T: CudaDType + DeviceRepr>(&self, Call { device, dtype, x, y }: Call<T>) -> Result<()> {
        let Self { of_q, k, v, ranges, scale } = self;
        with_elements([Some(&k.0), Some(&v.0)], |[keys, values]| {
            with_elements::<u32, _, 1>([Some(ranges)], |[ranges]| {
                let (Some(keys), Some(values), Some(ranges)) = (&keys, &values, &ranges) else {
                    bail!("attention without keys, values or ranges")
                };
                launch::ranged_attention(device, dtype, *scale, [(&x, *of_q), (keys, k.1), (values, v.1)], ranges, y)
            })
        })
    }
}
