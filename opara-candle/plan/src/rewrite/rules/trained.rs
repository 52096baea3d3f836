//! Rules for graphs of which gradients are computed.

use super::found::Found;
use super::product::Product;
use super::products::ACTIVATIONS;
use super::rule::{rule, Rule};
use crate::rewrite::compute::Compute;
use crate::rewrite::graph::{strides_over, Node, Operand, Value};
use crate::trace::{Element, Function};

pub(super) const RULES: [Rule; 2] = [
    // f(batch_norm(x)) -> one launch, which keeps x
    rule!("activated-batch-norm": unary(y) => join_norm),
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

fn join_norm(found: &Found) -> Option<Node> {
    let (facts, y) = (found.facts, found.operand("y")?);
    let Value::Node(at) = y.value else { return None };
    let (norm, Compute::Recorded(Function::Unary(name))) = (facts.node(at), &found.root().compute) else { return None };
    let Compute::BatchNorm { epsilon } = norm.compute else { return None };
    let [images, channels, pixels] = norm.operands.first()?.dims[..] else { return None };
    let shape = [images, channels, pixels].map(|dim| dim.len);
    // The norm has its channels outside.
    let lies = [(shape[0], shape[2]), (shape[1], shape[0] * shape[2]), (shape[2], 1)];
    let strides = lies.map(|(len, stride)| if len == 1 { 0 } else { stride });
    let is_all = y.first == 0 && strides_over(&y.dims, &shape)? == strides && facts.users[at].len() == 1;
    let is_known = ACTIVATIONS.contains(&&name[..]) && facts.have_type_of(found.root(), [y]);
    let compute = Compute::ActivatedBatchNorm { epsilon, activation: name.clone() };
    (is_all && is_known).then(|| found.replace_by(compute, norm.operands.clone()))
}
