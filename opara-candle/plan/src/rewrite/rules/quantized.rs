//! Products of few rows with weights of GGUF's blocks, and what stands around them.

use super::facts::Facts;
use super::found::{self, Found};
use super::products::ACTIVATIONS;
use super::rule::{rule, Rule};
use crate::rewrite::compute::{Compute, ProductEnd};
use crate::rewrite::graph::{Node, Operand, Value};
use crate::trace::{BlockType, Function};

pub(super) const RULES: [Rule; 5] = [
    // x @ dequantised(w), few rows -> this library's product, whose weight has one scale for each group
    rule!("quantized-product": of_blocks() => use_own),
    // f(x @ w1) * (x @ w2) -> one product with [w1 | w2]
    rule!("quantized-gate": mul(f = unary(gate = quantized()), up = quantized()) => join_gate),
    // x @ w1, .., x @ wn of one row -> parts of x @ [w1 | .. | wn]
    rule!("quantized-products-of-one": quantized() => join_products),
    // x @ w + y -> one product
    rule!("quantized-sum": add(p = quantized(), y) => add_summand),
    // rms_norm(x) @ w, .. -> the norm is part of each product that reads it, if nothing else does
    rule!("quantized-norm": any() => take_norm),
];

/// Rows that the kernels take.
pub const QUANTIZED_ROWS: u64 = 8;

/// The largest group of elements that share a scale, in a row of the weight.
const GROUP: u64 = 32;

fn use_own(found: &Found) -> Option<Node> {
    let Function::QuantizedProduct(blocks) = *found.facts.recorded(found.at)? else { return None };
    let [x, weight] = &found.root().operands[..] else { return None };
    let [rows, inner] = x.dims[..] else { return None };
    let fits = rows.len <= QUANTIZED_ROWS && inner.len.is_multiple_of(GROUP) && found.facts.is_constant(weight);
    let is_typed = found.facts.have_type_of(found.root(), [x]);
    let compute = Compute::QuantizedProduct { blocks, norm: None, end: ProductEnd::Nothing };
    (fits && is_typed).then(|| found.replace_by(compute, found.root().operands.clone()))
}

/// A product with one weight, which nothing follows.
struct Single<'a> {
    blocks: BlockType,
    x: &'a Operand,
    weight: &'a Operand,
}

impl<'a> Single<'a> {
    fn of(node: &'a Node) -> Option<Self> {
        let Compute::QuantizedProduct { blocks, norm: None, end: ProductEnd::Nothing } = node.compute else {
            return None;
        };
        let [x, weight] = &node.operands[..] else { return None };
        Some(Self { blocks, x, weight })
    }
}

fn join_gate(found: &Found) -> Option<Node> {
    let (gate, up) = (Single::of(found.node("gate")?)?, Single::of(found.node("up")?)?);
    let activation = found::activation(found.node("f")?).filter(|name| ACTIVATIONS.contains(name))?;
    if gate.x != up.x || gate.blocks != up.blocks || gate.weight.dims != up.weight.dims {
        return None;
    }
    let compute =
        Compute::QuantizedProduct { blocks: gate.blocks, norm: None, end: ProductEnd::Gate(activation.into()) };
    Some(found.replace_by(compute, vec![gate.x.clone(), gate.weight.clone(), up.weight.clone()]))
}

/// Products of one row lie one after the other: whoever reads one of them reads a part that is contiguous.
fn join_products(found: &Found) -> Option<Node> {
    let (facts, at) = (found.facts, found.at);
    let first = Single::of(found.root()).filter(|first| first.x.dims[0].len == 1)?;
    let comes_before = |operand: &Operand| !matches!(operand.value, Value::Node(of) if of >= at);
    let fits = |of: usize| {
        let other = Single::of(facts.node(of)).filter(|other| other.x == first.x && other.blocks == first.blocks)?;
        let stays = facts.is_given(of) || is_output(facts, of);
        (comes_before(other.weight) && !stays).then(|| (of, other.weight.clone()))
    };
    let live = (at + 1..facts.graph.nodes.len()).filter(|&of| facts.is_live(of));
    let (others, weights): (Vec<usize>, Vec<Operand>) = live.filter_map(fits).unzip();
    if others.is_empty() || facts.is_given(at) || is_output(facts, at) {
        return None;
    }
    let compute = Compute::QuantizedProduct { blocks: first.blocks, norm: None, end: ProductEnd::Others(others) };
    let operands = [first.x.clone(), first.weight.clone()].into_iter().chain(weights).collect();
    Some(found.replace_by(compute, operands))
}

/// Is a node's value an output? That is a buffer of its own.
fn is_output(facts: &Facts, at: usize) -> bool {
    facts.users[at].iter().any(|&user| user >= facts.graph.nodes.len())
}

fn add_summand(found: &Found) -> Option<Node> {
    let (facts, summand) = (found.facts, found.operand("y")?);
    let product = facts.whole(found.operand("p")?).filter(|&at| !facts.is_given(at))?;
    let Single { blocks, x, weight } = Single::of(facts.node(product))?;
    let compute = Compute::QuantizedProduct { blocks, norm: None, end: ProductEnd::Sum };
    let operands = vec![x.clone(), weight.clone(), summand.clone()];
    summand.is_run_of(found.root().len).then(|| found.replace_by(compute, operands))
}

/// A norm of rows of `x` that quantised products alone read.
fn take_norm(found: &Found) -> Option<Node> {
    let (facts, node) = (found.facts, found.root());
    let (blocks, end, x) = of_whole_rows(facts, found.at)?;
    let norm = facts.whole(x)?;
    let (columns, epsilon) = match facts.node(norm).compute {
        Compute::Recorded(Function::RmsNorm(columns, epsilon)) => (columns, epsilon),
        Compute::RowNorm { columns, epsilon, is_rms: true } => (columns, epsilon),
        _ => return None,
    };
    let [of, scale] = &facts.node(norm).operands[..] else { return None };
    let reads_rows = |&user: &usize| {
        let Some(reader) = facts.graph.nodes.get(user) else { return false };
        let has_norm = matches!(&reader.compute, Compute::QuantizedProduct { norm: Some(_), .. });
        let is_of_rows = of_whole_rows(facts, user).is_some_and(|(_, _, x)| facts.whole(x) == Some(norm));
        (has_norm || is_of_rows) && reader.operands[1..].iter().all(|operand| operand.value != Value::Node(norm))
    };
    let [_, inner] = x.dims[..] else { return None };
    let is_of_rows = columns == inner.len && of.is_run_of(facts.node(norm).len) && scale.is_run_of(columns);
    let is_typed = facts.have_type_of(node, [of, scale]);
    if !is_of_rows || !is_typed || !facts.users[norm].iter().all(reads_rows) {
        return None;
    }
    let rows = Operand { value: of.value, first: of.first, dims: x.dims.clone() };
    let operands = [rows, scale.clone()].into_iter().chain(node.operands[1..].iter().cloned()).collect();
    Some(found.replace_by(Compute::QuantizedProduct { blocks, norm: Some(epsilon), end: end.clone() }, operands))
}

/// The product that a node is, if it has no norm yet, and its rows.
fn of_whole_rows<'a>(facts: &'a Facts, at: usize) -> Option<(BlockType, &'a ProductEnd, &'a Operand)> {
    match &facts.node(at).compute {
        Compute::QuantizedProduct { blocks, norm: None, end } => Some((*blocks, end, facts.node(at).operands.first()?)),
        _ => None,
    }
}
