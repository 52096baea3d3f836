//! The search for changes that are no less accurate than candle's: more precise products, and rules that nodes lose.

use std::collections::BTreeMap;

use candle::Result;
use hashbrown::HashSet;
use opara_plan::rewrite::{Changes, Graph, ProductPrecision};

/// For each rule a count, and the first reason.
#[derive(Default)]
struct Reasons(BTreeMap<&'static str, (usize, String)>);

impl Reasons {
    fn add(&mut self, rule: &'static str, reason: String) {
        self.0.entry(rule).or_insert((0, reason)).0 += 1;
    }

    fn notes<'a>(&'a self, what: &'a str) -> impl Iterator<Item = String> + 'a {
        self.0.iter().map(move |(rule, (times, why))| format!("{rule} {what} {times} times: {why}"))
    }
}

/// A changed node that something is said against: its last rule, the node, and the reason.
pub(super) type Failed = (&'static str, usize, String);

/// Changes that are being found, such that nothing is said against a changed node.
pub(super) struct Settling<'a> {
    graph: &'a Graph,
    without: &'a [&'a str],
    pub changes: Changes,
    passed: HashSet<(&'static str, usize)>,
    left_out: Reasons,
    made_precise: Reasons,
    /// Products that are more precise for the run's sake.
    raised: usize,
}

impl<'a> Settling<'a> {
    pub fn new(graph: &'a Graph, without: &'a [&'a str], changes: Changes) -> Self {
        let (left_out, made_precise) = (Reasons::default(), Reasons::default());
        Self { graph, without, changes, passed: HashSet::new(), left_out, made_precise, raised: 0 }
    }

    /// Finds changes with which the whole run passes, in at most three judgements of it: with more precise products where a node fails by
    /// itself; without the rules of nodes that fail even so; and with all products of f32 more precise. Rounding to TF32 is luck for a
    /// run of many products, and none for one.
    pub fn search<T>(
        &mut self,
        mut said_against: impl FnMut(&Graph, usize) -> Result<Option<String>>,
        mut passes: impl FnMut(&Changes) -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        let before = self.changes.clone();
        let failed = self.climb(&mut said_against)?;
        let is_climbed = self.changes != before;
        let mut found = if is_climbed { passes(&self.changes)? } else { None };
        if found.is_none() && !failed.is_empty() {
            self.leave_out(failed, &mut said_against)?;
            found = passes(&self.changes)?;
        }
        if found.is_none() && self.raise() {
            found = passes(&self.changes)?;
        }
        Ok(found)
    }

    /// Makes the products of changed nodes more precise until nothing is said against them. Returns the nodes that something is said
    /// against even then.
    pub fn climb(
        &mut self,
        said_against: &mut impl FnMut(&Graph, usize) -> Result<Option<String>>,
    ) -> Result<Vec<Failed>> {
        let (mut changed, fits) = self.changes.of(self.graph, self.without);
        let live = changed.live();
        // The last rule at a node is the one that made it what it is.
        let last: BTreeMap<usize, &'static str> = fits.iter().map(|fit| (fit.at, fit.rule)).collect();
        let mut failed = Vec::new();
        'nodes: for (at, rule) in last.into_iter().filter(|(at, _)| live[*at]) {
            if self.passed.contains(&(rule, at)) {
                continue;
            }
            while let Some(reason) = said_against(&changed, at)? {
                let Some(precision) = changed.nodes[at].more_precise() else {
                    failed.push((rule, at, reason));
                    continue 'nodes;
                };
                if changed.nodes[at].precision == ProductPrecision::Fastest {
                    self.made_precise.add(rule, reason);
                }
                changed.nodes[at].precision = precision;
                self.changes.precise.insert(at, precision);
            }
            self.passed.insert((rule, at));
        }
        Ok(failed)
    }

    /// Leaves out the last rules of nodes that failed. Other nodes come to be then, which are asked for, too.
    pub fn leave_out(
        &mut self,
        mut failed: Vec<Failed>,
        said_against: &mut impl FnMut(&Graph, usize) -> Result<Option<String>>,
    ) -> Result<()> {
        while !failed.is_empty() {
            for (rule, at, reason) in failed {
                self.changes.precise.remove(&at);
                self.changes.refused.insert((rule, at));
                self.left_out.add(rule, reason);
            }
            failed = self.climb(said_against)?;
        }
        Ok(())
    }

    /// Makes all products of f32 more precise that are computed in the fastest way. Were there any?
    fn raise(&mut self) -> bool {
        let (changed, _) = self.changes.of(self.graph, self.without);
        let live = changed.live();
        let nodes = changed.nodes.iter().enumerate();
        let fastest = nodes.filter(|(at, node)| live[*at] && node.precision == ProductPrecision::Fastest);
        let raised: Vec<_> = fastest.filter_map(|(at, node)| Some((at, node.more_precise()?))).collect();
        self.raised += raised.len();
        self.changes.precise.extend(raised);
        self.raised > 0
    }

    /// What it took.
    pub fn notes(&self) -> Vec<String> {
        let raised = (self.raised > 0).then(|| format!("all other {} products are more precise", self.raised));
        let of_nodes = self.left_out.notes("stays out").chain(self.made_precise.notes("has more precise products"));
        of_nodes.chain(raised).collect()
    }
}
