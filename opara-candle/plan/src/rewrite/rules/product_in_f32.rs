//! Products of f32 with a weight, and nothing behind them.

use super::product::Product;
use super::products_of_one::is_taken;
use super::{Facts, Replacement};
use crate::rewrite::graph::{Compute, Node};
use crate::trace::Element;

/// Lets a product of f32 be the library's: candle's uses no tensor cores in f32.
pub(super) fn at(facts: &Facts, at: usize) -> Option<Replacement> {
    let node = facts.node(at);
    facts.recorded(at).filter(|_| node.element == Element::F32 && !is_taken(facts, at))?;
    let Product { x, weight, .. } = Product::of(facts, at)?;
    let compute = Compute::Linear { activation: None };
    Some(Replacement { node: Node { compute, operands: vec![x, weight], ..node.clone() }, saved: 0 })
}
