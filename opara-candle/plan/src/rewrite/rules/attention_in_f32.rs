//! Attention that a model of 16 bits computes in f32.

use super::facts::Facts;
use super::found::Found;
use super::views::behind;
use crate::rewrite::compute::Compute;
use crate::rewrite::graph::{Node, Operand, Value};
use crate::rewrite::scores::Scores;
use crate::trace::{Element, Function};

/// Lets attention read its operands as they were before they were converted to f32, and write what its result is converted to.
pub(super) fn read_16_bits(found: &Found) -> Option<Node> {
    let attention = found.node("y")?;
    let (Compute::Attention(scores), [q, k, v, mask @ ..]) = (&attention.compute, &attention.operands[..]) else {
        return None;
    };
    let operands = find_before_conversion(found.facts, found.facts.whole(found.operand("y")?)?, [q, k, v])?;
    let operands = operands.into_iter().chain(mask.iter().cloned()).collect();
    let scores = Scores { in_f32: true, ..scores.clone() };
    Some(found.replace_by(Compute::Attention(scores), operands))
}

/// Operands of attention in f32, which a node is, or the second product of, as they were before they were converted from the 16-bit type
/// that its result is converted to.
pub(super) fn find_before_conversion(facts: &Facts, at: usize, operands: [&Operand; 3]) -> Option<[Operand; 3]> {
    let (product, reader) = (facts.node(at), facts.node(facts.reader(at)?));
    let (Compute::Recorded(Function::Copy), [result]) = (&reader.compute, &reader.operands[..]) else { return None };
    let to = reader.element;
    let is_converted = matches!(to, Element::F16 | Element::Bf16) && result.is_whole(product.len);
    if !is_converted || product.element != Element::F32 {
        return None;
    }
    let before = |operand: &Operand| {
        let Value::Node(cast) = operand.value else { return None };
        let (Function::Copy, [from]) = (facts.recorded(cast)?, &facts.node(cast).operands[..]) else { return None };
        behind(operand, from).filter(|from| facts.graph.element(from.value) == to)
    };
    let [q, k, v] = operands;
    Some([before(q)?, before(k)?, before(v)?])
}
