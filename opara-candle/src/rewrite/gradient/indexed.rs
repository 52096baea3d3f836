//! Derivatives of functions that choose among elements, and of rotary embeddings.

use candle::{Result, Tensor};
use opara_plan::trace::{Function, Indexed, Rotary};

use super::super::indexed::{rotary_shapes, rotated};
use super::step::Step;
use crate::ops::embedding_backward;

/// Of elements of the middle one of three dimensions that integers name.
pub(super) fn index_select(step: &mut Step, shape: [u64; 3]) -> Result<()> {
    let [left, from, right] = shape.map(|len| len as usize);
    let ids = step.of.own(&step.node.operands[1])?.flatten_all()?.contiguous()?;
    if left == 1 && step.is_typed() {
        let g = step.typed_gradient(&[ids.elem_count(), right])?.contiguous()?;
        return step.give(0, embedding_backward(&g, &ids, (from, right))?);
    }
    let g = step.gradient(&[left, ids.elem_count(), right])?.contiguous()?;
    let nothing = Tensor::zeros((left, from, right), g.dtype(), g.device())?;
    step.give(0, nothing.index_add(&ids, &g, 1)?)
}

/// Of elements of the middle one of three dimensions that integers name for each.
pub(super) fn gather(step: &mut Step, shape: &Indexed) -> Result<()> {
    let [left, from, to, right] = [shape.left, shape.from, shape.to, shape.right].map(|len| len as usize);
    let ids = step.operand_as(1, &[left, to, right])?.contiguous()?;
    let g = step.gradient(&[left, to, right])?.contiguous()?;
    let nothing = Tensor::zeros((left, from, right), g.dtype(), g.device())?;
    step.give(0, nothing.scatter_add(&ids, &g, 1)?)
}

/// Of elements that are put in places, or added to what is there.
pub(super) fn put(step: &mut Step, function: &Function, shape: &Indexed) -> Result<()> {
    let [left, from, to, right] = [shape.left, shape.from, shape.to, shape.right].map(|len| len as usize);
    let g = step.gradient(&[left, to, right])?.contiguous()?;
    if let Function::IndexAdd(_) = function {
        if step.needs(2) {
            let ids = step.of.own(&step.node.operands[1])?.flatten_all()?.contiguous()?;
            step.give(2, g.index_select(&ids, 1)?)?;
        }
        return if step.needs(0) { step.give(0, g) } else { Ok(()) };
    }
    let ids = step.operand_as(1, &[left, from, right])?.contiguous()?;
    if step.needs(2) {
        step.give(2, g.gather(&ids, 1)?)?;
    }
    if step.needs(0) {
        let left_over = match function {
            Function::Scatter(_) => g.scatter(&ids, &Tensor::zeros((left, from, right), g.dtype(), g.device())?, 1)?,
            _ => g,
        };
        step.give(0, left_over)?;
    }
    Ok(())
}

/// Of a rotary embedding: pairs are rotated back.
pub(super) fn rotary(step: &mut Step, rotary: &Rotary) -> Result<()> {
    let (shape, of_angles) = rotary_shapes(rotary);
    let g = step.gradient(&shape)?.contiguous()?;
    let (cos, sin) = (step.operand_as(1, &of_angles)?, step.operand_as(2, &of_angles)?);
    step.give(0, rotated(&g, [&cos.contiguous()?, &sin.neg()?.contiguous()?], rotary)?)
}
