//! A product with a weight.

use super::facts::Facts;
use crate::rewrite::compute::Compute;
use crate::rewrite::graph::Operand;
use crate::trace::Function;

/// A product with a weight: `x`, `(rows, inner)`, the weight, `(columns, inner)`, and the bias, if it has one.
pub(super) struct Product {
    pub x: Operand,
    pub weight: Operand,
    pub bias: Option<Operand>,
}

impl Product {
    /// The one that a node is, if its weight is constant and lies row by row.
    pub fn of(facts: &Facts, at: usize) -> Option<Self> {
        let node = facts.node(at);
        if let (Compute::Linear { activation: None }, [x, weight, bias @ ..]) = (&node.compute, &node.operands[..]) {
            return Some(Self { x: x.clone(), weight: weight.clone(), bias: bias.first().cloned() });
        }
        let (Function::Matmul, [x, weight]) = (facts.recorded(at)?, &node.operands[..]) else { return None };
        let (Some([1, _, inner]), Some([_, _, columns])) = (lens(x), lens(weight)) else { return None };
        let by_rows = weight.dims[1].stride == 1 && (weight.dims[2].stride == inner || columns == 1);
        if !by_rows || !facts.have_type_of(node, [x, weight]) || !facts.is_constant(weight) {
            return None;
        }
        let x = Operand { dims: x.dims[1..].to_vec(), ..x.clone() };
        let weight = Operand { dims: vec![weight.dims[2], weight.dims[1]], ..weight.clone() };
        Some(Self { x, weight, bias: None })
    }

    pub fn rows(&self) -> u64 {
        self.x.dims[0].len
    }

    pub fn columns(&self) -> u64 {
        self.weight.dims[0].len
    }

    /// The weight, and the bias.
    pub fn vectors(self) -> impl Iterator<Item = Operand> {
        std::iter::once(self.weight).chain(self.bias)
    }
}

/// The lengths of three dimensions.
fn lens(operand: &Operand) -> Option<[u64; 3]> {
    let lens: Vec<u64> = operand.dims.iter().map(|dim| dim.len).collect();
    lens.try_into().ok()
}
