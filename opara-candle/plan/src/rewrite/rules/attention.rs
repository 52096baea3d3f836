//! Attention written as two products and a softmax, and the softmax written as maximum, difference, exponential, sum and quotient.

use super::attention_in_f32::{self, find_before_conversion};
use super::facts::Facts;
use super::found::Found;
use super::pattern::{pattern, Pattern};
use super::rule::{rule, Rule};
use super::scores::Product;
use super::{copied_heads, grouped_heads, queries_together};
use crate::rewrite::compute::Compute;
use crate::rewrite::graph::{Node, Operand};
use crate::rewrite::scores::{Mask, Scores};
use crate::trace::{Element, Function};

pub(super) const RULES: [Rule; 5] = [
    // e / rowsum(e), e = exp(x - rowmax(x)) or exp(x); exp(y - log(rowsum(exp(y)))), y = x - rowmax(x) -> softmax(x)
    rule!("softmax": div(e = exp(sub(x, per_row(row_max(x)))), per_row(row_sum(e))) => join_softmax;
        div(e = exp(x), per_row(row_sum(e))) => join_softmax;
        exp(sub(y = sub(x, per_row(row_max(x))), per_row(log(row_sum(exp(y)))))) => join_softmax),
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
    let ([heads, queries, keys], [_, _, of_values]) = (&p.dims[..], &v.dims[..]) else { return None };
    let Product { q, k, mut scores, factors, masks, element, is_widened } = find_scores(facts, p, keys.len)?;
    let ([of_heads, of_queries, inner], [_, of_inner, of_keys]) = (&q.dims[..], &k.dims[..]) else { return None };
    scores.in_f32 = is_widened && product.element != Element::F32;
    let sizes = [inner.len, of_values.len];
    let fits = (of_heads.len, of_queries.len, of_keys.len) == (heads.len, queries.len, keys.len)
        && element == product.element
        && facts.have_type_of(product, [&q, &k, v])
        && scores.scale.is_normal()
        && scores.scale > 0.
        && (has_kernel(product.element, sizes)
            || queries.len == 1 && is_for_one(&scores) && has_kernel_of_one(sizes)
            || has_kernel(Element::F16, sizes) && find_before_conversion(facts, found.at, [&q, &k, v]).is_some());
    let k = Operand { dims: vec![k.dims[0], *of_keys, *of_inner], ..k.clone() };
    let q = queries_together::apart(&q, keys.len, &masks).unwrap_or(q);
    let operands = [q, k, v.clone()].into_iter().chain(factors.into_iter().chain(masks).cloned()).collect();
    fits.then(|| found.replace_by(Compute::Attention(scores), operands))
}

/// The product whose softmax weights are, which may be rounded to another type. Exponentials that a mask of ones and zeros takes out before
/// they are summed up are those of scores of minus infinity.
fn find_scores<'a>(facts: &'a Facts<'a>, weights: &Operand, keys: u64) -> Option<Product<'a>> {
    let at = facts.only(weights)?;
    let at = match (&facts.node(at).compute, &facts.node(at).operands[..]) {
        (Compute::Recorded(Function::Copy), [from]) => facts.only(from)?,
        _ => at,
    };
    let softmax = facts.node(at);
    if softmax.compute == Compute::Recorded(Function::Softmax(keys)) {
        return Product::behind(facts, facts.only(softmax.operands.first()?)?);
    }
    const MASKED: Pattern = pattern!(div(w = mul(exp(sub(x, per_row(row_max(x)))), mask), per_row(row_sum(w))));
    Found::find_all(facts, &MASKED, at).iter().find_map(|found| {
        let mask = found.operand("mask").filter(|mask| facts.is_truth(mask))?;
        // The difference reads them, and the maximum.
        let scores = facts.whole(found.operand("x")?).filter(|&of| facts.users[of].len() == 2)?;
        let hides = Mask::Filled { number: f32::NEG_INFINITY, where_zero: true };
        let product = Product::behind(facts, scores)?;
        (found.columns()? == keys).then(|| product.masked(hides, vec![mask]))
    })
}

/// Whether there is a kernel for heads of these sizes, of queries and keys and of values: rows are multiples of 16 bytes.
fn has_kernel(element: Element, sizes: [u64; 2]) -> bool {
    let most = if element == Element::F32 { 80 } else { 160 };
    sizes.iter().all(|size| *size <= most && (size * element.bytes()).is_multiple_of(16))
}

/// Whether the kernel for one query has such scores: none that something else stands for.
fn is_for_one(scores: &Scores) -> bool {
    scores.cap.is_none() && !scores.in_f32 && scores.masks.iter().all(|mask| matches!(mask, Mask::Added(_)))
}

/// Whether there is a kernel for one query of heads of this size.
fn has_kernel_of_one([size, of_values]: [u64; 2]) -> bool {
    size == of_values && size <= 256 && size.is_multiple_of(8)
}
