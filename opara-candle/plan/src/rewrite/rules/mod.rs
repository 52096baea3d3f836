//! The rules. Each replaces a pattern of nodes by one operator.
//!
//! A rule is a line of [`RULES`] and a file here. Formulas: `w` and `b` are constants, `c` is a constant with one number a channel,
//! `[x | y]` is a concatenation, and `x @ w` a product of matrices. `docs/concepts/rewriting.md` has them with their conditions.

mod attention;
mod attention_in_f32;
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
mod replacement;
mod residual_norm;
mod row_norm;
mod softmax;
mod transposed_convolution;
mod upsampling;
mod views;

use hashbrown::HashSet;

pub use self::facts::Facts;
pub use self::replacement::Replacement;
use super::graph::Graph;

/// A rule.
#[derive(Clone, Copy)]
pub struct Rule {
    /// Its name in reports.
    pub name: &'static str,
    /// The replacement of a node, if the rule matches there.
    pub at: fn(&Facts, usize) -> Option<Replacement>,
}

/// A match of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Match {
    /// The rule's name.
    pub rule: &'static str,
    /// The node.
    pub at: usize,
    /// Launches that the replacement removed.
    pub saved: usize,
}

/// The matches of a rule.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Applied {
    /// Number of matches.
    pub times: usize,
    /// Launches that the replacements removed.
    pub saved: usize,
}

/// All rules, in the order in which they are applied: a rule may match the result of an earlier one.
pub const RULES: &[Rule] = &[
    // [conv(x1, w1) | .. | conv(xn, wn)] -> conv(x, w, groups = n)
    Rule { name: "grouped-convolution", at: grouped_convolution::at },
    // conv(x, w) -> the fastest library and algorithm, channels last, sums in f32
    Rule { name: "convolution", at: convolution::at },
    // conv(pad(x, 0), w) -> conv(x, w, padding)
    Rule { name: "convolution-padding", at: padding::at },
    // max_pool(pad(x, -inf)) -> max_pool(x, padding); mean_pool(pad(x, 0)) -> mean_pool(x, padding)
    Rule { name: "pool-padding", at: pool::at },
    // conv_transpose(x, w, stride s) + c -> interleave(conv(x, w')), w' with s * s times the channels
    Rule { name: "transposed-convolution", at: transposed_convolution::at },
    // upsample_nearest(x) -> the same, in the layout of its neighbours
    Rule { name: "upsampling", at: upsampling::at },
    // conv(x, w) + c -> conv(x, w, c)
    Rule { name: "convolution-bias", at: epilogue::bias },
    // (conv(x, w) - c1) / c2 * c3 + c4 -> conv(x, w', c')
    Rule { name: "convolution-norm", at: epilogue::norm },
    // conv(x, w) + y -> conv(x, w, residual = y), unless `concat-sums` takes the sum
    Rule { name: "convolution-residual", at: epilogue::residual },
    // relu(conv(x, w)), and silu(conv(x, w)) where it is depthwise -> an epilogue
    Rule { name: "convolution-activation", at: epilogue::activation },
    // conv(relu(x), w), depthwise -> relu while the convolution reads
    Rule { name: "convolution-of-relu", at: convolution::of_relu },
    // conv(x, w) + c, images and kernel of one pixel -> x @ w^T + c
    Rule { name: "pixel-product", at: convolution::of_pixels },
    // e / rowsum(e), e = exp(x - rowmax(x)) -> softmax(x)
    Rule { name: "softmax", at: softmax::at },
    // softmax(s * q @ k^T + m) @ v -> one launch that stores no scores
    Rule { name: "attention", at: attention::at },
    // cast16(attention(f32(q), f32(k), f32(v))) -> attention(q, k, v)
    Rule { name: "attention-in-f32", at: attention_in_f32::at },
    // attention(q, repeat(k, n), repeat(v, n)) -> attention(q, k, v)
    Rule { name: "grouped-heads", at: grouped_heads::at },
    // attention(copy(q), copy(k), copy(v), m) -> attention(q, k, v, m), read by strides
    Rule { name: "copied-heads", at: copied_heads::at },
    // x @ w + b -> one product
    Rule { name: "product-bias", at: product::bias },
    // [x @ w1 | .. | x @ wn] -> x @ [w1 | .. | wn]
    Rule { name: "product-concat", at: product_concat::at },
    // f(x @ w1) * (x @ w2) -> one product with [w1 | w2]
    Rule { name: "gated-unit", at: gated::at },
    // f(x @ w + b) -> an epilogue of the product
    Rule { name: "product-activation", at: product::activation },
    // x @ w1, .., x @ wn, read as heads -> views of x @ [w1 | .. | wn]
    Rule { name: "products-of-one", at: products_of_one::at },
    // x @ w in f32 -> the fastest library and algorithm
    Rule { name: "product-in-f32", at: product_in_f32::at },
    // (x - mean(x)) / sqrt(var(x) + e) * w + b -> layer_norm(x); x / sqrt(mean(x * x) + e) * w -> rms_norm(x)
    Rule { name: "row-norm", at: row_norm::at },
    // the same over groups of channels, and silu of it -> group_norm(x)
    Rule { name: "group-norm", at: group_norm::at },
    // f * rowsum(x), g * colsum(f * rowsum(x)) -> one launch
    Rule { name: "row-mean", at: mean::at },
    // norm(x + y) -> one launch, with x + y as a second result of an RMS norm
    Rule { name: "residual-norm", at: residual_norm::at },
    // relu([x1 | .. | xn]) -> one launch
    Rule { name: "concat-relu", at: concat::relu },
    // relu([x1 + y1 | ..]) -> one launch
    Rule { name: "concat-sums", at: concat::sums },
];

/// Applies the rules that are not in `without`, at every match that is not in `refused`.
pub fn apply(graph: &mut Graph, without: &[&str], refused: &HashSet<(&str, usize)>) -> Vec<Match> {
    let mut fits = Vec::new();
    for rule in RULES.iter().filter(|rule| !without.contains(&rule.name)) {
        let facts = Facts::of(graph);
        for at in 0..facts.graph.nodes.len() {
            let is_asked = facts.live[at] && !refused.contains(&(rule.name, at));
            let Some(Replacement { node, saved }) = is_asked.then(|| (rule.at)(&facts, at)).flatten() else { continue };
            fits.push(Match { rule: rule.name, at, saved });
            facts.graph.nodes[at] = node;
        }
    }
    fits
}

/// The matches of each rule that has any.
pub fn counted(fits: &[Match]) -> Vec<(&'static str, Applied)> {
    let of = |rule: &Rule| {
        let fits = fits.iter().filter(|fit| fit.rule == rule.name);
        let add = |Applied { times, saved }, fit: &Match| Applied { times: times + 1, saved: saved + fit.saved };
        (rule.name, fits.fold(Applied::default(), add))
    };
    RULES.iter().map(of).filter(|(_, applied)| applied.times > 0).collect()
}
