//! Transitive reduction of a DAG, given by predecessors, with nodes in topological order.

/// Drops every predecessor that another predecessor already waits for. Results are ascending.
///
/// Walks backwards from the newest predecessor, no further than the oldest predecessor and no shallower than the
/// shallowest one. So the cost of a node is the size of the graph between its predecessors. That is nearly linear for
/// networks, whose edges are short or lie along few long skip connections, and quadratic if every node has predecessors
/// all over the graph. (Aho, Garey, Ullman 1972: a DAG's reduction is unique.)
pub(crate) fn transitive_reduction(predecessors: &[Vec<usize>]) -> Vec<Vec<usize>> {
    let n = predecessors.len();
    let mut reduced: Vec<Vec<usize>> = Vec::with_capacity(n);
    let mut level = vec![0usize; n];
    let mut seen_for = vec![usize::MAX; n];
    let mut stack = Vec::new();
    for node in 0..n {
        let mut candidates = predecessors[node].clone();
        candidates.sort_unstable();
        candidates.dedup();
        let oldest = candidates.first().copied().unwrap_or(0);
        let shallowest = candidates.iter().map(|&p| level[p]).min().unwrap_or(0);
        let mut kept = Vec::with_capacity(candidates.len());
        let last = candidates.len().saturating_sub(1);
        for (rank, &candidate) in candidates.iter().rev().enumerate() {
            if seen_for[candidate] == node {
                continue;
            }
            kept.push(candidate);
            level[node] = level[node].max(level[candidate] + 1);
            if rank == last {
                break; // no older candidate is left
            }
            stack.push(candidate);
            while let Some(at) = stack.pop() {
                for &p in &reduced[at] {
                    if p >= oldest && level[p] >= shallowest && seen_for[p] != node {
                        seen_for[p] = node;
                        stack.push(p);
                    }
                }
            }
        }
        kept.reverse();
        reduced.push(kept);
    }
    reduced
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use petgraph::algo::tred::{dag_to_toposorted_adjacency_list, dag_transitive_reduction_closure};
    use petgraph::graph::{DiGraph, NodeIndex};
    use petgraph::visit::IntoNeighbors;
    use proptest::prelude::*;

    /// Random DAGs from tiny to wide, by predecessors. Small ones under Miri, which takes a thousand times as long.
    pub(crate) fn dags() -> impl Strategy<Value = Vec<Vec<usize>>> {
        (0usize..if cfg!(miri) { 8 } else { 40 }, 1usize..5).prop_flat_map(|(n, degree)| {
            (0..n)
                .map(|v| prop::collection::btree_set(0..v.max(1), 0..=degree.min(v)))
                .collect::<Vec<_>>()
                .prop_map(|sets| sets.into_iter().map(|s| s.into_iter().collect()).collect())
        })
    }

    proptest! {
        #[test]
        fn agrees_with_petgraph(dag in dags()) {
            let mut graph = DiGraph::<(), (), u32>::default();
            for (v, predecessors) in dag.iter().enumerate() {
                graph.add_node(());
                for &p in predecessors {
                    graph.add_edge(NodeIndex::new(p), NodeIndex::new(v), ());
                }
            }
            let order: Vec<_> = graph.node_indices().collect();
            let (list, _) = dag_to_toposorted_adjacency_list::<_, NodeIndex>(&graph, &order);
            let (expected, _) = dag_transitive_reduction_closure(&list);
            let mut wanted = vec![vec![]; dag.len()];
            for v in graph.node_indices() {
                for w in expected.neighbors(v) {
                    wanted[w.index()].push(v.index());
                }
            }
            wanted.iter_mut().for_each(|p| p.sort());
            prop_assert_eq!(transitive_reduction(&dag), wanted);
        }
    }
}
