//! Heads that models copy out of the order of tokens, and masks that are the same for each item of a batch.

use super::facts::Facts;
use super::found::Found;
use super::views::through;
use crate::rewrite::compute::Compute;
use crate::rewrite::graph::{strides_over, Node, Operand, Value};
use crate::trace::{Dim, Function};

/// Lets attention read heads where they were before they were copied, and a mask where it repeats over a batch.
pub(super) fn read_in_place(found: &Found) -> Option<Node> {
    let (facts, node) = (found.facts, found.root());
    let (Compute::Attention(scores), [q, k, v, others @ ..]) = (&node.compute, &node.operands[..]) else { return None };
    let masks = &others[scores.are_divisors.len()..];
    let heads = [q, k, v];
    let lens = [q.dims.first()?.len, q.dims.get(1)?.len, k.dims.get(1)?.len];
    if heads.iter().any(|heads| heads.dims.len() != 3) {
        return None;
    }
    let places = heads.map(|heads| places(facts, heads));
    // A batch has as many items as the first dimension of what was copied, or of the mask.
    let of_copies = places.iter().flatten().filter_map(|place| place.dims[0].first());
    let of_mask = masks.iter().filter_map(|mask| mask.dims.first());
    let mut batches: Vec<u64> = of_copies.chain(of_mask).map(|dim| dim.len).chain([1]).collect();
    batches.retain(|&batch| batch > 0 && heads.iter().all(|heads| heads.dims[0].len.is_multiple_of(batch)));
    let is_view = |shape: &[u64]| masks.iter().all(|mask| strides_over(&mask.dims, shape).is_some());
    let gains = batches.into_iter().filter_map(|batch| {
        let [q, k, v] = places.each_ref().map(|places| places.iter().rev().find_map(|place| place.in_batch(batch)));
        let read = [q?, k?, v?];
        let repeats = !is_view(&lens) && is_view(&[batch, lens[0] / batch, lens[1], lens[2]]);
        let gain = read.iter().map(|(_, copies)| copies).sum::<usize>() + usize::from(repeats);
        (gain > 0).then_some((gain, read))
    });
    let (_, read) = gains.max_by_key(|(gain, _)| *gain)?;
    let operands = read.into_iter().map(|(operand, _)| operand).chain(others.iter().cloned()).collect();
    Some(found.replace_by(node.compute.clone(), operands))
}

/// The memory of heads: as attention reads it, or before a copy.
struct Place {
    value: Value,
    first: u64,
    /// Dimensions over the value, of heads, tokens and elements of a row.
    dims: Vec<Vec<Dim>>,
    /// How many elements 16 bytes are.
    wide: u64,
    /// How often they were copied from there.
    copies: usize,
}

/// The memory of an operand of attention, and of the tensors that it was copied from.
fn places(facts: &Facts, heads: &Operand) -> Vec<Place> {
    let wide = 16 / facts.graph.element(heads.value).bytes();
    let dims = heads.dims.iter().map(|&dim| vec![dim]).collect();
    let mut places = vec![Place { value: heads.value, first: heads.first, dims, wide, copies: 0 }];
    while let Some(Place { value: Value::Node(copy), first: 0, dims, copies, .. }) = places.last() {
        let node = facts.node(*copy);
        let (Some(Function::Copy), [from]) = (facts.recorded(*copy), &node.operands[..]) else { break };
        let Some(dims) = through(dims, &from.dims).filter(|_| facts.have_type_of(node, [from])) else { break };
        places.push(Place { value: from.value, first: from.first, dims, wide, copies: copies + 1 });
    }
    places
}

impl Place {
    /// The heads there as `(batch, heads, tokens, size)`, and how often they were copied; `None` where the kernel would copy them again.
    fn in_batch(&self, batch: u64) -> Option<(Operand, usize)> {
        let [heads, tokens, size] = [0, 1, 2].map(|at| self.dims[at].iter().map(|dim| dim.len).product::<u64>());
        let shape = [batch, heads / batch, tokens, size];
        let strides = strides_over(&self.dims.concat(), &shape)?;
        let are_rows = strides[3] == 1 && strides[..3].iter().chain([&self.first]).all(|n| n.is_multiple_of(self.wide));
        let dims = shape.into_iter().zip(strides).map(|(len, stride)| Dim { len, stride }).collect();
        let operand = Operand { value: self.value, first: self.first, dims };
        (are_rows || self.copies == 0).then_some((operand, self.copies))
    }
}
