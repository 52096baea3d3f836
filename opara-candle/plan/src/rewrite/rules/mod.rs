//! The rules: each puts another operator in the place of some nodes of a graph.
//!
//! A rule is a line of [`RULES`] and a file here.

mod attention;
mod attention_in_f32;
mod better;
mod concat;
mod convolution;
mod copied_heads;
mod epilogue;
mod facts;
mod gated;
mod group_norm;
mod grouped_convolution;
mod grouped_heads;
mod mean;
mod normalised;
mod padding;
mod pool;
mod product;
mod product_concat;
mod product_in_f32;
mod products_of_one;
mod residual_norm;
mod row_norm;
mod softmax;
mod transposed_convolution;
mod upsampling;
mod views;

use hashbrown::HashSet;

pub use self::better::Better;
pub use self::facts::Facts;
use super::graph::Graph;

/// A rule.
#[derive(Clone, Copy)]
pub struct Rule {
    /// Its name in reports.
    pub name: &'static str,
    /// What takes the place of a node, if it fits there.
    pub at: fn(&Facts, usize) -> Option<Better>,
}

/// A place where a rule fitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fit {
    /// The rule's name.
    pub rule: &'static str,
    /// The node.
    pub at: usize,
    /// Launches that became part of it.
    pub saved: usize,
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
    Rule { name: "grouped-convolution", at: grouped_convolution::at },
    // A convolution by the library and algorithm that are the fastest, with sums in f32.
    Rule { name: "convolution", at: convolution::at },
    // Zeros around what is convolved: padding of the convolution.
    Rule { name: "convolution-padding", at: padding::at },
    // What is around an image that is pooled, and is never a maximum or is zeros of a mean: padding of the pool.
    Rule { name: "pool-padding", at: pool::at },
    // A transposed convolution, and what is added to each of its channels: an ordinary one.
    Rule { name: "transposed-convolution", at: transposed_convolution::at },
    // Nearest upsampling: the same in any layout.
    Rule { name: "upsampling", at: upsampling::at },
    // What is added to each channel of a convolution: part of it.
    Rule { name: "convolution-bias", at: epilogue::bias },
    // What scales and shifts each channel of a convolution: part of its weight.
    Rule { name: "convolution-norm", at: epilogue::norm },
    // What is added to each element of a convolution: part of it, unless `concat-sums` takes the sum.
    Rule { name: "convolution-residual", at: epilogue::residual },
    // An activation behind a convolution: part of it.
    Rule { name: "convolution-activation", at: epilogue::activation },
    // `max(x, 0)` before a convolution of each channel by itself, unless it is part of the operator before: part of the convolution.
    Rule { name: "convolution-of-relu", at: convolution::of_relu },
    // A convolution of images of one pixel: a product.
    Rule { name: "pixel-product", at: convolution::of_pixels },
    // Softmax of five launches: one.
    Rule { name: "softmax", at: softmax::at },
    // Two products with a softmax between: one launch that writes no scores.
    Rule { name: "attention", at: attention::at },
    // Attention in f32 between conversions from 16 bits and back: one launch without them.
    Rule { name: "attention-in-f32", at: attention_in_f32::at },
    // Keys and values that are repeated for each head of queries: those before.
    Rule { name: "grouped-heads", at: grouped_heads::at },
    // Heads that were copied out of the order of tokens, and masks that repeat over a batch: read where they are.
    Rule { name: "copied-heads", at: copied_heads::at },
    // What is added to each column of a product with a weight: part of it.
    Rule { name: "product-bias", at: product::bias },
    // Products of one operand whose columns lie beside each other: one of all.
    Rule { name: "product-concat", at: product_concat::at },
    // Two products of one operand, an activation of one times the other: one of both.
    Rule { name: "gated-unit", at: gated::at },
    // An activation behind a product with a weight: part of it.
    Rule { name: "product-activation", at: product::activation },
    // Products of one operand whose columns are heads: views of one product.
    Rule { name: "products-of-one", at: products_of_one::at },
    // A product of f32 with a weight, by the library and algorithm that are the fastest.
    Rule { name: "product-in-f32", at: product_in_f32::at },
    // A norm of rows of nine launches: one.
    Rule { name: "row-norm", at: row_norm::at },
    // A group norm of ten, and the activation behind it: one.
    Rule { name: "group-norm", at: group_norm::at },
    // Sums of rows and a factor, or the same along one dimension and then the other: one launch.
    Rule { name: "row-mean", at: mean::at },
    // A norm of a sum, and the sum: one launch.
    Rule { name: "residual-norm", at: residual_norm::at },
    // `max(x, 0)` of a concatenation, and sums that are concatenated so: one launch.
    Rule { name: "concat-relu", at: concat::relu },
    Rule { name: "concat-sums", at: concat::sums },
];

/// Applies the rules that are not `without`, wherever they fit but at those nodes where they are `refused`.
pub fn apply(graph: &mut Graph, without: &[&str], refused: &HashSet<(&str, usize)>) -> Vec<Fit> {
    let mut fits = Vec::new();
    for rule in RULES.iter().filter(|rule| !without.contains(&rule.name)) {
        let facts = Facts::of(graph);
        for at in 0..facts.graph.nodes.len() {
            let is_asked = facts.live[at] && !refused.contains(&(rule.name, at));
            let Some(Better { node, saved }) = is_asked.then(|| (rule.at)(&facts, at)).flatten() else { continue };
            fits.push(Fit { rule: rule.name, at, saved });
            facts.graph.nodes[at] = node;
        }
    }
    fits
}

/// For each rule that fitted, how often.
pub fn counted(fits: &[Fit]) -> Vec<(&'static str, Applied)> {
    let of = |rule: &Rule| {
        let fits = fits.iter().filter(|fit| fit.rule == rule.name);
        let add = |Applied { times, saved }, fit: &Fit| Applied { times: times + 1, saved: saved + fit.saved };
        (rule.name, fits.fold(Applied::default(), add))
    };
    RULES.iter().map(of).filter(|(_, applied)| applied.times > 0).collect()
}
