//! Opara's two algorithms. (Chen et al., "Opara: Exploiting Operator Parallelism for Expediting DNN Inference on
//! GPUs", IEEE Transactions on Computers 2024.)

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::{Problem, Schedule};
use crate::graph::OpGraph;
use crate::profile::{Class, OpProfile};
use crate::trace::OpId;
use crate::Result;

pub(super) fn schedule(problem: &Problem) -> Result<Schedule> {
    let Problem { graph, profile, .. } = *problem;
    Schedule::new(graph, stream_allocation(graph), launch_order(graph, profile))
}

/// Alg. 1: an op joins the stream of its first predecessor that no other op has followed yet, or else gets a stream of
/// its own. Ops of one stream form a path of the graph, so the assignment costs no parallelism.
///
/// # Arguments
/// `graph`, whose recorded order is the topological order of line 1.
///
/// # Returns
/// For each op its stream.
///
/// # Complexity
/// Linear in ops and edges.
pub fn stream_allocation(graph: &OpGraph) -> Vec<usize> {
    let mut streams = 0;
    let mut stream: Vec<usize> = Vec::with_capacity(graph.len());
    let mut followed = vec![false; graph.len()];
    for op in 0..graph.len() {
        match graph.predecessors(op).find(|&p| !followed[p]) {
            Some(p) => {
                followed[p] = true;
                stream.push(stream[p]);
            }
            None => {
                stream.push(streams);
                streams += 1;
            }
        }
    }
    stream
}

