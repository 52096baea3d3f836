//! Decisions of rewriting a pass, as a file holds them.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::rules::{Match, RULES};
use super::{Changes, Compared, Graph, ProductPrecision, Region};
use crate::trace::OpId;

/// Decisions of rewriting a pass.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// A hash of a sample of the weights that it was found out with.
    pub weights: String,
    /// The decision for each run that rules match, in the order of the pass.
    pub runs: Vec<Decision>,
    /// Why the pass stays as it was recorded although runs of it were changed.
    pub refused: Option<String>,
    /// Median microseconds of a replay of the rewritten pass, and of one of the recorded pass, if both were timed.
    pub times: Option<[f64; 2]>,
}

/// The decision for a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// Its ops.
    pub ops: Range<OpId>,
    /// The rules that stand, and their errors; `None` if the run stays as it was recorded.
    pub standing: Option<(Standing, Compared)>,
    /// Rules that are left out, and why.
    pub notes: Vec<String>,
}

/// The rules that stand in a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standing {
    /// Names of the rules that are left out everywhere.
    without: Vec<String>,
    /// Names of rules with the nodes at which they are left out.
    refused: Vec<(String, usize)>,
    /// Nodes whose products are not computed in the fastest way.
    precise: Vec<(usize, ProductPrecision)>,
    /// The matches: rule, node, launches removed.
    fits: Vec<(String, usize, usize)>,
}

impl Outcome {
    /// Whether it is about these runs, with these weights.
    pub fn is_of(&self, regions: &[Region], weights: &str) -> bool {
        let ops = self.runs.iter().map(|run| &run.ops);
        self.weights == weights && ops.eq(regions.iter().map(|region| &region.ops))
    }
}

impl Standing {
    /// Rules that fitted so, if these were left out everywhere, with these changes.
    pub fn new(without: &[&str], changes: &Changes, fits: &[Match]) -> Self {
        let mut refused: Vec<(String, usize)> = changes.refused.iter().map(|&(rule, at)| (rule.into(), at)).collect();
        refused.sort_unstable();
        let mut precise: Vec<(usize, ProductPrecision)> = changes.precise.iter().map(|(&at, &way)| (at, way)).collect();
        precise.sort_unstable();
        Self {
            without: without.iter().map(|&rule| rule.into()).collect(),
            refused,
            precise,
            fits: fits.iter().map(|fit| (fit.rule.into(), fit.at, fit.saved)).collect(),
        }
    }

    /// Names of the rules that are left out everywhere.
    pub fn without(&self) -> Vec<&str> {
        self.without.iter().map(String::as_str).collect()
    }

    /// How it changes a graph, as far as there are such rules.
    pub fn changes(&self) -> Changes {
        let known = |name: &str| RULES.iter().map(|rule| rule.name).find(|known| *known == name);
        let refused = self.refused.iter().filter_map(|(rule, at)| Some((known(rule)?, *at))).collect();
        Changes { refused, precise: self.precise.iter().copied().collect() }
    }

    /// Changes a graph by these rules. `None` if they do not fit where they did: the graph or the rules are others.
    pub fn applied(&self, graph: &Graph) -> Option<(Graph, Vec<Match>)> {
        let (changed, fits) = self.changes().of(graph, &self.without());
        let is_same = |(fit, (rule, at, saved)): (&Match, &(String, usize, usize))| {
            (fit.rule, fit.at, fit.saved) == (rule.as_str(), *at, *saved)
        };
        (fits.len() == self.fits.len() && fits.iter().zip(&self.fits).all(is_same)).then_some((changed, fits))
    }
}
