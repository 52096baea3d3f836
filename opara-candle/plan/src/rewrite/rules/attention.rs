//! Attention written as two products and a softmax.

use super::super::graph::{Compute, Graph, Operand, Value};
use super::Applied;
use crate::trace::{Element, Function};

/// Rejoins products, scale, mask and softmax where there is a kernel for heads of that size.
pub(super) fn apply(graph: &mut Graph) -> Applied {
    let (users, mut applied) = (graph.users(), Applied::default());
    for at in 0..graph.nodes.len() {
        let Some(Found { scale, operands, launches }) = joined(graph, &users, at) else { continue };
        let node = &mut graph.nodes[at];
        node.compute = Compute::Attention { scale };
        node.operands = operands;
        applied.times += 1;
        applied.saved += launches - node.launches;
        node.launches = launches;
    }
    applied
}

struct Found {
    scale: f32,
    operands: Vec<Operand>,
    launches: usize,
}

/// The attention that this product is.
fn joined(graph: &Graph, users: &[Vec<usize>], at: usize) -> Option<Found> {
    let product = &graph.nodes[at];
    let mut launches = product.launches;
    // The node that is an operand, if that alone reads it and all of it.
    let mut only = |operand: &Operand, len: u64| {
        let Value::Node(of) = operand.value else { return None };
        let node = &graph.nodes[of];
        let is_only = operand.is_whole(len) && node.len == len && users[of].len() == 1;
        launches += node.launches;
        (is_only && node.element == product.element).then_some(node)
    };
    let (Compute::Recorded(Function::Matmul), [p, v]) = (&product.compute, &product.operands[..]) else { return None };
    let [heads, queries, keys] = p.dims[..] else { return None };
    let [_, _, size] = v.dims[..] else { return None };
    let is_known = matches!((size.len, product.element), (32 | 64, _) | (128, Element::F16 | Element::Bf16));
    let len = heads.len * queries.len * keys.len;
    let softmax = only(p, len)?;
    if softmax.compute != Compute::Recorded(Function::Softmax(keys.len)) || !is_known {
        return None;
    }
    let mut scores = only(&softmax.operands[0], len)?;
    let mut mask = None;
    if matches!(&scores.compute, Compute::Recorded(Function::Binary(name)) if name == "add") {
        mask = Some(scores.operands[1].clone());
        scores = only(&scores.operands[0], len)?;
    }
    let mut scale = 1.;
    if let Compute::Recorded(Function::Affine(factor, 0.)) = scores.compute {
        scale = factor;
        scores = only(&scores.operands[0], len)?;
    }
    let (Compute::Recorded(Function::Matmul), [q, k]) = (&scores.compute, &scores.operands[..]) else { return None };
    let ([of_heads, of_queries, inner], [_, of_inner, of_keys]) = (&q.dims[..], &k.dims[..]) else { return None };
    let fits = (of_heads.len, of_queries.len, of_keys.len) == (heads.len, queries.len, keys.len)
        && inner.len == size.len
        && scale.is_normal()
        && [q, k, v].iter().all(|operand| graph.element(operand.value) == product.element)
        && mask.as_ref().is_none_or(|mask| graph.element(mask.value) == product.element);
    let k = Operand { dims: vec![k.dims[0], *of_keys, *of_inner], ..k.clone() };
    let operands = [q.clone(), k, v.clone()].into_iter().chain(mask).collect();
    fits.then_some(Found { scale, operands, launches })
}
