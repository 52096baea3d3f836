//! IOS: dynamic programming over stages. (Ding et al., "IOS: Inter-Operator Scheduler for CNN Acceleration", MLSys
//! 2021.)

use std::ops::Range;

use hashbrown::HashMap;

use crate::graph::OpGraph;
use crate::profile::OpProfile;
use crate::schedule::{Problem, Schedule, Stage};
use crate::trace::OpId;
use crate::Result;

/// Limits of the stages that IOS considers: the paper's `r` and `s`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pruning {
    /// Maximum number of operators in a group; at least 1.
    pub max_group: usize,
    /// Maximum number of groups in a stage; at least 1.
    pub max_groups: usize,
}

impl Default for Pruning {
    fn default() -> Self {
        Self { max_group: 3, max_groups: 8 }
    }
}

/// Estimated cost of a barrier between two stages in microseconds: about a launch.
const BARRIER_US: f64 = 2.;

/// Maximum number of endings that one search considers. If there are more, its part of the graph is cut in two.
const BUDGET: usize = 1 << 13;

pub(crate) fn schedule(problem: &Problem) -> Result<Schedule> {
    Schedule::from_stages(problem.graph, &stages(problem.graph, Pruning::default(), modelled(problem.profile)))
}

/// Models the cost of a stage in microseconds: a barrier, plus the time of its longest group, or the time for which its ops
/// together fill the device if that is longer.
pub fn modelled(profile: &[OpProfile]) -> impl Fn(&Stage) -> f64 + '_ {
    |stage| {
        let longest = stage.iter().map(|group| group.iter().map(|&op| profile[op].us).sum()).fold(0., f64::max);
        let busy: f64 = stage.iter().flatten().map(|&op| profile[op].us * profile[op].share).sum();
        longest.max(busy) + BARRIER_US
    }
}

/// The stages with the smallest total cost.
///
/// The network is cut into blocks at ops that all paths pass, and IOS's recursion runs on each block. The last stage of a set of
/// operators is one of its endings (the subsets that no operator of the rest depends on); the best stages of the rest are
/// memoized. Groups are the connected components of an ending ("concurrent execution"; operators are never merged into one
/// kernel). Two searches run: one with single ops as operators, one with sequences of ops, such as a convolution with its bias
/// and activation. The cheaper result is used.
///
/// If both searches would consider too many endings, the block is cut in half by levels, repeatedly. The best stages of the halves
/// need not be the best of the block.
///
/// # Arguments
/// `graph`; the limits of a stage; the cost of a stage, modelled or measured. The cost function is called once per stage of a
/// search.
///
/// # Complexity
/// `O(V log V + E)`, plus a bounded search for each part. A search takes at most `(n/d + 1)^(2d)` steps for `n` operators, of which
/// `d` are parallel.
pub fn stages(graph: &OpGraph, pruning: Pruning, mut cost: impl FnMut(&Stage) -> f64) -> Vec<Stage> {
    let mut stages = Vec::new();
    for block in blocks(graph) {
        // Parts of the block that are not scheduled yet, the next one last.
        let mut parts = vec![by_level(graph, block)];
        while let Some(mut part) = parts.pop() {
            let single: Vec<Vec<OpId>> = part.iter().map(|&op| vec![op]).collect();
            let joined = Some(sequences(graph, &part)).filter(|joined| joined.len() < single.len());
            let searches = [Some(single), joined].into_iter().flatten();
            let found = searches.filter_map(|operators| {
                let mut search = StageSearch::new(graph, operators, pruning, &mut cost)?;
                search.solve(search.all()).map(|cost| (cost, search.stages()))
            });
            match found.min_by(|(a, _), (b, _)| a.total_cmp(b)) {
                Some((_, found)) => stages.extend(found),
                None => {
                    parts.push(part.split_off(part.len() / 2));
                    parts.push(part);
                }
            }
        }
    }
    stages
}

