//! Weights in the order that operators need, made once for all graphs of the same inputs.

use candle::Tensor;
use opara_plan::rewrite::{Compute, Node, Operand, ProductEnd};

use crate::ops::QuantizedWeight;

/// Weights below each other, by the operands that they are.
#[derive(Debug, Default)]
pub(crate) struct Joined {
    dense: Vec<(Vec<Operand>, Tensor)>,
    of_blocks: Vec<(Vec<Operand>, QuantizedWeight)>,
}

impl Joined {
    pub fn dense(&self, operands: &[Operand]) -> Option<&Tensor> {
        self.dense.iter().find(|(of, _)| of == operands).map(|(_, weight)| weight)
    }

    pub fn of_blocks(&self, operands: &[Operand]) -> Option<&QuantizedWeight> {
        self.of_blocks.iter().find(|(of, _)| of == operands).map(|(_, weight)| weight)
    }

    pub fn keep(&mut self, operands: Vec<Operand>, weight: Tensor) {
        self.dense.push((operands, weight));
    }

    pub fn keep_of_blocks(&mut self, operands: Vec<Operand>, weight: QuantizedWeight) {
        self.of_blocks.push((operands, weight));
    }
}

/// The weights of a node that joins some, or whose operator has another order of them.
pub(super) fn weights(node: &Node) -> Vec<Operand> {
    let others = node.operands.get(1..).unwrap_or_default();
    match &node.compute {
        Compute::Gated { has_bias, .. } => others.iter().step_by(1 + usize::from(*has_bias)).cloned().collect(),
        Compute::ProductConcat { have_bias } | Compute::ProductsOfOne { have_bias, .. } => {
            let mut next = 0;
            let at = have_bias.iter().map(|has_bias| {
                let at = next;
                next += 1 + usize::from(*has_bias);
                at
            });
            at.filter_map(|at| others.get(at)).cloned().collect()
        }
        Compute::QuantizedProduct { norm, end, .. } => {
            let summands = usize::from(matches!(end, ProductEnd::Sum));
            others[usize::from(norm.is_some())..others.len() - summands].to_vec()
        }
        _ => Vec::new(),
    }
}
