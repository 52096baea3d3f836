//! ReLU behind a concatenation, and sums before it, such as what a cell of NASNet ends with.

use super::facts::Activated;
use super::{Facts, Replacement};
use crate::rewrite::graph::{Compute, Node, Operand};

/// Parts that one launch takes.
const MOST: usize = 8;

/// Whether nothing reads a node but a concatenation, of which nothing but ReLU is read.
pub(super) fn ends_in_relu(facts: &Facts, at: usize) -> bool {
    let reader = |of: usize| match facts.users[of][..] {
        [reader] if reader < facts.graph.nodes.len() => Some(reader),
        _ => None,
    };
    let concat = reader(at).filter(|&at| matches!(facts.node(at).compute, Compute::Concat { .. }));
    let relu = concat.filter(|&at| facts.node(at).operands.len() <= MOST).and_then(reader);
    relu.is_some_and(|at| facts.unary(at, "relu").is_some())
}

/// Lets `max(x, 0)` of a concatenation that nothing else reads be part of it.
pub(super) fn relu(facts: &Facts, at: usize) -> Option<Replacement> {
    let Activated { name, of, launches } = facts.activation(at)?;
    let concat = facts.node(of);
    let Compute::Concat { rows, widths } = &concat.compute else { return None };
    let fits = name == "relu" && widths.len() <= MOST && concat.element.is_float();
    let are_sums = vec![false; widths.len()];
    let compute = Compute::ConcatRelu { rows: *rows, widths: widths.clone(), are_sums };
    let node = Node { compute, launches: launches + concat.launches, ..concat.clone() };
    fits.then_some(Replacement { node, saved: launches })
}

/// Lets sums that nothing else reads be part of such a concatenation.
pub(super) fn sums(facts: &Facts, at: usize) -> Option<Replacement> {
    let concat = facts.node(at);
    let Compute::ConcatRelu { rows, widths, are_sums } = &concat.compute else { return None };
    if are_sums.contains(&true) {
        return None;
    }
    let sum = |part: &Operand| {
        let sum = facts.only(part)?;
        let summands = facts.binary(sum, "add")?;
        let fits = summands.iter().all(|summand| summand.is_run_of(part.len())) && facts.have_type_of(concat, summands);
        fits.then_some((summands, facts.node(sum).launches))
    };
    let sums: Vec<_> = concat.operands.iter().map(sum).collect();
    let saved = sums.iter().flatten().map(|(_, launches)| launches).sum();
    let operands = concat.operands.iter().zip(&sums).flat_map(|(part, sum)| match sum {
        Some(([a, b], _)) => vec![(*a).clone(), (*b).clone()],
        None => vec![part.clone()],
    });
    let are_sums: Vec<bool> = sums.iter().map(Option::is_some).collect();
    let has_sum = are_sums.contains(&true);
    let compute = Compute::ConcatRelu { rows: *rows, widths: widths.clone(), are_sums };
    let node = Node { compute, operands: operands.collect(), launches: concat.launches + saved, ..concat.clone() };
    has_sum.then_some(Replacement { node, saved })
}
