//! The rules: each puts another operator in the place of some nodes of a graph.
//!
//! A rule is a line of [`RULES`] and a file here.

mod attention;
mod convolution;
mod epilogue;
mod grouped_convolution;
mod product;
mod softmax;

use super::graph::Graph;

/// A rule.
#[derive(Clone, Copy)]
pub struct Rule {
    /// Its name in reports.
    pub name: &'static str,
    /// Changes the graph wherever it fits.
    pub apply: fn(&mut Graph) -> Applied,
}

/// What came of a rule.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Applied {
    /// How often it fitted.
    pub times: usize,
    /// Launches that became part of others.
    pub saved: usize,
}

/// All rules, in the order in which they are applied: one may build on what those before it gave.
pub const RULES: &[Rule] = &[
    // One convolution for each group, and their concatenation: one convolution.
    Rule { name: "grouped-convolution", apply: grouped_convolution::apply },
    // A convolution by the library and algorithm that are the fastest, with sums in f32.
    Rule { name: "convolution", apply: convolution::apply },
    // What is added to each channel of a convolution: part of it.
    Rule { name: "convolution-bias", apply: epilogue::bias },
    // What scales and shifts each channel of a convolution: part of its weight.
    Rule { name: "convolution-norm", apply: epilogue::norm },
    // `max(x, 0)` behind a convolution: part of it.
    Rule { name: "convolution-relu", apply: epilogue::relu },
    // Softmax of five launches: one.
    Rule { name: "softmax", apply: softmax::apply },
    // Two products with a softmax between: one launch that writes no scores.
    Rule { name: "attention", apply: attention::apply },
    // What is added to each column of a product with a weight: part of it.
    Rule { name: "product-bias", apply: product::bias },
    // An activation behind that: part of it.
    Rule { name: "product-activation", apply: product::activation },
];

/// Applies the rules that are not `without`; for each that fitted its name and what came of it.
pub fn apply(graph: &mut Graph, without: &[&str]) -> Vec<(&'static str, Applied)> {
    let used = RULES.iter().filter(|rule| !without.contains(&rule.name));
    let applied = used.map(|rule| (rule.name, (rule.apply)(graph)));
    applied.filter(|(_, applied)| applied.times > 0).collect()
}
