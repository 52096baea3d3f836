//! Nodes that choose among elements, and rotary embeddings.

use candle::{bail, Result, Tensor};
use candle_nn::rotary_emb::{rope, rope_i, rope_thd};
use opara_plan::rewrite::Node;
use opara_plan::trace::{Function, Indexed, Rotary};

use super::evaluation::Evaluation;

/// The elements of the middle one of three dimensions that the second operand names.
pub(super) fn index_select(of: &mut Evaluation, node: &Node, shape: [u64; 3]) -> Result<Tensor> {
    let [x, ids] = [of.operand(&node.operands[0], &shape.map(|len| len as usize))?, of.own(&node.operands[1])?];
    x.contiguous()?.index_select(&ids.flatten_all()?.contiguous()?, 1)
}

/// The elements of the middle one of three dimensions that the second operand names for each.
pub(super) fn gather(of: &mut Evaluation, node: &Node, shape: &Indexed) -> Result<Tensor> {
    let [left, from, to, right] = [shape.left, shape.from, shape.to, shape.right].map(|len| len as usize);
    let x = of.operand(&node.operands[0], &[left, from, right])?.contiguous()?;
    let ids = of.operand(&node.operands[1], &[left, to, right])?.broadcast_as((left, to, right))?;
    x.gather(&ids.contiguous()?, 1)
}

/// The first operand with elements of the third one in the places that the second one names, or added to what is there.
pub(super) fn put(of: &mut Evaluation, node: &Node, function: &Function, shape: &Indexed) -> Result<Tensor> {
    let [left, from, to, right] = [shape.left, shape.from, shape.to, shape.right].map(|len| len as usize);
    let [x, ids, new] = &node.operands[..] else { bail!("{function:?} has three operands") };
    let x = of.operand(x, &[left, to, right])?.broadcast_as((left, to, right))?.contiguous()?;
    let new = of.operand(new, &[left, from, right])?.broadcast_as((left, from, right))?.contiguous()?;
    if matches!(function, Function::IndexAdd(_)) {
        // candle copies the operand, and looks in the copy for where the operand begins in its own memory.
        let x = if x.layout().start_offset() == 0 { x } else { x.force_contiguous()? };
        return x.index_add(&of.own(ids)?.flatten_all()?.contiguous()?, &new, 1);
    }
    let ids = of.operand(ids, &[left, from, right])?.broadcast_as((left, from, right))?.contiguous()?;
    match function {
        Function::ScatterAdd(_) => x.scatter_add(&ids, &new, 1),
        _ => x.scatter(&ids, &new, 1),
    }
}

/// The second operand where the first is not 0, else the third.
pub(super) fn select(of: &mut Evaluation, node: &Node) -> Result<Tensor> {
    let operands = over_one_shape(of, node)?;
    operands[0].where_cond(&operands[1], &operands[2])
}

/// As many numbers as the node has elements where the first operand is not 0, else the second operand.
pub(super) fn masked_fill(of: &mut Evaluation, node: &Node, numbers: &Tensor) -> Result<Tensor> {
    let operands = over_one_shape(of, node)?;
    operands[0].where_cond(&numbers.reshape(operands[0].shape())?, &operands[1])
}

/// The operands of a node, each in as many elements as the result has.
fn over_one_shape(of: &mut Evaluation, node: &Node) -> Result<Vec<Tensor>> {
    let operands = of.operands(node)?;
    let longest = |dim: usize| operands.iter().map(|operand| operand.dims()[dim]).max().unwrap_or(1);
    let shape: Vec<usize> = (0..operands[0].rank()).map(longest).collect();
    operands.iter().map(|operand| operand.broadcast_as(&shape[..])?.contiguous()).collect()
}

/// A rotary embedding by candle's kernel.
pub(super) fn rotary(of: &mut Evaluation, node: &Node, rotary: &Rotary) -> Result<Tensor> {
    let (shape, of_angles) = rotary_shapes(rotary);
    let x = of.operand(&node.operands[0], &shape)?.contiguous()?;
    let [cos, sin] = [1, 2].map(|at| of.operand(&node.operands[at], &of_angles)?.contiguous());
    rotated(&x, [&cos?, &sin?], rotary)
}

/// The shape of what is rotated, and that of the angles' cosines and sines.
pub(super) fn rotary_shapes(rotary: &Rotary) -> (Vec<usize>, Vec<usize>) {
    let Rotary { outer, tokens, heads, size, angles, .. } = *rotary;
    let shape = match (heads, angles) {
        (1, angles) => [angles.max(1), outer / angles.max(1), tokens, size],
        _ => [outer, tokens, heads, size],
    };
    let of_angles = if angles == 0 { vec![tokens, size / 2] } else { vec![angles, tokens, size / 2] };
    (shape.map(|len| len as usize).to_vec(), of_angles.into_iter().map(|len| len as usize).collect())
}

/// Tensors of those shapes, rotated.
pub(super) fn rotated(x: &Tensor, [cos, sin]: [&Tensor; 2], rotary: &Rotary) -> Result<Tensor> {
    match (rotary.is_of_neighbours, rotary.heads) {
        (true, _) => rope_i(x, cos, sin),
        (false, 1) => rope(x, cos, sin),
        (false, _) => rope_thd(x, cos, sin),
    }
}
