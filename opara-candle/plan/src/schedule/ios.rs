//! IOS: dynamic programming over stages. (Ding et al., "IOS: Inter-Operator Scheduler for CNN Acceleration", MLSys
//! 2021.)

use std::ops::Range;

use hashbrown::HashMap;

use super::{Problem, Schedule, Stage};
use crate::graph::OpGraph;
use crate::profile::OpProfile;
use crate::trace::OpId;
use crate::Result;

/// Which stages IOS considers: the paper's `r` and `s`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pruning {
    /// Operators of a group, at most; at least 1.
    pub max_group: usize,
    /// Groups of a stage, at most; at least 1.
    pub max_groups: usize,
}

impl Default for Pruning {
    fn default() -> Self {
        Self { max_group: 3, max_groups: 8 }
    }
}

/// What a barrier between two stages is taken to cost in microseconds: about a launch.
const BARRIER_US: f64 = 2.;

/// Endings that one search may consider. Beyond that its piece of the graph is cut in two.
const BUDGET: usize = 1 << 13;

pub(super) fn schedule(problem: &Problem) -> Result<Schedule> {
    Schedule::from_stages(problem.graph, &stages(problem.graph, Pruning::default(), modelled(problem.profile)))
}

/// A model of what a stage costs in microseconds: its longest group, but no less than all its ops need of the device
/// together, and a barrier.
pub fn modelled(profile: &[OpProfile]) -> impl Fn(&Stage) -> f64 + '_ {
    |stage| {
        let longest = stage.iter().map(|group| group.iter().map(|&op| profile[op].us).sum()).fold(0., f64::max);
        let busy: f64 = stage.iter().flatten().map(|&op| profile[op].us * profile[op].share).sum();
        longest.max(busy) + BARRIER_US
    }
}

/// The stages whose costs have the least sum.
///
/// The network is cut into blocks where it narrows to one op, and IOS's recursion runs over each: the last stage of a
/// set of operators is one of its endings, which are the subsets that nothing outside depends on, and the best stages of
/// the rest are remembered. Groups are the connected parts of an ending ("concurrent execution"; operators are never
/// merged into one kernel). An operator is a single op in one search and a whole chain of ops, such as a convolution
/// with its bias and activation, in another; the cheaper result counts.
///
/// Where both searches would consider too many endings, the block is cut in two halves of its levels, again and again:
/// what is best for the pieces need not be best for the block.
///
/// # Arguments
/// `graph`, what bounds the stages, and what a stage costs, by a model or by measurement. It is asked once for each
/// stage of a search.
///
/// # Complexity
/// `O(V log V + E)` and a bounded search for each piece. A search takes at most `(n/d + 1)^(2d)` steps for `n`
/// operators, `d` of them parallel.
pub fn stages(graph: &OpGraph, pruning: Pruning, mut cost: impl FnMut(&Stage) -> f64) -> Vec<Stage> {
    let mut stages = Vec::new();
    for block in blocks(graph) {
        // Pieces yet to be scheduled, the next one last.
        let mut pieces = vec![by_level(graph, block)];
        while let Some(mut piece) = pieces.pop() {
            let single: Vec<Vec<OpId>> = piece.iter().map(|&op| vec![op]).collect();
            let chains = Some(chains(graph, &piece)).filter(|chains| chains.len() < single.len());
            let searches = [Some(single), chains].into_iter().flatten();
            let found = searches.filter_map(|operators| {
                let mut search = Search::new(graph, operators, pruning, &mut cost)?;
                search.solve(search.all()).map(|cost| (cost, search.stages()))
            });
            match found.min_by(|(a, _), (b, _)| a.total_cmp(b)) {
                Some((_, found)) => stages.extend(found),
                None => {
                    pieces.push(piece.split_off(piece.len() / 2));
                    pieces.push(piece);
                }
            }
        }
    }
    stages
}

/// Contiguous ranges of ops, each ending with an op that no dependency leads past. Branches that start at the input keep
/// what is before the last of them in one block.
fn blocks(graph: &OpGraph) -> Vec<Range<OpId>> {
    let is_first = |op: &OpId| graph.predecessors(*op).next().is_none();
    // What only helps other ops, such as the filling of a workspace, opens no branch.
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

/// The ops of a block, level by level. One that depends on nothing stands right before the first op that needs it.
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

/// Joins the ops of a piece, given in topological order, along dependencies that are the only one on either side.
fn chains(graph: &OpGraph, piece: &[OpId]) -> Vec<Vec<OpId>> {
    let mut chain_of: HashMap<OpId, usize> = piece.iter().map(|&op| (op, usize::MAX)).collect();
    let mut chains: Vec<Vec<OpId>> = Vec::new();
    for &op in piece {
        let only = |mut ops: Vec<OpId>| if ops.len() == 1 { ops.pop() } else { None };
        let before = only(graph.predecessors(op).filter(|p| chain_of.contains_key(p)).collect());
        let follows = |p: &OpId| only(graph.successors(*p).filter(|s| chain_of.contains_key(s)).collect()) == Some(op);
        let chain = before.filter(follows).map_or(chains.len(), |p| chain_of[&p]);
        chain_of.insert(op, chain);
        match chains.get_mut(chain) {
            Some(chain) => chain.push(op),
            None => chains.push(vec![op]),
        }
    }
    chains
}

/// A set of operators of a piece.
type Set = u64;

fn members(mut set: Set) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let first = (set != 0).then(|| set.trailing_zeros() as usize)?;
        set &= set - 1;
        Some(first)
    })
}

/// The recursion over one piece.
struct Search<'a, C> {
    /// In topological order.
    operators: Vec<Vec<OpId>>,
    /// For each operator those that depend on it.
    successors: Vec<Set>,
    /// The same and those that it depends on.
    linked: Vec<Set>,
    pruning: Pruning,
    cost: &'a mut C,
    /// For each set of operators the cost of its best stages and the last one of these.
    best: HashMap<Set, (f64, Set)>,
    /// For each stage its cost.
    costs: HashMap<Set, f64>,
    /// Endings that may still be considered.
    budget: usize,
}

impl<'a, C: FnMut(&Stage) -> f64> Search<'a, C> {
    /// `None` if there are too many operators, or surely too many endings.
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
        // Each operator of a level is left, in the ending, or gone: all of these are endings of some set.
        let widest = width.into_iter().max().unwrap_or(0);
        let surely = 3usize.checked_pow(widest);
        let (best, costs) = Default::default();
        let search = Self { operators, successors, linked, pruning, cost, best, costs, budget: BUDGET };
        surely.is_some_and(|surely| surely <= BUDGET).then_some(search)
    }

    fn all(&self) -> Set {
        self.operators.iter().enumerate().fold(0, |all, (at, _)| all | 1 << at)
    }

    /// The cost of the best stages of a set that nothing outside precedes; `None` beyond the budget.
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

    /// Grows an ending of `set` by the operators among `below`. Operators join from the last to the first, so that each
    /// ending is met once.
    fn endings(&mut self, set: Set, ending: Set, below: Set, found: &mut Vec<Set>) -> Option<()> {
        let free = |&at: &usize| self.successors[at] & set & !ending == 0;
        for operator in members(members(below).filter(free).fold(0, |free, at| free | 1 << at)) {
            let grown = ending | 1 << operator;
            // Groups only grow, so what is pruned here has no descendants that are not.
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

    /// The connected part of a set around an operator.
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
