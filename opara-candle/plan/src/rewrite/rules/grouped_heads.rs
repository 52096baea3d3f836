//! Keys and values that several heads of queries share, which models repeat for each of them.

use super::facts::Facts;
use super::found::Found;
use super::views::through;
use crate::rewrite::compute::Compute;
use crate::rewrite::graph::{strides_over, Node, Operand, Value};
use crate::trace::{Dim, Function};

/// Lets attention read keys and values that were repeated for each head where they came from.
pub(super) fn share_heads(found: &Found) -> Option<Node> {
    let (facts, node) = (found.facts, found.root());
    let (Compute::Attention(_), [q, k, v, mask @ ..]) = (&node.compute, &node.operands[..]) else { return None };
    let (keys, values) = (find_shared(facts, k)?, find_shared(facts, v)?);
    // Where the items of a batch do not continue each other, all have a dimension for them.
    let batch = [&keys, &values].into_iter().find_map(|shared| (shared.dims.len() == 4).then_some(shared.dims[0].len));
    let [q, k, v] = match batch {
        Some(batch) => [in_batch(q, batch)?, in_batch(&keys, batch)?, in_batch(&values, batch)?],
        None => [q.clone(), keys, values],
    };
    if k.dims[..k.dims.len() - 2].iter().zip(&v.dims).any(|(a, b)| a.len != b.len) {
        return None;
    }
    let operands = [q, k, v].into_iter().chain(mask.iter().cloned()).collect();
    Some(found.replace_by(node.compute.clone(), operands))
}

/// Heads as those of each of so many items.
fn in_batch(heads: &Operand, batch: u64) -> Option<Operand> {
    let [of @ .., tokens, size] = &heads.dims[..] else { return None };
    let count: u64 = of.iter().map(|dim| dim.len).product();
    let shape = [batch, count.checked_div(batch)?, tokens.len, size.len];
    Some(Operand { dims: dims_over(&heads.dims, &shape)?, ..heads.clone() })
}

/// A view's dimensions over a shape of as many elements.
fn dims_over(dims: &[Dim], shape: &[u64]) -> Option<Vec<Dim>> {
    let strides = strides_over(dims, shape)?;
    Some(shape.iter().zip(strides).map(|(&len, stride)| Dim { len, stride }).collect())
}

/// The heads, `(heads, tokens, size)` or `(batch, heads, tokens, size)`, that an operand of attention repeats for several heads of queries.
fn find_shared(facts: &Facts, heads: &Operand) -> Option<Operand> {
    let (mut value, mut first) = (heads.value, heads.first);
    let mut dims: Vec<Vec<Dim>> = heads.dims.iter().map(|&dim| vec![dim]).collect();
    let mut found = None;
    while let (Value::Node(copy), 0) = (value, first) {
        let Some((from, inner)) = repeated(facts, copy) else { break };
        let Some(next) = through(&dims, &inner).and_then(|next| through(&next, &from.dims)) else { break };
        (value, first, dims) = (from.value, from.first, next);
        if let Some(dims) = once(&dims, heads.dims[1].len, heads.dims[2].len) {
            found = Some(Operand { value, first, dims });
        }
    }
    found
}

/// The source of a copy, or of a concatenation of one operand with itself; and the dimensions of that view over the source's elements.
fn repeated<'a>(facts: &'a Facts, copy: usize) -> Option<(&'a Operand, Vec<Dim>)> {
    let node = facts.node(copy);
    let (first, others) = node.operands.split_first()?;
    let len = first.len();
    let inner = match &node.compute {
        Compute::Recorded(Function::Copy) => vec![Dim { len, stride: 1 }],
        Compute::Concat { rows, .. } if others.iter().all(|other| other == first) => {
            let (times, width) = (node.operands.len() as u64, len.checked_div(*rows)?);
            vec![Dim { len: *rows, stride: width }, Dim { len: times, stride: 0 }, Dim { len: width, stride: 1 }]
        }
        _ => return None,
    };
    facts.have_type_of(node, [first]).then_some((first, inner))
}

/// The dimensions of heads without the innermost that repeats them; the outermost by itself if those behind do not continue it.
fn once(dims: &[Vec<Dim>], tokens: u64, size: u64) -> Option<Vec<Dim>> {
    let [heads, rest @ ..] = dims else { return None };
    let repeats = heads.iter().rev().take_while(|dim| dim.stride == 0).count();
    let heads = &heads[..heads.len() - repeats];
    let dims = std::iter::once(heads).chain(rest.iter().map(Vec::as_slice)).collect::<Vec<_>>().concat();
    let product = |dims: &[Dim]| dims.iter().map(|dim| dim.len).product::<u64>();
    let together = dims_over(&dims, &[product(heads), tokens, size]);
    let apart =
        || heads.split_first().and_then(|(items, of)| dims_over(&dims, &[items.len, product(of), tokens, size]));
    together.or_else(apart).filter(|_| repeats > 0)
}
