//! Attention, and the one tensor that stands for all that is done to its scores.

use candle::{DType, Result, Tensor};
use opara_plan::rewrite::{Mask, Node, Operand, Scores};

use super::evaluation::{Arithmetic, Evaluation};
use super::strided::shaped;
use crate::ops::{self, Bias};

/// Heads beside each other, of one batch or of several.
pub(super) fn attention(of: &mut Evaluation, node: &Node, scores: &Scores) -> Result<Tensor> {
    let [q, k, v] = [0, 1, 2].map(|at| {
        let heads = of.own(&node.operands[at])?;
        if heads.rank() == 3 {
            heads.unsqueeze(0)
        } else {
            Ok(heads)
        }
    });
    let (mut q, k) = (q?, k?);
    let (factors, masks) = node.operands[3..].split_at(scores.are_divisors.len());
    for (factor, is_divisor) in factors.iter().zip(&scores.are_divisors) {
        let one = Operand { dims: Vec::new(), ..factor.clone() };
        let factor = of.operand(&one, &[])?.to_dtype(q.dtype())?;
        q = if *is_divisor { q.broadcast_div(&factor)? } else { q.broadcast_mul(&factor)? };
    }
    // Who reads heads one after the other gets them so, rather than a copy.
    let by_heads = of.is_read_in_order(node);
    let (bias, of) = said(of, masks, scores, [&q, &k])?;
    ops::attention_of_scores([&q, &k, &v?], bias.as_ref(), &ops::Scores { by_heads, ..of })
}

/// The masks of queries and keys as one tensor, and what becomes of their products.
pub(super) fn said(
    of: &mut Evaluation,
    masks: &[Operand],
    scores: &Scores,
    [q, k]: [&Tensor; 2],
) -> Result<(Option<Tensor>, ops::Scores)> {
    let shape = [q.dim(0)?, q.dim(1)?, q.dim(2)?, k.dim(2)?];
    let dtype = match (of.arithmetic, scores.in_f32) {
        (Arithmetic::Typed, true) => DType::F32,
        _ => q.dtype(),
    };
    let bias = bias(of, masks, &scores.masks, &shape, dtype)?;
    let of = ops::Scores {
        scale: scores.scale.into(),
        cap: scores.cap.map(f64::from),
        bias: does(&scores.masks),
        in_f32: scores.in_f32 && dtype == DType::F32,
        by_heads: false,
    };
    Ok((bias, of))
}

/// What the tensor of masks does to scores.
fn does(masks: &[Mask]) -> Bias {
    let adds = |mask: &Mask| matches!(mask, Mask::Added(_));
    let hides = |mask: &Mask| matches!(mask, Mask::Added(_) | Mask::Filled { number: f32::NEG_INFINITY, .. });
    match masks {
        _ if masks.iter().all(adds) => Bias::Added,
        _ if masks.iter().all(hides) => Bias::Hides,
        _ if masks.iter().any(adds) => Bias::Both,
        _ => Bias::Replaces,
    }
}

/// The masks as one tensor, which repeats where they do. It is made once for all attention that reads them.
fn bias(
    of: &mut Evaluation,
    operands: &[Operand],
    masks: &[Mask],
    shape: &[usize; 4],
    dtype: DType,
) -> Result<Option<Tensor>> {
    if let ([mask], [Mask::Added(1.)]) = (operands, masks) {
        return over_scores(of, mask, shape)?.to_dtype(dtype).map(Some);
    }
    if masks.is_empty() {
        return Ok(None);
    }
    if let Some(known) = of.known_bias(operands, masks, shape, dtype) {
        return Ok(Some(known));
    }
    let made = match does(masks) {
        Bias::Both => both(of, operands, masks, shape, dtype)?,
        _ => one(of, operands, masks, shape, dtype)?,
    };
    of.keep_bias(operands, masks, shape, made.clone());
    Ok(Some(made))
}

/// A number as a tensor beside another one.
fn number(number: f32, like: &Tensor, dtype: DType) -> Result<Tensor> {
    Tensor::full(number, (), like.device())?.to_dtype(dtype)
}

/// Masks that all add, hide, or stand in place of scores.
fn one(of: &mut Evaluation, operands: &[Operand], masks: &[Mask], shape: &[usize; 4], dtype: DType) -> Result<Tensor> {
    let mut left = operands.iter();
    let mut made: Option<Tensor> = None;
    for mask in masks {
        let operand = next(of, &mut left, shape)?;
        made = Some(match *mask {
            Mask::Added(factor) => added(made, operand.to_dtype(dtype)?, factor)?,
            Mask::Filled { number: filled, where_zero } => {
                let before = made.map_or_else(|| number(0., &operand, dtype), Ok)?;
                let filled = number(in_place_of_zero(filled, dtype), &operand, dtype)?;
                chosen(&operand, where_zero, &filled, &before)?
            }
            Mask::Replaced { where_zero } => {
                let others = without_zeros(next(of, &mut left, shape)?.to_dtype(dtype)?)?;
                let before = made.map_or_else(|| number(0., &operand, dtype), Ok)?;
                chosen(&operand, where_zero, &others, &before)?
            }
        });
    }
    made.map_or_else(|| candle::bail!("attention without masks"), Ok)
}

