//! Products with a weight, and what follows them.

use super::found::{self, Found};
use super::product::Product;
use super::products_of_one;
use super::rule::{rule, Rule};
use crate::rewrite::compute::Compute;
use crate::rewrite::graph::{strides_over, Node, Operand};
use crate::trace::{Dim, Element};

pub(super) const RULES: [Rule; 6] = [
    // x @ w + b -> one product
    rule!("product-bias": add(p = product(), b) => add_bias),
    // [x @ w1 | .. | x @ wn] -> x @ [w1 | .. | wn]
    rule!("product-concat": concat() => join_columns),
    // f(x @ w1) * (x @ w2) -> one product with [w1 | w2]
    rule!("gated-unit": mul(f = unary(gate = product()), up = product()) => join_gated),
    // f(x @ w + b) -> an epilogue of the product
    rule!("product-activation": unary(p = product()) => add_activation; mul(p = product(), sigmoid(p)) => add_activation),
    // x @ w1, .., x @ wn, read as heads -> views of x @ [w1 | .. | wn]
    rule!("products-of-one": product() => products_of_one::join_products),
    // x @ w in f32 -> the fastest library and algorithm; candle's uses no tensor cores in f32
    rule!("product-in-f32": matmul() => use_library),
];

/// Activations that can be part of a product.
pub(super) const ACTIVATIONS: [&str; 4] = ["relu", "gelu", "gelu_erf", "silu"];

fn add_bias(found: &Found) -> Option<Node> {
    let product = found.product("p").filter(|product| product.bias.is_none())?;
    let bias = found.operand("b").filter(|bias| found.facts.is_constant(bias))?;
    let [0, stride] = strides_over(&bias.dims, &[product.rows(), product.columns()])?[..] else { return None };
    let bias = Operand { dims: vec![Dim { len: product.columns(), stride }], ..bias.clone() };
    Some(found.replace_by(Compute::Linear { activation: None }, vec![product.x, product.weight, bias]))
}

fn add_activation(found: &Found) -> Option<Node> {
    let product = found.product("p")?;
    let activation = found::activation(found.root()).filter(|name| ACTIVATIONS.contains(name))?;
    let operands = [product.x.clone()].into_iter().chain(product.vectors()).collect();
    Some(found.replace_by(Compute::Linear { activation: Some(activation.into()) }, operands))
}

fn join_gated(found: &Found) -> Option<Node> {
    let (gate, up) = (found.product("gate")?, found.product("up")?);
    let activation = found::activation(found.node("f")?).filter(|name| ACTIVATIONS.contains(name))?;
    let is_alike = gate.columns() == up.columns() && gate.bias.is_some() == up.bias.is_some();
    if gate.x != up.x || !is_alike || !found.facts.have_type_of(found.root(), [&gate.x]) {
        return None;
    }
    let compute = Compute::Gated { activation: activation.into(), has_bias: gate.bias.is_some() };
    let operands = [gate.x.clone()].into_iter().chain(gate.vectors()).chain(up.vectors()).collect();
    Some(found.replace_by(compute, operands))
}

/// Products of one operand that lie beside each other, such as those for queries, keys and values.
fn join_columns(found: &Found) -> Option<Node> {
    let (facts, concat) = (found.facts, found.root());
    let Compute::Concat { rows, widths } = &concat.compute else { return None };
    let product = |operand: &Operand| Product::of(facts, facts.only(operand)?);
    let products = concat.operands.iter().map(product).collect::<Option<Vec<_>>>()?;
    let x = products.first().filter(|_| products.len() > 1)?.x.clone();
    let fits =
        |(product, &width): (&Product, &u64)| product.x == x && product.rows() == *rows && product.columns() == width;
    if !products.iter().zip(widths).all(fits) || !facts.have_type_of(concat, [&x]) {
        return None;
    }
    let compute = Compute::ProductConcat { have_bias: products.iter().map(|product| product.bias.is_some()).collect() };
    let operands = [x].into_iter().chain(products.into_iter().flat_map(Product::vectors)).collect();
    Some(found.replace_by(compute, operands))
}

fn use_library(found: &Found) -> Option<Node> {
    let is_asked = found.root().element == Element::F32 && !found.facts.is_given(found.at);
    is_asked.then(|| by_rows(found)).flatten()
}

/// A product by the rows of its weight.
pub(super) fn by_rows(found: &Found) -> Option<Node> {
    let Product { x, weight, .. } = Product::of(found.facts, found.at)?;
    Some(found.replace_by(Compute::Linear { activation: None }, vec![x, weight]))
}
