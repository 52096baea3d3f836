//! The rules. Each replaces a pattern of nodes by one operator.
//!
//! A rule is a line in the table of a file here, with its formulas (`pattern.rs` reads them) and the function that makes what takes their place. Above
//! it is the rule as a reader says it: `w` and `b` are constants, `c` is a constant with one number a channel, `[x | y]` is a
//! concatenation, and `x @ w` a product of matrices. `docs/concepts/rewriting.md` has them with their conditions.

mod attention;
mod attention_in_f32;
mod batch_norms;
mod channels;
mod concats;
mod convolutions;
mod copied_heads;
mod facts;
mod found;
mod grouped_convolution;
mod grouped_heads;
mod means;
mod norms;
mod padding;
mod pattern;
mod product;
mod products;
mod products_of_one;
mod quantized;
mod queries_together;
mod rule;
mod scores;
mod trained;
mod transposed_convolution;
mod views;

use std::sync::LazyLock;

use hashbrown::HashSet;

use self::facts::Facts;
pub use self::quantized::QUANTIZED_ROWS;
pub use self::rule::Rule;
use super::graph::Graph;

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
pub static RULES: LazyLock<Vec<Rule>> = LazyLock::new(|| {
    let all = [&convolutions::RULES[..], &attention::RULES, &products::RULES, &quantized::RULES, &batch_norms::RULES];
    [&all.concat()[..], &norms::RULES, &concats::RULES].concat()
});

/// Applies the rules that are not in `without`, at every match that is not in `refused`.
pub fn apply(graph: &mut Graph, without: &[&str], refused: &HashSet<(&str, usize)>) -> Vec<Match> {
    apply_all(graph, RULES.iter().filter(|rule| !without.contains(&rule.name)), refused)
}

/// Applies the rules for graphs of which gradients are computed.
pub fn apply_trained(graph: &mut Graph) -> Vec<Match> {
    apply_all(graph, trained::RULES.iter(), &HashSet::new())
}

fn apply_all<'r>(
    graph: &mut Graph,
    rules: impl Iterator<Item = &'r Rule>,
    refused: &HashSet<(&str, usize)>,
) -> Vec<Match> {
    let mut fits = Vec::new();
    for rule in rules {
        let mut facts = Facts::of(graph);
        for at in 0..facts.graph.nodes.len() {
            let is_asked = facts.is_live(at) && !refused.contains(&(rule.name, at));
            if let Some(node) = is_asked.then(|| rule.at(&facts, at)).flatten() {
                fits.push(Match { rule: rule.name, at, saved: facts.replace(at, node) });
            }
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
