//! Products with a weight, and what follows them.

use super::facts::Activated;
use super::{Facts, Replacement};
use crate::rewrite::graph::{strides_over, Compute, Node, Operand};
use crate::trace::{Dim, Function};

/// Activations that can be part of a product.
pub(super) const ACTIVATIONS: [&str; 4] = ["relu", "gelu", "gelu_erf", "silu"];

/// A product with a weight: `x`, `(rows, inner)`, the weight, `(columns, inner)`, and the bias, if it has one.
pub(super) struct Product {
    pub x: Operand,
    pub weight: Operand,
    pub bias: Option<Operand>,
    pub launches: usize,
}

impl Product {
    /// The one that a node is, if its weight is constant and lies row by row.
    pub fn of(facts: &Facts, at: usize) -> Option<Self> {
        let node = facts.node(at);
        if let (Compute::Linear { activation: None }, [x, weight, bias @ ..]) = (&node.compute, &node.operands[..]) {
            let (x, weight, bias) = (x.clone(), weight.clone(), bias.first().cloned());
            return Some(Self { x, weight, bias, launches: node.launches });
        }
        let (Function::Matmul, [x, weight]) = (facts.recorded(at)?, &node.operands[..]) else { return None };
        let (Some([1, _, inner]), Some([_, _, columns])) = (lens(x), lens(weight)) else { return None };
        let by_rows = weight.dims[1].stride == 1 && (weight.dims[2].stride == inner || columns == 1);
        if !by_rows || !facts.have_type_of(node, [x, weight]) || !facts.is_constant(weight) {
            return None;
        }
        let x = Operand { dims: x.dims[1..].to_vec(), ..x.clone() };
        let weight = Operand { dims: vec![weight.dims[2], weight.dims[1]], ..weight.clone() };
        Some(Self { x, weight, bias: None, launches: node.launches })
    }

    pub fn rows(&self) -> u64 {
        self.x.dims[0].len
    }

    pub fn columns(&self) -> u64 {
        self.weight.dims[0].len
    }
}

/// Lets a sum with one number a column be part of a product with a weight.
pub(super) fn bias(facts: &Facts, at: usize) -> Option<Replacement> {
    let node = facts.node(at);
    let [y, bias] = facts.binary(at, "add")?;
    let of = facts.only(y)?;
    let product = Product::of(facts, of).filter(|product| product.bias.is_none())?;
    let [0, stride] = strides_over(&bias.dims, &[product.rows(), product.columns()])?[..] else { return None };
    let is_typed = facts.node(of).element == node.element && facts.have_type_of(node, [bias]);
    if facts.node(of).len != node.len || !is_typed || !facts.is_constant(bias) {
        return None;
    }
    let bias = Operand { dims: vec![Dim { len: product.columns(), stride }], ..bias.clone() };
    let compute = Compute::Linear { activation: None };
    let launches = product.launches + node.launches;
    let operands = vec![product.x, product.weight, bias];
    Some(Replacement { node: Node { compute, operands, launches, ..node.clone() }, saved: 1 })
}

/// Lets an activation be part of a product.
pub(super) fn activation(facts: &Facts, at: usize) -> Option<Replacement> {
    let node = facts.node(at);
    let Activated { name, of, launches: saved } = facts.activation(at)?;
    let Product { x, weight, bias, launches } = Product::of(facts, of)?;
    let fits = ACTIVATIONS.contains(&name.as_str());
    let compute = Compute::Linear { activation: Some(name) };
    let (operands, launches) = ([x, weight].into_iter().chain(bias).collect(), launches + saved);
    fits.then(|| Replacement { node: Node { compute, operands, launches, ..node.clone() }, saved })
}

/// The lengths of three dimensions.
fn lens(operand: &Operand) -> Option<[u64; 3]> {
    let lens: Vec<u64> = operand.dims.iter().map(|dim| dim.len).collect();
    lens.try_into().ok()
}
