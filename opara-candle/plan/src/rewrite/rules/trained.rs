//! Rules for graphs of which gradients are computed.

use super::found::Found;
use super::product::Product;
use super::products::ACTIVATIONS;
use super::rule::{rule, Rule};
use crate::rewrite::compute::Compute;
use crate::rewrite::graph::{Node, Operand};
use crate::trace::{Element, Function};

pub(super) const RULES: [Rule; 1] = [
    // f(x) @ w + b -> one product, which keeps x
    rule!("activated-product": product() => join_activation),
];

/// Multiplications of a product that is one launch with the activation before it.
const MOST: u64 = 1 << 24;

fn join_activation(found: &Found) -> Option<Node> {
    let (facts, product) = (found.facts, Product::of(found.facts, found.at)?);
    let is_small = product.rows().saturating_mul(product.columns()).saturating_mul(product.x.dims[1].len) <= MOST;
    let of = facts.node(facts.only(&product.x).filter(|_| is_small && found.root().element == Element::F32)?);
    let Compute::Recorded(Function::Unary(name)) = &of.compute else { return None };
    let before = of.operands.first().filter(|before| before.is_whole(of.len))?;
    if !ACTIVATIONS.contains(&&name[..]) || !facts.have_type_of(found.root(), [before]) {
        return None;
    }
    let x = Operand { dims: product.x.dims.clone(), ..before.clone() };
    let compute = Compute::ActivatedProduct { activation: name.clone() };
    Some(found.replace_by(compute, [x].into_iter().chain(product.vectors()).collect()))
}
