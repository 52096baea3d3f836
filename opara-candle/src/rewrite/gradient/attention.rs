//! The derivative of attention: its weights are computed anew.

use candle::{bail, Result, Tensor};
use opara_plan::rewrite::{Mask, Operand, Scores};

use super::super::attention::{chosen, over_scores, said};
use super::products::multiply;
use super::step::Step;
use crate::ops::{attention_backward_of_scores, in_sums, softmax_backward, softmax_last_dim, AttentionGradients};

/// Whether a gradient flows to an operand: to all but conditions.
pub(super) fn is_reached(scores: &Scores, operand: usize) -> bool {
    let mut at = 3 + scores.are_divisors.len();
    if operand < at {
        return true;
    }
    for mask in &scores.masks {
        let last = at + mask.operands() - 1;
        if operand <= last {
            return operand == last && !matches!(mask, Mask::Filled { .. });
        }
        at = last + 1;
    }
    false
}

/// Heads of queries, keys or values as `(batch, heads, tokens, size)`.
fn of_batch(heads: Tensor) -> Result<Tensor> {
    if heads.rank() == 3 {
        heads.unsqueeze(0)
    } else {
        Ok(heads)
    }
}

/// Several heads of queries for one of keys as one head of more queries.
fn joined(x: &Tensor, heads: usize) -> Result<Tensor> {
    let (batch, all, tokens, size) = x.dims4()?;
    x.contiguous()?.reshape((batch, heads, all / heads * tokens, size))
}

/// A mask of scores: the place of its operands, and its condition.
struct Masked {
    mask: Mask,
    at: usize,
    condition: Option<Tensor>,
}

/// The gradients by kernels that store no weights, if there are some. Factors and masks get no gradients there.
fn without_weights(step: &mut Step, scores: &Scores) -> Result<Option<AttentionGradients>> {
    let masks = &step.node.operands[3..];
    if !step.is_typed() || !scores.are_divisors.is_empty() || (3..3 + masks.len()).any(|at| step.needs(at)) {
        return Ok(None);
    }
    let [q, k, v] = [0, 1, 2].map(|at| of_batch(step.of.own(&step.node.operands[at])?));
    let (q, k, v) = (q?, k?, v?);
    let (bias, of) = said(step.of, masks, scores, [&q, &k])?;
    let result = [q.dim(0)?, q.dim(1)?, q.dim(2)?, v.dim(3)?];
    let results = [&step.typed_result(&result)?, &step.typed_gradient(&result)?];
    attention_backward_of_scores([&q, &k, &v], bias.as_ref(), &of, results)
}

