//! Norms of a sum: what a Transformer's layer does behind attention, and behind its feed-forward network.

use super::{Facts, Replacement};
use crate::rewrite::graph::{Compute, Node, Operand, Value};
use crate::trace::Function;

/// Lets a norm of a sum be one launch with it. A sum that others read, too, comes beside its norm, if that is an RMS norm.
pub(super) fn at(facts: &Facts, at: usize) -> Option<Replacement> {
    norm_of_sum(facts, at).or_else(|| sum_beside_norm(facts, at))
}

/// A norm of a sum that nothing else reads.
fn norm_of_sum(facts: &Facts, at: usize) -> Option<Replacement> {
    let Norm { operand, vectors, columns, epsilon, is_rms } = Norm::of(facts, at)?;
    let [x, residual] = sum(facts, facts.only(operand)?)?;
    let node = facts.node(at);
    let operands = [x.clone(), residual.clone()].into_iter().chain(vectors.iter().cloned()).collect();
    let compute = Compute::NormOfSum { columns, epsilon, is_rms };
    let node = Node { compute, operands, launches: node.launches + 1, ..node.clone() };
    Some(Replacement { node, saved: 1 })
}

/// A sum of which there is one RMS norm.
fn sum_beside_norm(facts: &Facts, at: usize) -> Option<Replacement> {
    let [x, residual] = sum(facts, at)?;
    let is_norm = |of: usize| of < facts.users.len() && Norm::of(facts, of).is_some_and(|norm| norm.is_rms);
    let mut norms = facts.users[at].iter().copied().filter(|&of| is_norm(of));
    let (Some(of), None) = (norms.next(), norms.next()) else { return None };
    let Norm { operand, vectors: [weight], columns, epsilon, .. } = Norm::of(facts, of)? else { return None };
    let comes_before = |operand: &Operand| !matches!(operand.value, Value::Node(of) if of >= at);
    // Of a sum that nothing else reads, the norm is enough.
    if facts.whole(operand) != Some(at) || facts.users[at].len() == 1 || !comes_before(weight) {
        return None;
    }
    let node = facts.node(at);
    let operands = vec![x.clone(), residual.clone(), weight.clone()];
    let compute = Compute::SumBesideNorm { norm: of, columns, epsilon };
    Some(Replacement { node: Node { compute, operands, ..node.clone() }, saved: 1 })
}

/// A norm of rows.
struct Norm<'a> {
    operand: &'a Operand,
    /// The weight, and the bias of a layer norm.
    vectors: &'a [Operand],
    columns: u64,
    epsilon: f32,
    is_rms: bool,
}

impl<'a> Norm<'a> {
    /// The one that a node is, if all of it is of one type.
    fn of(facts: &'a Facts, at: usize) -> Option<Self> {
        let node = facts.node(at);
        let (operand, vectors) = node.operands.split_first()?;
        let (columns, epsilon, is_rms) = match node.compute {
            Compute::Recorded(Function::LayerNorm(columns, epsilon)) => (columns, epsilon, false),
            Compute::Recorded(Function::RmsNorm(columns, epsilon)) => (columns, epsilon, true),
            Compute::RowNorm { columns, epsilon, is_rms } => (columns, epsilon, is_rms),
            _ => return None,
        };
        // A layer norm without a bias has no launch with a sum.
        if vectors.len() != if is_rms { 1 } else { 2 } {
            return None;
        }
        let norm = Self { operand, vectors, columns, epsilon, is_rms };
        facts.have_type_of(node, &node.operands).then_some(norm)
    }
}

/// The operands of a sum of two values, neither of which repeats.
fn sum<'a>(facts: &'a Facts, at: usize) -> Option<[&'a Operand; 2]> {
    let operands = facts.binary(at, "add")?;
    let node = facts.node(at);
    let fits = operands.iter().all(|operand| operand.is_run_of(node.len)) && facts.have_type_of(node, operands);
    fits.then_some(operands)
}
