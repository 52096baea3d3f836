//! Rules for graphs of which gradients are computed.

use super::facts::Facts;
use super::found::Found;
use super::norms::Norm;
use super::product::Product;
use super::products::{by_rows, ACTIVATIONS};
use super::rule::{rule, Rule};
use crate::rewrite::compute::Compute;
use crate::rewrite::graph::{strides_over, Node, Operand, Value};
use crate::trace::{Element, Function};

pub(super) const RULES: [Rule; 5] = [
    // candle's norm of rows -> this library's, which reads them once
    rule!("norm-of-rows": norm() => own_norm),
    // x @ w in 16 bits -> a product by the rows of its weight; of f32 another rule makes it
    rule!("product-by-rows": matmul() => product_by_rows),
    // c * (x @ w) + y or x @ w + b + y in 16 bits -> one product, which begins with y
    rule!("product-sum": add(p = product(), y) => |found| join_sum(found, 1.); add(f = times(p = product()), y) => join_scaled),
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

fn own_norm(found: &Found) -> Option<Node> {
    let node = found.root();
    let is_candles = matches!(node.compute, Compute::Recorded(_));
    let Norm { columns, epsilon, is_rms, .. } = Norm::of(found.facts, found.at).filter(|_| is_candles)?;
    Some(found.replace_by(Compute::RowNorm { columns, epsilon, is_rms }, node.operands.clone()))
}

fn product_by_rows(found: &Found) -> Option<Node> {
    has_16_bits(found.root()).then(|| by_rows(found)).flatten()
}

fn has_16_bits(node: &Node) -> bool {
    matches!(node.element, Element::F16 | Element::Bf16)
}

fn join_scaled(found: &Found) -> Option<Node> {
    let [factor, _] = found.affine("f")?;
    let has_bias = found.product("p")?.bias.is_some();
    (!has_bias).then(|| join_sum(found, factor)).flatten()
}

fn join_sum(found: &Found, factor: f32) -> Option<Node> {
    let (facts, root, y) = (found.facts, found.root(), found.operand("y")?);
    let at = facts.only(found.operand("p")?)?;
    let product = found.product("p")?;
    let is_all = y.is_whole(root.len) && facts.graph.len(y.value) == root.len;
    let waits_for_little = match y.value {
        Value::Input(_) => true,
        Value::Node(of) => is_computed_from(facts, at, of) || is_small_beside(facts, &product, of),
    };
    if !has_16_bits(root) || !is_all || !waits_for_little || !facts.have_type_of(root, [&product.x, y]) {
        return None;
    }
    let operands = [product.x.clone()].into_iter().chain(product.vectors()).chain([y.clone()]).collect();
    Some(found.replace_by(Compute::ProductSum { factor }, operands))
}

/// Whether a product takes a small part of the time of a node, which is a product of the same size: then it may wait for that. Others run
/// beside each other.
fn is_small_beside(facts: &Facts, product: &Product, at: usize) -> bool {
    const MANY: u64 = 8;
    let inner = |product: &Product| product.x.dims.last().map_or(0, |dim| dim.len);
    Product::of(facts, at).is_some_and(|other| inner(&other) >= MANY * inner(product))
}

/// Whether a node is computed from an earlier one.
fn is_computed_from(facts: &Facts, last: usize, first: usize) -> bool {
    let mut is_from = vec![false; last + 1];
    for at in first..=last {
        let reads = |operand: &Operand| matches!(operand.value, Value::Node(of) if is_from[of]);
        let is = at == first || facts.node(at).operands.iter().any(reads);
        is_from[at] = is;
    }
    first < last && is_from[last]
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