/// Contiguous ranges of ops. Each ends at an op that no edge skips. If several branches start at the input, all ops up to the
/// start of the last branch are in one block.
fn blocks(graph: &OpGraph) -> Vec<Range<OpId>> {
    let is_first = |op: &OpId| graph.predecessors(*op).next().is_none();
    // An op that only prepares others, such as the initialization of a workspace, is not the start of a branch.
    let opens = |op: &OpId| graph.successors(*op).any(|s| graph.predecessors(s).count() == 1);
    let mut reach = (0..graph.len()).rev().find(|op| is_first(op) && opens(op)).unwrap_or(0);
    let mut blocks = Vec::new();
    let mut start = 0;
    for op in 0..graph.len() {
        if reach <= op {
            blocks.push(start..op + 1);
            start = op + 1;
        }
        reach = graph.successors(op).fold(reach, usize::max);
    }
    blocks
}

/// The ops of a block, sorted by level. An op without dependencies is put right before its first reader.
fn by_level(graph: &OpGraph, block: Range<OpId>) -> Vec<OpId> {
    let start = block.start;
    let inside = |op: &OpId| block.contains(op);
    let mut level: Vec<usize> = Vec::with_capacity(block.len());
    for op in block.clone() {
        level.push(graph.predecessors(op).filter(inside).map(|p| level[p - start] + 1).max().unwrap_or(0));
    }
    for op in block.clone().filter(|&op| graph.predecessors(op).next().is_none()) {
        let needed = graph.successors(op).filter(inside).map(|s| level[s - start]).min();
        level[op - start] = needed.map_or(0, |needed| needed.saturating_sub(1));
    }
    let mut ops: Vec<OpId> = block.clone().collect();
    ops.sort_by_key(|op| level[op - start]);
    ops
}

/// Joins ops, given in topological order, into sequences: along edges that are the only one out of their source and into their
/// target.
fn sequences(graph: &OpGraph, ops: &[OpId]) -> Vec<Vec<OpId>> {
    let mut sequence_of: HashMap<OpId, usize> = ops.iter().map(|&op| (op, usize::MAX)).collect();
    let mut sequences: Vec<Vec<OpId>> = Vec::new();
    for &op in ops {
        let only = |mut ops: Vec<OpId>| if ops.len() == 1 { ops.pop() } else { None };
        let before = only(graph.predecessors(op).filter(|p| sequence_of.contains_key(p)).collect());
        let follows =
            |p: &OpId| only(graph.successors(*p).filter(|s| sequence_of.contains_key(s)).collect()) == Some(op);
        let sequence = before.filter(follows).map_or(sequences.len(), |p| sequence_of[&p]);
        sequence_of.insert(op, sequence);
        match sequences.get_mut(sequence) {
            Some(sequence) => sequence.push(op),
            None => sequences.push(vec![op]),
        }
    }
    sequences
}

/// A set of operators, one bit each.
type Set = u64;

fn members(mut set: Set) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let first = (set != 0).then(|| set.trailing_zeros() as usize)?;
        set &= set - 1;
        Some(first)
    })
}

/// The recursion over one part of the graph.
struct StageSearch<'a, C> {
    /// Operators in topological order, each a sequence of ops.
    operators: Vec<Vec<OpId>>,
    /// For each operator the operators that depend on it.
    successors: Vec<Set>,
    /// For each operator its successors and predecessors.
    linked: Vec<Set>,
    pruning: Pruning,
    cost: &'a mut C,
    /// For each set of operators the cost of its best stages, and the last of them.
    best: HashMap<Set, (f64, Set)>,
    /// The cost of each stage.
    costs: HashMap<Set, f64>,
    /// Number of endings that may still be considered.
    budget: usize,
}

