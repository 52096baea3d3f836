//! Attention written as two products and a softmax, and the softmax written as maximum, difference, exponential, sum and quotient.

use super::attention_in_f32::{self, find_before_conversion};
use super::found::Found;
use super::pattern::{pattern, Pattern};
use super::rule::{rule, Rule};
use super::views::behind;
use super::{copied_heads, grouped_heads};
use crate::rewrite::graph::{Compute, Node, Operand, Value};
use crate::trace::{Element, Function};

pub(super) const RULES: [Rule; 5] = [
    // e / rowsum(e), e = exp(x - rowmax(x)) -> softmax(x)
    rule!("softmax": div(e = exp(sub(x, per_row(row_max(x)))), per_row(row_sum(e))) => join_softmax),
    // softmax(s * q @ k^T + m) @ v -> one launch that stores no scores
    rule!("attention": matmul(p = softmax({ SCORES }), v) => join_attention),
    // cast16(attention(f32(q), f32(k), f32(v))) -> attention(q, k, v)
    rule!("attention-in-f32": copy(y = attention()) => attention_in_f32::read_16_bits),
    // attention(q, repeat(k, n), repeat(v, n)) -> attention(q, k, v)
    rule!("grouped-heads": attention() => grouped_heads::share_heads),
    // attention(copy(q), copy(k), copy(v), m) -> attention(q, k, v, m), read by strides
    rule!("copied-heads": attention() => copied_heads::read_in_place),
];

/// Scores, which may be scaled, and masked.
const SCORES: Pattern = pattern!(either(add({ SCALED }, added), masked(untyped(hidden), { SCALED }), { SCALED }));

const SCALED: Pattern = pattern!(either(scaled = times(matmul(q, k)), matmul(q, k)));

fn join_softmax(found: &Found) -> Option<Node> {
    let x = found.operand("x").filter(|x| x.is_run_of(found.root().len))?;
    Some(found.replace_by(Compute::Recorded(Function::Softmax(found.columns()?)), vec![x.clone()]))
}

/// Rejoins products, scale, mask and softmax where there is a kernel for heads of that size.
fn join_attention(found: &Found) -> Option<Node> {
    let (facts, product) = (found.facts, found.root());
    let (p, v) = (found.operand("p")?, found.operand("v")?);
    let ([heads, queries, keys], [_, _, size]) = (&p.dims[..], &v.dims[..]) else { return None };
    if found.node("p")?.compute != Compute::Recorded(Function::Softmax(keys.len)) {
        return None;
    }
    // Some models scale queries or keys.
    let ((q, of_q), (k, of_k)) = (find_unscaled(found, "q")?, find_unscaled(found, "k")?);
    let scale = found.affine("scaled").map_or(1., |[factor, _]| factor) * (of_q * of_k);
    let ([of_heads, of_queries, inner], [_, of_inner, of_keys]) = (&q.dims[..], &k.dims[..]) else { return None };
    let (added, hidden) = (found.operand("added"), found.operand("hidden"));
    let fits = (of_heads.len, of_queries.len, of_keys.len) == (heads.len, queries.len, keys.len)
        && inner.len == size.len
        && scale.is_normal()
        && (has_kernel(product.element, size.len)
            || queries.len == 1 && hidden.is_none() && has_kernel_of_one(size.len)
            || has_kernel(Element::F16, size.len) && find_before_conversion(facts, found.at, [&q, &k, v]).is_some());
    let k = Operand { dims: vec![k.dims[0], *of_keys, *of_inner], ..k.clone() };
    let operands = [q, k, v.clone()].into_iter().chain(added.or(hidden).cloned()).collect();
    fits.then(|| found.replace_by(Compute::Attention { scale, in_f32: false }, operands))
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

/// The operand of this name without the factor that it is multiplied by, if nothing else reads that product; and the factor.
fn find_unscaled(found: &Found, name: &str) -> Option<(Operand, f32)> {
    let (facts, operand) = (found.facts, found.operand(name)?);
    let before = || {
        let (Value::Node(at), 0) = (operand.value, operand.first) else { return None };
        let (Function::Affine(factor, 0.), [from]) = (facts.recorded(at)?, &facts.node(at).operands[..]) else {
            return None;
        };
        let fits = facts.users[at].len() == 1 && facts.have_type_of(facts.node(at), [from]);
        behind(operand, from).filter(|_| fits).map(|before| (before, *factor))
    };
    Some(before().unwrap_or_else(|| (operand.clone(), 1.)))
}
