//! The logarithm of the softmax of rows, each at one class.

use candle::{Result, Tensor};
use opara_plan::rewrite::Node;

use super::evaluation::Evaluation;
use super::strided::shaped;
use crate::ops;

/// One number a row.
pub(super) fn log_softmax_at(of: &mut Evaluation, node: &Node, columns: u64) -> Result<Tensor> {
    let [x, classes] = operands(of, node, columns)?;
    ops::log_softmax_at(&x, &classes)?.to_dtype(of.arithmetic.dtype(node.element))
}

/// Rows, and their classes.
pub(super) fn operands(of: &mut Evaluation, node: &Node, columns: u64) -> Result<[Tensor; 2]> {
    let rows = node.len as usize;
    let x = shaped(&of.own(&node.operands[0])?, &[rows, columns as usize])?;
    Ok([x, shaped(&of.own(&node.operands[1])?, &[rows])?.contiguous()?])
}