impl<'a, C: FnMut(&Stage) -> f64> StageSearch<'a, C> {
    /// `None` if there are too many operators, or certainly too many endings.
    fn new(graph: &OpGraph, operators: Vec<Vec<OpId>>, pruning: Pruning, cost: &'a mut C) -> Option<Self> {
        if operators.len() > Set::BITS as usize {
            return None;
        }
        let all = operators.iter().enumerate().flat_map(|(at, ops)| ops.iter().map(move |&op| (op, at)));
        let operator_of: HashMap<OpId, usize> = all.collect();
        let mut successors: Vec<Set> = vec![0; operators.len()];
        let mut linked = successors.clone();
        let mut level = vec![0; operators.len()];
        let mut width = vec![0; operators.len()];
        for (at, ops) in operators.iter().enumerate() {
            let predecessors = ops.iter().flat_map(|&op| graph.predecessors(op)).filter_map(|p| operator_of.get(&p));
            for &before in predecessors.filter(|&&before| before != at) {
                successors[before] |= 1 << at;
                linked[before] |= 1 << at;
                linked[at] |= 1 << before;
                level[at] = level[at].max(level[before] + 1);
            }
            width[level[at]] += 1;
        }
        // Each operator of a level is in the rest, in the ending, or scheduled already, and all combinations occur.
        let widest = width.into_iter().max().unwrap_or(0);
        let least_endings = 3usize.checked_pow(widest);
        let (best, costs) = Default::default();
        let search = Self { operators, successors, linked, pruning, cost, best, costs, budget: BUDGET };
        least_endings.is_some_and(|least| least <= BUDGET).then_some(search)
    }

    fn all(&self) -> Set {
        self.operators.iter().enumerate().fold(0, |all, (at, _)| all | 1 << at)
    }

    /// The cost of the best stages of `set`, which contains all predecessors of its operators. `None` if the budget is used up.
    fn solve(&mut self, set: Set) -> Option<f64> {
        if set == 0 {
            return Some(0.);
        }
        if let Some(&(cost, _)) = self.best.get(&set) {
            return Some(cost);
        }
        let mut endings = Vec::new();
        self.endings(set, 0, set, &mut endings)?;
        let mut best: Option<(f64, Set)> = None;
        for ending in endings {
            let total = self.solve(set & !ending)? + self.cost(ending);
            if best.is_none_or(|(least, _)| total < least) {
                best = Some((total, ending));
            }
        }
        let (cost, ending) = best?;
        self.best.insert(set, (cost, ending));
        Some(cost)
    }

    /// Extends an ending of `set` by operators of `below`. Operators are added from the last to the first, so that each ending is
    /// visited once.
    fn endings(&mut self, set: Set, ending: Set, below: Set, found: &mut Vec<Set>) -> Option<()> {
        let free = |&at: &usize| self.successors[at] & set & !ending == 0;
        for operator in members(members(below).filter(free).fold(0, |free, at| free | 1 << at)) {
            let grown = ending | 1 << operator;
            // Groups only grow, so every extension of a pruned ending is pruned, too.
            if self.group(grown, operator).count_ones() as usize > self.pruning.max_group.max(1) {
                continue;
            }
            self.budget = self.budget.checked_sub(1)?;
            if self.groups(grown).count() <= self.pruning.max_groups.max(1) {
                found.push(grown);
            }
            self.endings(set, grown, below & ((1 << operator) - 1), found)?;
        }
        Some(())
    }

    /// The connected component of a set that contains `operator`.
    fn group(&self, set: Set, operator: usize) -> Set {
        let (mut group, mut border) = (0, 1 << operator);
        while border != 0 {
            group |= border;
            border = members(border).fold(0, |near, at| near | self.linked[at]) & set & !group;
        }
        group
    }

    fn groups(&self, mut set: Set) -> impl Iterator<Item = Set> + '_ {
        std::iter::from_fn(move || {
            let first = members(set).next()?;
            let group = self.group(set, first);
            set &= !group;
            Some(group)
        })
    }

    fn stage(&self, ending: Set) -> Stage {
        let ops = |group| members(group).flat_map(|at| self.operators[at].iter().copied()).collect();
        self.groups(ending).map(ops).collect()
    }

    fn cost(&mut self, ending: Set) -> f64 {
        if let Some(&cost) = self.costs.get(&ending) {
            return cost;
        }
        let stage = self.stage(ending);
        let cost = (self.cost)(&stage);
        self.costs.insert(ending, cost);
        cost
    }

    /// The best stages, once solved.
    fn stages(&self) -> Vec<Stage> {
        let mut set = self.all();
        let mut endings = Vec::new();
        while let Some(&(_, ending)) = self.best.get(&set) {
            endings.push(ending);
            set &= !ending;
        }
        endings.into_iter().rev().map(|ending| self.stage(ending)).collect()
    }
}

#[cfg(test)]
mod tests;
