//! ReLU behind a concatenation, and sums before it, such as what a cell of NASNet ends with.

use super::facts::Facts;
use super::found::Found;
use super::rule::{rule, Rule};
use crate::rewrite::compute::Compute;
use crate::rewrite::graph::{Node, Operand};

pub(super) const RULES: [Rule; 2] = [
    // relu([x1 | .. | xn]) -> one launch
    rule!("concat-relu": relu(c = concat()) => add_relu),
    // relu([x1 + y1 | ..]) -> one launch
    rule!("concat-sums": any() => add_sums),
];

/// Parts that one launch takes.
const MOST: usize = 8;

/// Whether nothing reads a node but a concatenation, of which nothing but ReLU is read.
pub(super) fn ends_in_relu(facts: &Facts, at: usize) -> bool {
    let is_concat = |&at: &usize| facts.is_of(at, "concat") && facts.node(at).operands.len() <= MOST;
    let relu = facts.reader(at).filter(is_concat).and_then(|concat| facts.reader(concat));
    relu.is_some_and(|at| facts.is_of(at, "relu"))
}

fn add_relu(found: &Found) -> Option<Node> {
    let concat = found.node("c").filter(|concat| concat.element.is_float())?;
    let Compute::Concat { rows, widths } = &concat.compute else { return None };
    let compute = Compute::ConcatRelu { rows: *rows, widths: widths.clone(), are_sums: vec![false; widths.len()] };
    (widths.len() <= MOST).then(|| found.replace_by(compute, concat.operands.clone()))
}

fn add_sums(found: &Found) -> Option<Node> {
    let (facts, concat) = (found.facts, found.root());
    let Compute::ConcatRelu { rows, widths, are_sums } = &concat.compute else { return None };
    if are_sums.contains(&true) {
        return None;
    }
    let sum = |part: &Operand| {
        let sum = facts.node(facts.only(part).filter(|&sum| facts.is_of(sum, "add"))?);
        let fits = sum.operands.iter().all(|summand| summand.is_run_of(part.len()));
        (fits && facts.have_type_of(concat, &sum.operands)).then(|| sum.operands.clone())
    };
    let parts: Vec<_> = concat.operands.iter().map(|part| sum(part).ok_or(part)).collect();
    let are_sums: Vec<bool> = parts.iter().map(Result::is_ok).collect();
    let has_sum = are_sums.contains(&true);
    let operands = parts.into_iter().flat_map(|part| part.unwrap_or_else(|part| vec![part.clone()])).collect();
    let compute = Compute::ConcatRelu { rows: *rows, widths: widths.clone(), are_sums };
    has_sum.then(|| found.replace_by(compute, operands))
}
