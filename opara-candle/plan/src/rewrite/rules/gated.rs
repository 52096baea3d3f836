//! Gated units of feed-forward networks: what an activation of one product lets through of another.

use super::product::{Product, ACTIVATIONS};
use super::{Facts, Replacement};
use crate::rewrite::graph::{Compute, Node, Operand};
use crate::trace::Function;

/// Lets the two products of a gated unit be one with both weights.
pub(super) fn at(facts: &Facts, at: usize) -> Option<Replacement> {
    let [a, b] = facts.binary(at, "mul")?;
    unit(facts, at, [a, b]).or_else(|| unit(facts, at, [b, a]))
}

/// The unit that a product of an activation and of what it lets through is.
fn unit(facts: &Facts, at: usize, [gate, up]: [&Operand; 2]) -> Option<Replacement> {
    let node = facts.node(at);
    let of_gate = facts.only(gate)?;
    let (Function::Unary(activation), [gated]) = (facts.recorded(of_gate)?, &facts.node(of_gate).operands[..]) else {
        return None;
    };
    let products = [facts.only(gated)?, facts.only(up)?];
    let [gate, up] = products.map(|product| Product::of(facts, product));
    let (gate, up) = (gate?, up?);
    let are_typed = products.iter().chain([&of_gate]).all(|&of| facts.node(of).element == node.element);
    let fits = ACTIVATIONS.contains(&activation.as_str())
        && gate.x == up.x
        && gate.columns() == up.columns()
        && gate.bias.is_some() == up.bias.is_some()
        && facts.have_type_of(node, [&gate.x])
        && are_typed;
    let compute = Compute::Gated { activation: activation.clone(), has_bias: gate.bias.is_some() };
    let launches = node.launches + facts.node(of_gate).launches + gate.launches + up.launches;
    let weights = [(gate.weight, gate.bias), (up.weight, up.bias)];
    let operands = std::iter::once(gate.x).chain(weights.into_iter().flat_map(|(w, b)| std::iter::once(w).chain(b)));
    // Of many rows, what follows the product is a launch of its own.
    fits.then(|| Replacement {
        node: Node { compute, operands: operands.collect(), launches, ..node.clone() },
        saved: 1,
    })
}
