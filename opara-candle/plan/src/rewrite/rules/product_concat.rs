//! Products of one operand that lie beside each other, such as those for queries, keys and values.

use super::product::Product;
use super::{Facts, Replacement};
use crate::rewrite::graph::{Compute, Node, Operand};

/// Lets a concatenation of the columns of several products be one product with all their weights.
pub(super) fn at(facts: &Facts, at: usize) -> Option<Replacement> {
    let concat = facts.node(at);
    let Compute::Concat { rows, widths } = &concat.compute else { return None };
    let product = |operand: &Operand| Product::of(facts, facts.only(operand)?);
    let products = concat.operands.iter().map(product).collect::<Option<Vec<_>>>()?;
    let first = products.first().filter(|_| products.len() > 1)?;
    let fits = |(product, &width): (&Product, &u64)| {
        product.x == first.x && product.rows() == *rows && product.columns() == width
    };
    if !products.iter().zip(widths).all(fits) || !facts.have_type_of(concat, [&first.x]) {
        return None;
    }
    let launches = concat.launches + products.iter().map(|product| product.launches).sum::<usize>();
    let compute = Compute::ProductConcat { have_bias: products.iter().map(|product| product.bias.is_some()).collect() };
    let x = first.x.clone();
    let weights = products.into_iter().flat_map(|product| std::iter::once(product.weight).chain(product.bias));
    let operands = std::iter::once(x).chain(weights).collect();
    Some(Replacement { node: Node { compute, operands, launches, ..concat.clone() }, saved: launches - 1 })
}
