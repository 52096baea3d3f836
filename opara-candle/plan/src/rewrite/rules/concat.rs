//! Activations of concatenations, such as what a cell of NASNet ends with.

use super::facts::Activated;
use super::{Better, Facts};
use crate::rewrite::graph::{Compute, Node};

/// Lets `max(x, 0)` of a concatenation that nothing else reads be part of it.
pub(super) fn relu(facts: &Facts, at: usize) -> Option<Better> {
    let Activated { name, of, launches } = facts.activation(at)?;
    let concat = facts.node(of);
    let Compute::Concat { rows, widths } = &concat.compute else { return None };
    let compute = Compute::ConcatRelu { rows: *rows, widths: widths.clone() };
    let node = Node { compute, launches: launches + concat.launches, ..concat.clone() };
    (name == "relu").then_some(Better { node, saved: launches })
}
