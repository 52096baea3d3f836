//! Attention written as two products and a softmax, and the softmax written as maximum, difference, exponential, sum and quotient.

use super::attention_in_f32::{self, find_before_conversion};
use super::facts::Facts;
use super::found::Found;
use super::rule::{rule, Rule};
use super::scores::Product;
use super::{copied_heads, grouped_heads, queries_together};
use crate::rewrite::compute::Compute;
use crate::rewrite::graph::{Node, Operand};
use crate::rewrite::scores::{Mask, Scores};
use crate::trace::{Element, Function};

pub(super) const RULES: [Rule; 5] = [
    // e / rowsum(e), e = exp(x - rowmax(x)) -> softmax(x)
    rule!("softmax": div(e = exp(sub(x, per_row(row_max(x)))), per_row(row_sum(e))) => join_softmax),
    // softmax(s * q @ k^T + m) @ v -> one launch that stores no scores
    rule!("attention": matmul(p, v) => join_attention),
    // cast16(attention(f32(q), f32(k), f32(v))) -> attention(q, k, v)
    rule!("attention-in-f32": copy(y = attention()) => attention_in_f32::read_16_bits),
    // attention(q, repeat(k, n), repeat(v, n)) -> attention(q, k, v)
    rule!("grouped-heads": attention() => grouped_heads::share_heads),
    // attention(copy(q), copy(k), copy(v), m) -> attention(q, k, v, m), read by strides
    rule!("copied-heads": attention() => copied_heads::read_in_place),
];

fn join_softmax(found: &Found) -> Option<Node> {
    let x = found.operand("x").filter(|x| x.is_run_of(found.root().len))?;
    Some(found.replace_by(Compute::Recorded(Function::Softmax(found.columns()?)), vec![x.clone()]))
}

/// Rejoins products, what is done to scores, and softmax where there is a kernel for heads of that size.
fn join_attention(found: &Found) -> Option<Node> {
    let (facts, product) = (found.facts, found.root());
    let (p, v) = (found.operand("p")?, found.operand("v")?);
    let ([heads, queries, keys], [_, _, size]) = (&p.dims[..], &v.dims[..]) else { return None };
    let softmax = facts.node(find_softmax(facts, p)?);
    if softmax.compute != Compute::Recorded(Function::Softmax(keys.len)) {
        return None;
    }
    let Product { q, k, mut scores, factors, masks, element, is_widened } =
        Product::behind(facts, softmax.operands.first()?)?;
    let ([of_heads, of_queries, inner], [_, of_inner, of_keys]) = (&q.dims[..], &k.dims[..]) else { return None };
    scores.in_f32 = is_widened && product.element != Element::F32;
    let fits = (of_heads.len, of_queries.len, of_keys.len) == (heads.len, queries.len, keys.len)
        && inner.len == size.len
        && element == product.element
        && facts.have_type_of(product, [&q, &k, v])
        && scores.scale.is_normal()
        && scores.scale > 0.
        && scores.have_kernel()
        && (has_kernel(product.element, size.len)
            || queries.len == 1 && is_for_one(&scores) && has_kernel_of_one(size.len)
            || has_kernel(Element::F16, size.len) && find_before_conversion(facts, found.at, [&q, &k, v]).is_some());
    let k = Operand { dims: vec![k.dims[0], *of_keys, *of_inner], ..k.clone() };
    let q = queries_together::apart(&q, keys.len, &masks).unwrap_or(q);
    let operands = [q, k, v.clone()].into_iter().chain(factors.into_iter().chain(masks).cloned()).collect();
    fits.then(|| found.replace_by(Compute::Attention(scores), operands))
}

/// The softmax that weights are, which may be rounded to another type.
fn find_softmax(facts: &Facts, weights: &Operand) -> Option<usize> {
    let at = facts.only(weights)?;
    match (&facts.node(at).compute, &facts.node(at).operands[..]) {
        (Compute::Recorded(Function::Copy), [from]) => facts.only(from),
        _ => Some(at),
    }
}

/// Whether there is a kernel for heads of this size.
fn has_kernel(element: Element, size: u64) -> bool {
    match element {
        Element::F32 => matches!(size, 32 | 40 | 64 | 80),
        _ => matches!(size, 32 | 40 | 64 | 80 | 96 | 128 | 160),
    }
}

/// Whether the kernel for one query has such scores: none that something else stands for.
fn is_for_one(scores: &Scores) -> bool {
    scores.cap.is_none() && !scores.in_f32 && scores.masks.iter().all(|mask| matches!(mask, Mask::Added(_)))
}

/// Whether there is a kernel for one query of heads of this size.
fn has_kernel_of_one(size: u64) -> bool {
    size <= 256 && size.is_multiple_of(8)
}
