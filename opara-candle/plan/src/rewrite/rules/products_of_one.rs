//! Products of one operand whose columns are heads, such as queries, keys and values of models that compute them apart.

use super::product::Product;
use super::{Facts, Replacement};
use crate::rewrite::graph::{Compute, Node, Operand, Value};
use crate::trace::{Dim, Function};

/// Lets the first of several products of one operand be a product with all their weights, of which each is a view. Whatever reads them
/// has to take rows that do not follow one another: attention, or a copy into another order.
pub(super) fn at(facts: &Facts, at: usize) -> Option<Replacement> {
    let is_taken = |of| is_taken(facts, of);
    let (first, heads) = (Product::of(facts, at)?, Heads::of(facts, at)?);
    let node = facts.node(at);
    let comes_before = |operand: &Operand| !matches!(operand.value, Value::Node(of) if of >= at);
    let fits = |&of: &usize| {
        let Some(product) = Product::of(facts, of).filter(|product| product.x == first.x) else { return false };
        let is_known = [&product.weight].into_iter().chain(&product.bias).all(comes_before);
        is_known && facts.node(of).element == node.element && Heads::of(facts, of).as_ref() == Some(&heads)
    };
    let others: Vec<usize> = (at + 1..facts.graph.nodes.len()).filter(|&of| facts.live[of]).filter(fits).collect();
    if others.is_empty() || is_taken(at) || others.iter().any(|&of| is_taken(of)) {
        return None;
    }
    let saved = others.len();
    let products = [Some(first)].into_iter().chain(others.iter().map(|&of| Product::of(facts, of)));
    let products = products.collect::<Option<Vec<_>>>()?;
    let have_bias = products.iter().map(|product| product.bias.is_some()).collect();
    let x = products[0].x.clone();
    let weights = products.into_iter().flat_map(|product| std::iter::once(product.weight).chain(product.bias));
    let operands = std::iter::once(x).chain(weights).collect();
    let Heads { tokens, size } = heads;
    let compute = Compute::ProductsOfOne { others, have_bias, tokens, size };
    Some(Replacement { node: Node { compute, operands, ..node.clone() }, saved })
}

/// Whether a product comes with another one.
pub(super) fn is_taken(facts: &Facts, at: usize) -> bool {
    facts.graph.nodes.iter().any(|node| node.given_beside().contains(&at))
}

/// How the rows and columns of a product are read.
#[derive(Clone, Copy, PartialEq)]
struct Heads {
    /// Rows of an item of the batch.
    tokens: u64,
    /// Columns of a head.
    size: u64,
}

impl Heads {
    /// How everything that reads a product reads it.
    fn of(facts: &Facts, at: usize) -> Option<Self> {
        let product = Product::of(facts, at)?;
        let mut found = None;
        for &user in &facts.users[at] {
            // An output is the whole product.
            let reader = facts.graph.nodes.get(user)?;
            let is_copy = reader.compute == Compute::Recorded(Function::Copy);
            if !is_copy && !matches!(reader.compute, Compute::Attention { .. }) {
                return None;
            }
            for operand in reader.operands.iter().filter(|operand| operand.value == Value::Node(at)) {
                let strides = || operand.dims.iter().filter(|dim| dim.len > 1).map(|dim| dim.stride);
                // In the order in which they are, they are no copy yet.
                let stays = is_copy && strides().zip(strides().skip(1)).all(|(a, b)| a > b);
                let heads = Self::read(operand, product.rows(), product.columns()).filter(|_| !stays)?;
                if *found.get_or_insert(heads) != heads {
                    return None;
                }
            }
        }
        found
    }

    /// How an operand reads a product, if it reads all of it.
    fn read(operand: &Operand, rows: u64, columns: u64) -> Option<Self> {
        let mut dims: Vec<Dim> = operand.dims.iter().copied().filter(|dim| dim.len > 1).collect();
        dims.sort_unstable_by_key(|dim| dim.stride);
        let mut step = 1;
        for dim in &dims {
            if dim.stride != step {
                return None;
            }
            step *= dim.len;
        }
        let within = dims.iter().take_while(|dim| dim.stride < columns).count();
        let (of_columns, of_rows) = dims.split_at(within);
        let reach: u64 = of_columns.iter().map(|dim| dim.len).product();
        if operand.first != 0 || step != rows * columns || reach != columns || within > 2 || of_rows.len() > 2 {
            return None;
        }
        let size = of_columns.first().map_or(1, |dim| dim.len);
        let tokens = of_rows.first().map_or(1, |dim| dim.len);
        Some(Self { tokens, size })
    }
}
