//! Layer norms and RMS norms that are written as sums, squares and quotients.

use super::normalised::Normalised;
use super::{Facts, Replacement};
use crate::rewrite::graph::{strides_over, Compute, Node, Operand};

/// Lets a norm of rows be one launch: with a weight and a bias, or with a weight that no bias follows.
pub(super) fn at(facts: &Facts, at: usize) -> Option<Replacement> {
    with_bias(facts, at).or_else(|| with_weight(facts, at))
}

fn with_bias(facts: &Facts, at: usize) -> Option<Replacement> {
    let [a, b] = facts.binary(at, "add")?;
    [(a, b), (b, a)].into_iter().find_map(|(scaled, bias)| {
        let product = facts.only(scaled)?;
        let (norm, weight) = weighted(facts, product)?;
        let fits = !norm.is_rms && facts.have_type_of(facts.node(product), [bias]);
        (fits && is_of_columns(facts, bias, &norm, at)).then_some(())?;
        Some(better(facts, at, norm, vec![product], vec![weight.clone(), bias.clone()]))
    })
}

fn with_weight(facts: &Facts, at: usize) -> Option<Replacement> {
    let (norm, weight) = weighted(facts, at)?;
    // Its bias makes it part of that.
    let has_bias = |&user: &usize| {
        let is_sum = user < facts.graph.nodes.len() && facts.binary(user, "add").is_some();
        is_sum && facts.node(user).operands.iter().any(|bias| is_of_columns(facts, bias, &norm, user))
    };
    let stays = !norm.is_rms && facts.users[at].iter().any(has_bias);
    let operands = vec![weight.clone()];
    (!stays).then(|| better(facts, at, norm, Vec::new(), operands))
}

/// Normalised rows and the weight that a node multiplies them by.
fn weighted<'a>(facts: &'a Facts, at: usize) -> Option<(Normalised, &'a Operand)> {
    let [a, b] = facts.binary(at, "mul")?;
    [(a, b), (b, a)].into_iter().find_map(|(of, weight)| {
        let fits = facts.have_type_of(facts.node(at), [of, weight]);
        let norm = Normalised::of(facts, of).filter(|norm| fits && is_of_columns(facts, weight, norm, at))?;
        Some((norm, weight))
    })
}

/// Whether an operand of a node is one number a column.
fn is_of_columns(facts: &Facts, vector: &Operand, norm: &Normalised, at: usize) -> bool {
    let strides = strides_over(&vector.dims, &[facts.node(at).len / norm.columns, norm.columns]);
    strides.is_some_and(|strides| strides[0] == 0 && strides[1] > 0)
}

fn better(facts: &Facts, at: usize, norm: Normalised, products: Vec<usize>, vectors: Vec<Operand>) -> Replacement {
    let node = facts.node(at);
    let Normalised { x, columns, epsilon, is_rms, parts } = norm;
    let saved = parts.into_iter().chain(products).map(|part| facts.node(part).launches).sum();
    let operands = std::iter::once(x).chain(vectors).collect();
    let compute = Compute::RowNorm { columns, epsilon, is_rms };
    Replacement { node: Node { compute, operands, launches: node.launches + saved, ..node.clone() }, saved }
}
