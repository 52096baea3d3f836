//! Products with a weight, and what follows them.

use super::{Better, Facts};
use crate::rewrite::graph::{strides_over, Compute, Node, Operand};
use crate::trace::{Dim, Function};

/// Activations that can be part of a product.
const ACTIVATIONS: [&str; 4] = ["relu", "gelu", "gelu_erf", "silu"];

/// Lets a sum with one number a column be part of a product with a weight.
pub(super) fn bias(facts: &Facts, at: usize) -> Option<Better> {
    let node = facts.node(at);
    let [y, bias] = facts.binary(at, "add")?;
    let of = facts.only(y)?;
    let product = facts.node(of);
    let (Function::Matmul, [x, weight]) = (facts.recorded(of)?, &product.operands[..]) else { return None };
    let (Some([1, rows, inner]), Some([_, _, columns])) = (lens(x), lens(weight)) else { return None };
    let by_rows = weight.dims[1].stride == 1 && (weight.dims[2].stride == inner || columns == 1);
    let [0, stride] = strides_over(&bias.dims, &[rows, columns])?[..] else { return None };
    let are_constant = facts.is_constant(weight) && facts.is_constant(bias);
    if product.len != node.len || !by_rows || !facts.have_type_of(node, [x, weight, bias]) || !are_constant {
        return None;
    }
    let bias = Operand { dims: vec![Dim { len: columns, stride }], ..bias.clone() };
    let x = Operand { dims: x.dims[1..].to_vec(), ..x.clone() };
    let weight = Operand { dims: vec![weight.dims[2], weight.dims[1]], ..weight.clone() };
    let compute = Compute::Linear { activation: None };
    let launches = product.launches + node.launches;
    Some(Better { node: Node { compute, operands: vec![x, weight, bias], launches, ..node.clone() }, saved: 1 })
}

/// Lets an activation be part of a product.
pub(super) fn activation(facts: &Facts, at: usize) -> Option<Better> {
    let node = facts.node(at);
    let (Function::Unary(name), [y]) = (facts.recorded(at)?, &node.operands[..]) else { return None };
    let product = facts.node(facts.only(y)?);
    let fits = product.compute == Compute::Linear { activation: None } && product.element == node.element;
    let compute = Compute::Linear { activation: Some(name.clone()) };
    let (operands, launches) = (product.operands.clone(), product.launches + node.launches);
    let is_known = ACTIVATIONS.contains(&name.as_str());
    (fits && is_known).then(|| Better { node: Node { compute, operands, launches, ..node.clone() }, saved: 1 })
}

/// The lengths of three dimensions.
fn lens(operand: &Operand) -> Option<[u64; 3]> {
    let lens: Vec<u64> = operand.dims.iter().map(|dim| dim.len).collect();
    lens.try_into().ok()
}
