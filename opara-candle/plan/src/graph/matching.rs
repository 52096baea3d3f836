//! Maximum matching in the bipartite graph of a DAG's edges: a cover of the DAG by the fewest paths.

use super::OpGraph;
use crate::trace::OpId;

/// The distance of a start that no alternating path has reached.
const UNREACHED: u32 = u32::MAX;

/// A largest set of dependencies in which no two leave the same op, and no two enter the same op.
///
/// # Returns
/// For each op its successor in the set, if there is one.
///
/// # Complexity
/// `O(E √V)` (Hopcroft, Karp 1973), starting from a greedy matching, which is close to maximum on networks.
pub(crate) fn maximum_matching(graph: &OpGraph) -> Vec<Option<OpId>> {
    let mut search = Matching::greedy(graph);
    while search.measure() {
        let free: Vec<OpId> = (0..graph.len()).filter(|&op| search.next[op].is_none()).collect();
        free.into_iter().for_each(|op| search.augment(op));
    }
    search.next
}

/// Both sides of the bipartite graph: each op as the start of its outgoing dependencies, and as the end of its incoming
/// ones.
struct Matching {
    /// The successors of all ops, one op after the other.
    successors: Vec<OpId>,
    /// For each op the end of its successors.
    ends: Vec<usize>,
    /// For each start its matched end, and for each end its matched start.
    next: Vec<Option<OpId>>,
    before: Vec<Option<OpId>>,
    /// For each start the number of matched edges between it and a free start.
    distance: Vec<u32>,
    /// For each start the first successor that has not been tried in this phase.
    untried: Vec<usize>,
}

impl Matching {
    fn greedy(graph: &OpGraph) -> Self {
        let ops = graph.len();
        let mut search = Self {
            successors: Vec::with_capacity(graph.edges()),
            ends: Vec::with_capacity(ops),
            next: vec![None; ops],
            before: vec![None; ops],
            distance: vec![UNREACHED; ops],
            untried: vec![0; ops],
        };
        for op in 0..ops {
            search.successors.extend(graph.successors(op));
            search.ends.push(search.successors.len());
            if let Some(p) = graph.predecessors(op).find(|&p| search.next[p].is_none()) {
                search.next[p] = Some(op);
                search.before[op] = Some(p);
            }
        }
        search
    }

    fn range(&self, op: OpId) -> std::ops::Range<usize> {
        op.checked_sub(1).map_or(0, |before| self.ends[before])..self.ends[op]
    }

    /// Breadth-first search from every free start: the distances along alternating paths. Did it reach a free end?
    fn measure(&mut self) -> bool {
        let mut queue = Vec::new();
        for op in 0..self.next.len() {
            let range = self.range(op);
            self.untried[op] = range.start;
            let free = self.next[op].is_none() && !range.is_empty();
            self.distance[op] = if free { 0 } else { UNREACHED };
            queue.extend(free.then_some(op));
        }
        let mut met = false;
        let mut shortest = UNREACHED;
        let mut at = 0;
        while let Some(&op) = queue.get(at) {
            at += 1;
            if self.distance[op] >= shortest {
                break;
            }
            for edge in self.range(op) {
                match self.before[self.successors[edge]] {
                    Some(start) if self.distance[start] == UNREACHED => {
                        self.distance[start] = self.distance[op] + 1;
                        queue.push(start);
                    }
                    Some(_) => {}
                    None => {
                        met = true;
                        shortest = self.distance[op] + 1;
                    }
                }
            }
        }
        met
    }

    /// Depth-first search along increasing distances from a free start. Flips the first path that ends in a free end.
    fn augment(&mut self, free: OpId) {
        // The starts on the path. The edge that leaves each of them is the last one tried.
        let mut path = vec![free];
        while let Some(&op) = path.last() {
            if self.untried[op] == self.range(op).end {
                // A dead end for every other path of this phase, too.
                self.distance[op] = UNREACHED;
                path.pop();
                continue;
            }
            let end = self.successors[self.untried[op]];
            self.untried[op] += 1;
            match self.before[end] {
                Some(start) if self.distance[op] != UNREACHED && self.distance[start] == self.distance[op] + 1 => {
                    path.push(start)
                }
                Some(_) => {}
                None => {
                    for &start in &path {
                        let end = self.successors[self.untried[start] - 1];
                        self.next[start] = Some(end);
                        self.before[end] = Some(start);
                    }
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::reduce::tests::dags;
    use petgraph::algo::maximum_matching as general_matching;
    use petgraph::graph::{NodeIndex, UnGraph};
    use proptest::prelude::*;

    #[test]
    fn a_greedy_choice_can_be_revised() {
        // Greedy matches 0-2. Then 3, which depends on 0 alone, finds 0 taken; 1 can lead to 2 instead.
        let graph = OpGraph::from_predecessors(vec![vec![], vec![], vec![0, 1], vec![0]]);
        assert_eq!(maximum_matching(&graph), [Some(3), Some(2), None, None]);
    }

    proptest! {
        #[test]
        fn is_as_large_as_petgraphs_matching(dag in dags()) {
            let graph = OpGraph::from_predecessors(dag);
            let ops = graph.len();
            let edges = (0..ops).flat_map(|op| graph.predecessors(op).map(move |p| (p as u32, (ops + op) as u32)));
            let mut bipartite = UnGraph::<(), ()>::from_edges(edges);
            while bipartite.node_count() < 2 * ops {
                bipartite.add_node(());
            }
            let next = maximum_matching(&graph);
            let mut ends: Vec<OpId> = next.iter().copied().flatten().collect();
            prop_assert_eq!(ends.len(), general_matching(&bipartite).len());
            for (start, end) in next.iter().enumerate().filter_map(|(start, end)| Some((start, (*end)?))) {
                prop_assert!(bipartite.contains_edge(NodeIndex::new(start), NodeIndex::new(ops + end)));
            }
            ends.sort_unstable();
            prop_assert!(ends.windows(2).all(|pair| pair[0] < pair[1]));
        }
    }
}
