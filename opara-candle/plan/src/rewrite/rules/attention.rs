//! Attention written as two products and a softmax.

use super::attention_in_f32::Converted;
use super::views::behind;
use super::{Facts, Replacement};
use crate::rewrite::graph::{Compute, Node, Operand, Value};
use crate::trace::{Element, Function};

/// Rejoins products, scale, mask and softmax where there is a kernel for heads of that size.
pub(super) fn at(facts: &Facts, at: usize) -> Option<Replacement> {
    let product = facts.node(at);
    let (Function::Matmul, [p, v]) = (facts.recorded(at)?, &product.operands[..]) else { return None };
    let [heads, queries, keys] = p.dims[..] else { return None };
    let [_, _, size] = v.dims[..] else { return None };
    let len = heads.len * queries.len * keys.len;
    let mut launches = product.launches;
    // The node that is an operand, if that alone reads it and all of it.
    let mut only = |operand: &Operand| {
        let of = facts.only(operand)?;
        let node = facts.node(of);
        launches += node.launches;
        (node.len == len && node.element == product.element && operand.len() == len).then_some(of)
    };
    let softmax = only(p)?;
    if *facts.recorded(softmax)? != Function::Softmax(keys.len) {
        return None;
    }
    let mut scores = only(&facts.node(softmax).operands[0])?;
    let (mut added, mut hidden) = (None, None);
    if let Some([of, mask]) = facts.binary(scores, "add") {
        added = Some(mask);
        scores = only(of)?;
    } else if let Some([mask, of]) = facts.masked(scores) {
        hidden = Some(mask);
        scores = only(of)?;
    }
    let mut scale = 1.;
    if let Function::Affine(factor, 0.) = *facts.recorded(scores)? {
        scale = factor;
        scores = only(&facts.node(scores).operands[0])?;
    }
    let (Function::Matmul, [q, k]) = (facts.recorded(scores)?, &facts.node(scores).operands[..]) else { return None };
    // Some models scale queries or keys.
    let [(q, of_q), (k, of_k)] = [q, k].map(|operand| match unscaled(facts, operand) {
        Some(Unscaled { operand, factor, at }) => {
            launches += facts.node(at).launches;
            (operand, factor)
        }
        None => (operand.clone(), 1.),
    });
    scale *= of_q * of_k;
    let (q, k) = (&q, &k);
    let ([of_heads, of_queries, inner], [_, of_inner, of_keys]) = (&q.dims[..], &k.dims[..]) else { return None };
    let fits = (of_heads.len, of_queries.len, of_keys.len) == (heads.len, queries.len, keys.len)
        && inner.len == size.len
        && scale.is_normal()
        && (has_kernel(product.element, size.len)
            || queries.len == 1 && hidden.is_none() && has_kernel_of_one(size.len)
            || has_kernel(Element::F16, size.len) && Converted::of(facts, at, [q, k, v]).is_some())
        && facts.have_type_of(product, [q, k, v].into_iter().chain(added));
    let k = Operand { dims: vec![k.dims[0], *of_keys, *of_inner], ..k.clone() };
    let operands = [q.clone(), k, v.clone()].into_iter().chain(added.or(hidden).cloned()).collect();
    let saved = launches - product.launches;
    let compute = Compute::Attention { scale, in_f32: false };
    fits.then(|| Replacement { node: Node { compute, operands, launches, ..product.clone() }, saved })
}

/// Whether there is a kernel for heads of this size.
fn has_kernel(element: Element, size: u64) -> bool {
    match element {
        Element::F32 => matches!(size, 32 | 40 | 64 | 80),
        _ => matches!(size, 32 | 40 | 64 | 80 | 96 | 128 | 160),
    }
}

/// Whether there is a kernel for one query of heads of this size.
fn has_kernel_of_one(size: u64) -> bool {
    size <= 256 && size.is_multiple_of(8)
}

/// An operand that is multiplied by a factor.
struct Unscaled {
    operand: Operand,
    factor: f32,
    /// The node that multiplies it.
    at: usize,
}

/// The operand without its factor, if nothing else reads the product.
fn unscaled(facts: &Facts, operand: &Operand) -> Option<Unscaled> {
    let (Value::Node(at), 0) = (operand.value, operand.first) else { return None };
    let (Function::Affine(factor, 0.), [from]) = (facts.recorded(at)?, &facts.node(at).operands[..]) else {
        return None;
    };
    let before = behind(operand, from)?;
    let fits = facts.users[at].len() == 1 && facts.have_type_of(facts.node(at), [from]);
    fits.then_some(Unscaled { operand: before, factor: *factor, at })
}
