//! Dependencies: the DAG of a trace's ops.

mod ancestors;
mod hazards;
pub(crate) mod matching;
pub(crate) mod reduce;

pub(crate) use ancestors::Ancestors;
pub use hazards::hazards;

use petgraph::graph::{DiGraph, NodeIndex};
use petgraph::Direction;

use crate::trace::{OpId, Trace};

/// The ops of a trace and the dependencies between them, transitively reduced.
///
/// Node indices are op ids, and every edge leads from a lower to a higher one: the recorded order is topological.
#[derive(Debug, Clone)]
pub struct OpGraph {
    dag: DiGraph<OpId, ()>,
    hazards: usize,
    level: Vec<usize>,
}

impl OpGraph {
    /// The dependencies that a trace's accesses imply.
    ///
    /// # Complexity
    /// Linear in accesses and edges, as long as few ops access one buffer between two writes, and edges
    /// are short. [`hazards`] and the reduction state the cost of long edges.
    pub fn new(trace: &Trace) -> Self {
        Self::from_predecessors(hazards(trace))
    }

    /// The graph in which op `v` depends on `predecessors[v]`, all of which are smaller than `v`.
    pub fn from_predecessors(predecessors: Vec<Vec<OpId>>) -> Self {
        let hazards = predecessors.iter().map(Vec::len).sum();
        let reduced = reduce::transitive_reduction(&predecessors);
        let mut dag = DiGraph::with_capacity(reduced.len(), reduced.iter().map(Vec::len).sum());
        let mut level = vec![0; reduced.len()];
        for op in 0..reduced.len() {
            dag.add_node(op);
            // petgraph iterates the newest edge first: add them in descending order, so that predecessors come in
            // recorded order.
            for &p in reduced[op].iter().rev() {
                dag.add_edge(NodeIndex::new(p), NodeIndex::new(op), ());
                level[op] = level[op].max(level[p] + 1);
            }
        }
        Self { dag, hazards, level }
    }

    /// The same graph with more dependencies: pairs of ops, of which the first (the smaller id) must finish before the
    /// second starts.
    pub fn with_order(&self, pairs: &[(OpId, OpId)]) -> Self {
        let mut predecessors: Vec<Vec<OpId>> = (0..self.len()).map(|op| self.predecessors(op).collect()).collect();
        pairs.iter().for_each(|&(first, second)| predecessors[second].push(first));
        Self { hazards: self.hazards, ..Self::from_predecessors(predecessors) }
    }

    /// Number of ops.
    pub fn len(&self) -> usize {
        self.dag.node_count()
    }

    /// Does it contain no op?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of dependencies before the reduction.
    pub fn hazards(&self) -> usize {
        self.hazards
    }

    /// Number of dependencies after the reduction.
    pub fn edges(&self) -> usize {
        self.dag.edge_count()
    }

    /// Ops that `op` waits for, in recorded order.
    pub fn predecessors(&self, op: OpId) -> impl Iterator<Item = OpId> + '_ {
        self.dag.neighbors_directed(NodeIndex::new(op), Direction::Incoming).map(NodeIndex::index)
    }

    /// Ops that wait for `op`, the last recorded first.
    pub fn successors(&self, op: OpId) -> impl Iterator<Item = OpId> + '_ {
        self.dag.neighbors_directed(NodeIndex::new(op), Direction::Outgoing).map(NodeIndex::index)
    }

    /// Number of ops before `op` on the longest path that leads to it.
    pub fn level(&self, op: OpId) -> usize {
        self.level[op]
    }

    /// Number of ops on the longest path.
    pub fn depth(&self) -> usize {
        self.level.iter().max().map_or(0, |l| l + 1)
    }

    /// The largest number of ops at one level. They are independent of each other.
    pub fn width(&self) -> usize {
        let mut count = vec![0; self.depth()];
        for &level in &self.level {
            count[level] += 1;
        }
        count.into_iter().max().unwrap_or(0)
    }

    /// The most expensive path, first op first, and its cost: a lower bound for the time of every schedule.
    ///
    /// `cost` holds one number per op.
    pub fn critical_path(&self, cost: &[f64]) -> (Vec<OpId>, f64) {
        let mut finish: Vec<f64> = Vec::with_capacity(self.len());
        let mut through: Vec<Option<OpId>> = Vec::with_capacity(self.len());
        for (op, cost) in cost.iter().enumerate() {
            let slowest = self.predecessors(op).max_by(|&a, &b| finish[a].total_cmp(&finish[b]));
            finish.push(cost + slowest.map_or(0., |p| finish[p]));
            through.push(slowest);
        }
        let last = (0..self.len()).max_by(|&a, &b| finish[a].total_cmp(&finish[b]));
        let mut path: Vec<OpId> = std::iter::successors(last, |&op| through[op]).collect();
        path.reverse();
        (path, last.map_or(0., |op| finish[op]))
    }

    /// The graph in the GraphViz language, with nodes labelled by `label`.
    pub fn to_dot(&self, label: impl Fn(OpId) -> String) -> String {
        use petgraph::dot::{Config, Dot};
        let named = self.dag.map(|_, &op| label(op), |_, _| ());
        let label = |_: &_, (_, name): (_, &String)| format!("label={name:?} shape=box");
        format!(
            "{:?}",
            Dot::with_attr_getters(&named, &[Config::EdgeNoLabel, Config::NodeNoLabel], &|_, _| String::new(), &label)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_diamond_has_width_two_and_depth_three() {
        let graph = OpGraph::from_predecessors(vec![vec![], vec![0], vec![0], vec![0, 1, 2]]);
        assert_eq!((graph.width(), graph.depth(), graph.hazards(), graph.edges()), (2, 3, 5, 4));
        assert_eq!(graph.predecessors(3).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(graph.critical_path(&[1., 2., 5., 1.]), (vec![0, 2, 3], 7.));
        assert!(graph.to_dot(|op| format!("op{op}")).contains("label=\"op3\""));
    }

    #[test]
    fn an_empty_graph_has_no_path() {
        let graph = OpGraph::from_predecessors(vec![]);
        assert_eq!((graph.width(), graph.depth()), (0, 0));
        assert_eq!(graph.critical_path(&[]), (vec![], 0.));
    }
}