/// What is added to scores, and behind it, in rows that go on, what stands in their place.
fn both(of: &mut Evaluation, operands: &[Operand], masks: &[Mask], shape: &[usize; 4], dtype: DType) -> Result<Tensor> {
    let mut left = operands.iter();
    let mut sum: Option<Tensor> = None;
    // What stands in place of scores, and 1 where it does.
    let mut others: Option<[Tensor; 2]> = None;
    for mask in masks {
        let operand = next(of, &mut left, shape)?;
        let (other, where_zero) = match *mask {
            Mask::Added(factor) => {
                let by = operand.to_dtype(dtype)?;
                sum = Some(added(sum, by.clone(), factor)?);
                if let Some([other, _]) = &mut others {
                    *other = added(Some(other.clone()), by, factor)?;
                }
                continue;
            }
            Mask::Filled { number: filled, where_zero } => (number(filled, &operand, dtype)?, where_zero),
            Mask::Replaced { where_zero } => (next(of, &mut left, shape)?.to_dtype(dtype)?, where_zero),
        };
        let is_other = if where_zero { operand.eq(0.)? } else { operand.ne(0.)? };
        others = Some(match others {
            Some([before, was_other]) => {
                [chosen(&operand, where_zero, &other, &before)?, is_other.broadcast_maximum(&was_other)?]
            }
            None => [other, is_other],
        });
    }
    let (Some(sum), Some([other, is_other])) = (sum, others) else { candle::bail!("masks of attention are missing") };
    let nothing = number(0., &sum, dtype)?;
    let others = chosen(&is_other, false, &without_zeros(other)?, &nothing)?;
    let rows = sum.shape().broadcast_shape_binary_op(others.shape(), "cat")?.into_dims();
    let rows = [rows[0], rows[1], rows[2], shape[3]];
    Tensor::cat(&[sum.broadcast_as(&rows[..])?, others.broadcast_as(&rows[..])?], 3)
}

/// The next operand of masks, over scores.
fn next<'o>(of: &mut Evaluation, left: &mut impl Iterator<Item = &'o Operand>, shape: &[usize; 4]) -> Result<Tensor> {
    match left.next() {
        Some(operand) => over_scores(of, operand, shape),
        None => candle::bail!("a mask of attention is missing"),
    }
}

/// A sum with a multiple of something, or that multiple.
fn added(sum: Option<Tensor>, by: Tensor, factor: f32) -> Result<Tensor> {
    let by = if factor == 1. { by } else { by.affine(factor.into(), 0.)? };
    sum.map_or(Ok(by.clone()), |sum| sum.broadcast_add(&by))
}

/// The same with the smallest number in place of zeros.
fn without_zeros(x: Tensor) -> Result<Tensor> {
    let least = number(in_place_of_zero(0., x.dtype()), &x, x.dtype())?.broadcast_as(x.shape())?;
    x.eq(0.)?.where_cond(&least, &x)
}

/// A number; the smallest one for zero, which says that nothing replaces a score.
fn in_place_of_zero(number: f32, dtype: DType) -> f32 {
    match (number, dtype) {
        (0., DType::F16) => 2f32.powi(-24),
        (0., _) => f32::MIN_POSITIVE,
        (number, _) => number,
    }
}

/// The first of two tensors where a condition is not 0, or where it is.
pub(super) fn chosen(condition: &Tensor, where_zero: bool, one: &Tensor, other: &Tensor) -> Result<Tensor> {
    let shape = condition.shape().broadcast_shape_binary_op(one.shape(), "where")?;
    let shape = shape.broadcast_shape_binary_op(other.shape(), "where")?;
    let whole = |x: &Tensor| x.broadcast_as(&shape);
    let condition = if condition.dtype().is_float() { condition.ne(0.)? } else { condition.clone() };
    let (condition, one, other) = (whole(&condition)?, whole(one)?, whole(other)?);
    match where_zero {
        true => condition.where_cond(&other, &one),
        false => condition.where_cond(&one, &other),
    }
}

/// An operand over scores; what repeats has length one, if it is a view of them.
pub(super) fn over_scores(of: &mut Evaluation, operand: &Operand, shape: &[usize; 4]) -> Result<Tensor> {
    of.operand(operand, shape).or_else(|_| shaped(&of.own(operand)?, shape))
}
