//! How a run is changed.

use hashbrown::{HashMap, HashSet};

use super::rules::{self, Match};
use super::{Graph, ProductPrecision};

/// How a graph is changed: by all rules but for these.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// Rules with the nodes at which they are left out.
    pub refused: HashSet<(&'static str, usize)>,
    /// How products of nodes are computed, where the fastest way is less accurate than the recorded one.
    pub precise: HashMap<usize, ProductPrecision>,
}

impl Changes {
    /// The changed graph, and what fitted, if rules of these names are left out everywhere.
    pub fn of(&self, graph: &Graph, without: &[&str]) -> (Graph, Vec<Match>) {
        let mut changed = graph.clone();
        let fits = rules::apply(&mut changed, without, &self.refused);
        for (&at, &precision) in &self.precise {
            if let Some(node) = changed.nodes.get_mut(at) {
                node.precision = precision;
            }
        }
        (changed, fits)
    }

    /// Whether all rules are applied, in the fastest way.
    pub fn is_empty(&self) -> bool {
        self.refused.is_empty() && self.precise.is_empty()
    }
}
