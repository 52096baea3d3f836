//! Products of one operand whose columns are heads, such as queries, keys and values of models that compute them apart.

use super::facts::Facts;
use super::found::Found;
use super::product::Product;
use crate::rewrite::compute::Compute;
use crate::rewrite::graph::{Node, Operand, Value};
use crate::trace::{Dim, Function};

/// The first of several products of one operand as a product with all their weights, of which each is a view. Whatever reads them has to
/// take rows that do not follow one another: attention, or a copy into another order.
pub(super) fn join_products(found: &Found) -> Option<Node> {
    let (facts, at) = (found.facts, found.at);
    let (first, heads) = (Product::of(facts, at)?, Heads::of(facts, at)?);
    let comes_before = |operand: &Operand| !matches!(operand.value, Value::Node(of) if of >= at);
    let fits = |of: usize| {
        let product = Product::of(facts, of).filter(|product| product.x == first.x)?;
        let is_known = [&product.weight].into_iter().chain(&product.bias).all(comes_before);
        let is_alike = facts.node(of).element == found.root().element && Heads::of(facts, of)? == heads;
        (is_known && is_alike).then_some((of, product))
    };
    let live = (at + 1..facts.graph.nodes.len()).filter(|&of| facts.is_live(of));
    let (others, products): (Vec<usize>, Vec<Product>) = live.filter_map(fits).unzip();
    if others.is_empty() || others.iter().chain([&at]).any(|&of| facts.is_given(of)) {
        return None;
    }
    let x = first.x.clone();
    let products: Vec<Product> = [first].into_iter().chain(products).collect();
    let have_bias = products.iter().map(|product| product.bias.is_some()).collect();
    let operands = [x].into_iter().chain(products.into_iter().flat_map(Product::vectors)).collect();
    let Heads { tokens, size } = heads;
    Some(found.replace_by(Compute::ProductsOfOne { others, have_bias, tokens, size }, operands))
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
