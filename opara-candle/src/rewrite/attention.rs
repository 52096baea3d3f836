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
    };
    ops::attention_of_scores([&q, &k, &v?], bias.as_ref(), &of)
}

/// What the tensor of masks does to scores.
fn does(masks: &[Mask]) -> Bias {
    let fills = |mask: &Mask| !matches!(mask, Mask::Added(_));
    let hides = |mask: &Mask| matches!(mask, Mask::Added(_) | Mask::Filled { number: f32::NEG_INFINITY, .. });
    match (masks.iter().any(fills), masks.iter().all(hides)) {
        (false, _) => Bias::Added,
        (true, true) => Bias::Hides,
        (true, false) => Bias::Replaces,
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
    let number = |number: f32, like: &Tensor| Tensor::full(number, (), like.device())?.to_dtype(dtype);
    let mut left = operands.iter();
    let mut made: Option<Tensor> = None;
    for mask in masks {
        let Some(operand) = left.next() else { candle::bail!("a mask of attention is missing") };
        let operand = over_scores(of, operand, shape)?;
        made = Some(match *mask {
            Mask::Added(factor) => {
                let added = operand.to_dtype(dtype)?;
                let added = if factor == 1. { added } else { added.affine(factor.into(), 0.)? };
                made.map_or(Ok(added.clone()), |made| made.broadcast_add(&added))?
            }
            Mask::Filled { number: filled, where_zero } => {
                let before = made.map_or_else(|| number(0., &operand), Ok)?;
                let filled = number(in_place_of_zero(filled, dtype), &operand)?;
                chosen(&operand, where_zero, &filled, &before)?
            }
            Mask::Replaced { where_zero } => {
                let Some(others) = left.next() else { candle::bail!("a mask of attention is missing") };
                let others = over_scores(of, others, shape)?.to_dtype(dtype)?;
                let least = number(in_place_of_zero(0., dtype), &others)?.broadcast_as(others.shape())?;
                let others = others.eq(0.)?.where_cond(&least, &others)?;
                let before = made.map_or_else(|| number(0., &operand), Ok)?;
                chosen(&operand, where_zero, &others, &before)?
            }
        });
    }
    if let Some(bias) = &made {
        of.keep_bias(operands, masks, shape, bias.clone());
    }
    Ok(made)
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
fn chosen(condition: &Tensor, where_zero: bool, one: &Tensor, other: &Tensor) -> Result<Tensor> {
    let shape = condition.shape().broadcast_shape_binary_op(one.shape(), "where")?;
    let shape = shape.broadcast_shape_binary_op(other.shape(), "where")?;
    let whole = |x: &Tensor| x.broadcast_as(&shape);
    let (condition, one, other) = (whole(condition)?, whole(one)?, whole(other)?);
    match where_zero {
        true => condition.where_cond(&other, &one),
        false => condition.where_cond(&one, &other),
    }
}

/// An operand over scores; what repeats has length one, if it is a view of them.
fn over_scores(of: &mut Evaluation, operand: &Operand, shape: &[usize; 4]) -> Result<Tensor> {
    of.operand(operand, shape).or_else(|_| shaped(&of.own(operand)?, shape))
}
