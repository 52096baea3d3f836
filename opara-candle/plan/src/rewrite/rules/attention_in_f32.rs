//! Attention that a model of 16 bits computes in f32.

use super::views::behind;
use super::{Facts, Replacement};
use crate::rewrite::graph::{Compute, Node, Operand, Value};
use crate::trace::{Element, Function};

/// Lets attention read its operands as they were before they were converted to f32, and write what its result is converted to.
pub(super) fn at(facts: &Facts, at: usize) -> Option<Replacement> {
    let node = facts.node(at);
    let (Function::Copy, [result]) = (facts.recorded(at)?, &node.operands[..]) else { return None };
    let of = facts.only(result)?;
    let attention = facts.node(of);
    let (&Compute::Attention { scale, in_f32: false }, [q, k, v, mask @ ..]) =
        (&attention.compute, &attention.operands[..])
    else {
        return None;
    };
    let Converted { operands, casts } = Converted::of(facts, of, [q, k, v])?;
    let saved = attention.launches + casts.into_iter().map(|cast| facts.node(cast).launches).sum::<usize>();
    let operands = operands.into_iter().chain(mask.iter().cloned()).collect();
    let compute = Compute::Attention { scale, in_f32: true };
    Some(Replacement { node: Node { compute, operands, launches: node.launches + saved, ..node.clone() }, saved })
}

/// Operands of attention in f32 that were converted from the 16-bit type which its result is converted to.
pub(super) struct Converted {
    /// As they were before.
    operands: [Operand; 3],
    /// The nodes that convert them and that nothing else reads.
    casts: Vec<usize>,
}

impl Converted {
    /// The operands of an attention node, or of the attention whose second product the node is.
    pub fn of(facts: &Facts, at: usize, operands: [&Operand; 3]) -> Option<Self> {
        let [reader] = facts.users[at][..] else { return None };
        // An output is no node.
        let reader = facts.graph.nodes.get(reader)?;
        let (Compute::Recorded(Function::Copy), [result]) = (&reader.compute, &reader.operands[..]) else {
            return None;
        };
        let (product, to) = (facts.node(at), reader.element);
        let is_converted = matches!(to, Element::F16 | Element::Bf16) && result.is_whole(product.len);
        if !is_converted || product.element != Element::F32 {
            return None;
        }
        let mut casts = Vec::new();
        let mut before = |operand: &Operand| {
            let Value::Node(cast) = operand.value else { return None };
            let (Function::Copy, [from]) = (facts.recorded(cast)?, &facts.node(cast).operands[..]) else { return None };
            casts.extend((facts.users[cast].len() == 1).then_some(cast));
            behind(operand, from).filter(|from| facts.graph.element(from.value) == to)
        };
        let [q, k, v] = operands;
        let operands = [before(q)?, before(k)?, before(v)?];
        Some(Self { operands, casts })
    }
}