/// Alg. 2: among the ops whose predecessors are launched, memory- and compute-intensive ones alternate, and of each
/// kind the one that demands the least of the device goes first. Memory-intensive ones begin; equal demands keep the
/// recorded order.
///
/// # Arguments
/// `graph`, and for each op its class and demand.
///
/// # Returns
/// Every op once, in launch order.
///
/// # Complexity
/// `O(V log V + E)`.
pub fn launch_order(graph: &OpGraph, profile: &[OpProfile]) -> Vec<OpId> {
    /// Least demand first, then recorded order. Bits of a non-negative float order as the float does.
    type Ready = BinaryHeap<Reverse<(u64, OpId)>>;
    let (mut memory, mut compute) = (Ready::new(), Ready::new());
    let mut indegree: Vec<usize> = (0..graph.len()).map(|op| graph.predecessors(op).count()).collect();
    let mut order = Vec::with_capacity(graph.len());
    let push = |op: OpId, memory: &mut Ready, compute: &mut Ready| {
        let entry = Reverse((profile[op].demand.max(0.).to_bits(), op));
        match profile[op].class {
            Class::Memory => memory.push(entry),
            Class::Compute => compute.push(entry),
        }
    };
    for op in (0..graph.len()).filter(|&op| indegree[op] == 0) {
        push(op, &mut memory, &mut compute);
    }
    let mut memory_turn = true;
    loop {
        let (first, second) = if memory_turn { (&mut memory, &mut compute) } else { (&mut compute, &mut memory) };
        let Some(Reverse((_, op))) = first.pop().or_else(|| second.pop()) else { return order };
        memory_turn = !memory_turn;
        order.push(op);
        for successor in graph.successors(op) {
            indegree[successor] -= 1;
            if indegree[successor] == 0 {
                push(successor, &mut memory, &mut compute);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::reduce::tests::dags;
    use proptest::prelude::*;

    /// A four-branch block: 0 feeds 1, 2, 3 and 4; 2-5, 3-6, 4-7; 8 joins 1, 5, 6 and 7.
    fn block() -> OpGraph {
        let predecessors = [vec![], vec![0], vec![0], vec![0], vec![0], vec![2], vec![3], vec![4], vec![1, 5, 6, 7]];
        OpGraph::from_predecessors(predecessors.to_vec())
    }

    fn op(class: Class, demand: f64) -> OpProfile {
        OpProfile { class, demand, waves: 0., us: 1. }
    }

    #[test]
    fn streams_of_a_block_by_hand() {
        // 0 opens stream 0 and 1 follows it; 2, 3 and 4 find 0 followed and open 1, 2 and 3; 5, 6 and 7 follow them;
        // 8 follows 1, its first predecessor.
        assert_eq!(stream_allocation(&block()), [0, 0, 1, 2, 3, 1, 2, 3, 0]);
    }

    #[test]
    fn waits_of_a_block_by_hand() {
        let schedule = Schedule::new(&block(), stream_allocation(&block()), (0..9).collect()).unwrap();
        let waits: Vec<Vec<OpId>> = (0..9).map(|op| schedule.waits(op).collect()).collect();
        assert_eq!(waits, [vec![], vec![], vec![0], vec![0], vec![0], vec![], vec![], vec![], vec![5, 6, 7]]);
    }

    #[test]
    fn launch_order_of_a_block_by_hand() {
        use Class::{Compute, Memory};
        let profile = [
            op(Memory, 1.),  // 0 first: the only one
            op(Compute, 9.), // then ready: compute 1 (9), 2 (5), 3 (7); memory 4 (2)
            op(Compute, 5.),
            op(Compute, 7.),
            op(Memory, 2.),
            op(Memory, 1.),
            op(Compute, 1.),
            op(Compute, 1.),
            op(Memory, 1.),
        ];
        // 0 memory; compute's turn: 2 (5), frees memory 5; memory: 5 (1); compute: 3 (7), frees compute 6; memory: 4
        // (2), frees compute 7; compute: 6 and 7 demand 1 each, 6 recorded first; memory empty, so compute 7; compute:
        // 1; 8 last.
        assert_eq!(launch_order(&block(), &profile), [0, 2, 5, 3, 4, 6, 7, 1, 8]);
    }

    #[test]
    fn a_chain_needs_one_stream_and_no_wait() {
        let graph = OpGraph::from_predecessors(vec![vec![], vec![0], vec![1], vec![2]]);
        let schedule = Schedule::new(&graph, stream_allocation(&graph), (0..4).collect()).unwrap();
        assert_eq!((schedule.streams(), schedule.wait_count()), (1, 0));
    }

    proptest! {
        #[test]
        fn a_stream_is_a_path_of_the_graph(dag in dags()) {
            let graph = OpGraph::from_predecessors(dag);
            let schedule = Schedule::new(&graph, stream_allocation(&graph), (0..graph.len()).collect()).unwrap();
            for (op, before) in schedule.stream_predecessors().into_iter().enumerate() {
                prop_assert!(before.is_none_or(|p| graph.predecessors(op).any(|q| q == p)));
            }
        }

        #[test]
        fn classes_alternate_while_both_are_ready(dag in dags(), seed in any::<u64>()) {
            let graph = OpGraph::from_predecessors(dag);
            let bit = |op: usize| seed.rotate_left(op as u32 * 7) & 1 == 0;
            let profile: Vec<OpProfile> = (0..graph.len())
                .map(|i| op(if bit(i) { Class::Memory } else { Class::Compute }, (seed.rotate_left(i as u32) % 5) as f64))
                .collect();
            let order = launch_order(&graph, &profile);
            let mut launched = vec![false; graph.len()];
            let mut turn = Class::Memory;
            for &chosen in &order {
                let ready: Vec<usize> = (0..graph.len())
                    .filter(|&v| !launched[v] && graph.predecessors(v).all(|p| launched[p]))
                    .collect();
                prop_assert!(ready.contains(&chosen));
                let of_turn: Vec<usize> = ready.iter().copied().filter(|&v| profile[v].class == turn).collect();
                let list = if of_turn.is_empty() { &ready } else { &of_turn };
                let least = list.iter().map(|&v| profile[v].demand).fold(f64::INFINITY, f64::min);
                prop_assert!(list.contains(&chosen) && profile[chosen].demand == least);
                launched[chosen] = true;
                turn = if turn == Class::Memory { Class::Compute } else { Class::Memory };
            }
            prop_assert_eq!(order.len(), graph.len());
        }
    }
}