pub(super) fn attention(step: &mut Step, scores: &Scores) -> Result<()> {
    if let Some(of) = without_weights(step, scores)? {
        for (at, gradient) in [of.q, of.k, of.v].into_iter().enumerate() {
            if step.needs(at) {
                step.give(at, gradient)?;
            }
        }
        return Ok(());
    }
    let [q, k, v] = [0, 1, 2].map(|at| of_batch(step.operand(at)?));
    let (q, k, v) = (q?, k?, v?);
    let (batch, of_queries, queries, _) = q.dims4()?;
    let (_, of_keys, keys, _) = k.dims4()?;
    let shape = [batch, of_queries, queries, keys];
    let (q, k, v) = (joined(&q, of_keys)?, k.contiguous()?, v.contiguous()?);
    // Factors, each one number.
    let mut factor: Option<Tensor> = None;
    for (at, is_divisor) in scores.are_divisors.iter().enumerate() {
        let one = Operand { dims: Vec::new(), ..step.node.operands[3 + at].clone() };
        let by = in_sums(&step.of.operand(&one, &[])?)?;
        let by = if *is_divisor { by.recip()? } else { by };
        factor = Some(factor.map_or(Ok(by.clone()), |factor| factor * by)?);
    }
    let scaled = |x: Tensor| {
        let x = x.affine(scores.scale.into(), 0.)?;
        factor.as_ref().map_or(Ok(x.clone()), |factor| x.broadcast_mul(factor))
    };
    let plain = scaled(multiply(&q, &k.t()?)?.reshape(&shape[..])?)?;
    let tanh = scores.cap.map(|_| plain.tanh()).transpose()?;
    let mut s = match (&tanh, scores.cap) {
        (Some(tanh), Some(cap)) => tanh.affine(cap.into(), 0.)?,
        _ => plain.clone(),
    };
    let (mut at, mut masks) = (3 + scores.are_divisors.len(), Vec::new());
    for &mask in &scores.masks {
        let operands = &step.node.operands[at..at + mask.operands()];
        let first = over_scores(step.of, &operands[0], &shape)?;
        let condition = match mask {
            Mask::Added(factor) => {
                s = s.broadcast_add(&first.to_dtype(s.dtype())?.affine(factor.into(), 0.)?)?;
                None
            }
            Mask::Filled { number, where_zero } => {
                let number = Tensor::full(number, (), s.device())?.to_dtype(s.dtype())?;
                s = chosen(&first, where_zero, &number, &s)?;
                Some(first)
            }
            Mask::Replaced { where_zero } => {
                let other = over_scores(step.of, &operands[1], &shape)?.to_dtype(s.dtype())?;
                s = chosen(&first, where_zero, &other, &s)?;
                Some(first)
            }
        };
        masks.push(Masked { mask, at, condition });
        at += mask.operands();
    }
    let weights = softmax_last_dim(&s)?;
    let of_values = v.dim(3)?;
    let g = joined(&step.gradient(&[batch, of_queries, queries, of_values])?, of_keys)?;
    let together = [batch, of_keys, of_queries / of_keys.max(1) * queries, keys];
    if step.needs(2) {
        step.give(2, multiply(&weights.reshape(&together[..])?.t()?, &g)?)?;
    }
    let mut ds = softmax_backward(&weights, &multiply(&g, &v.t()?)?.reshape(&shape[..])?)?;
    for Masked { mask, at, condition } in masks.into_iter().rev() {
        let nothing = Tensor::zeros((), ds.dtype(), ds.device())?;
        match (mask, condition) {
            (Mask::Added(factor), _) if step.needs(at) => step.give(at, ds.affine(factor.into(), 0.)?)?,
            (Mask::Added(_), _) => {}
            (Mask::Filled { where_zero, .. }, Some(condition)) => ds = chosen(&condition, where_zero, &nothing, &ds)?,
            (Mask::Replaced { where_zero }, Some(condition)) => {
                if step.needs(at + 1) {
                    step.give(at + 1, chosen(&condition, where_zero, &ds, &nothing)?)?;
                }
                ds = chosen(&condition, where_zero, &nothing, &ds)?;
            }
            (mask, None) => bail!("{mask:?} has no condition"),
        }
    }
    if let (Some(tanh), Some(cap)) = (tanh, scores.cap) {
        ds = (ds * tanh.sqr()?.affine(-f64::from(cap), cap.into())?)?;
    }
    for (of, is_divisor) in
        scores.are_divisors.iter().enumerate().filter(|(of, _)| step.needs(3 + of)).collect::<Vec<_>>()
    {
        let one = Operand { dims: Vec::new(), ..step.node.operands[3 + of].clone() };
        let by = in_sums(&step.of.operand(&one, &[])?)?;
        let gradient = ((&ds * &plain)?.sum_all()? / by)?;
        step.give_over(3 + of, Vec::new(), if *is_divisor { gradient.neg()? } else { gradient })?;
    }
    let ds = scaled(ds)?.reshape(&together[..])?;
    if step.needs(0) {
        step.give(0, multiply(&ds, &k)?)?;
    }
    if step.needs(1) {
        step.give(1, multiply(&ds.t()?, &q)?)?;
    }
    Ok(())
}
