//! Opara's two algorithms. (Chen et al., "Opara: Exploiting Operator Parallelism for Expediting DNN Inference on
//! GPUs", IEEE Transactions on Computers 2024.)

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use serde::{Deserialize, Serialize};

use super::reuse::reuse_streams;
use super::{Problem, Schedule, Scheduler};
use crate::graph::OpGraph;
use crate::profile::{Class, OpProfile};
use crate::trace::OpId;
use crate::Result;

/// What orders the ready ops of one class, the least first.
///
/// The paper speaks of "the least amount of GPU resources (e.g., shared memory, threads, registers)" (Sec. III-C) of a
/// block (Sec. III-B) and chooses none of them; its authors' prototype takes the shared memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Resource {
    /// The share of the whole device that the op takes of whatever it takes most of ([`OpProfile::demand`]).
    #[default]
    Scarcest,
    /// Shared memory of a block.
    SharedMemory,
    /// Registers of a block.
    Registers,
    /// Threads of a block.
    Threads,
    /// How long the op takes alone.
    Duration,
}

impl Resource {
    /// Every resource.
    pub const ALL: [Resource; 5] =
        [Resource::Scarcest, Resource::SharedMemory, Resource::Registers, Resource::Threads, Resource::Duration];

    /// How much an op needs.
    pub fn of(self, op: &OpProfile) -> f64 {
        match self {
            Resource::Scarcest => op.demand,
            Resource::SharedMemory => op.block.shared_memory,
            Resource::Registers => op.block.registers,
            Resource::Threads => op.block.threads,
            Resource::Duration => op.us,
        }
    }
}

impl std::fmt::Display for Resource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Resource::Scarcest => "scarcest",
            Resource::SharedMemory => "shared-memory",
            Resource::Registers => "registers",
            Resource::Threads => "threads",
            Resource::Duration => "duration",
        })
    }
}

/// The most streams, which Alg. 1 does not limit: as many as a GPU runs kernels at a time ("resident grids per device",
/// CUDA C++ Programming Guide, Compute Capabilities). More gain little or nothing, and each costs a CUDA graph some time to
/// instantiate and some memory of the driver's; of models whose grouped convolutions candle runs one group at a time
/// they would be thousands.
const MOST_STREAMS: usize = 128;

/// Opara, by a resource of choice. [`Policy::Opara`](super::Policy::Opara) is the default one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Opara {
    /// What orders the launches.
    pub resource: Resource,
}

impl Schedule {
    /// This order of launches on the streams of Alg. 1, of which later branches take those that earlier ones have left.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub(super) fn on_paths(graph: &OpGraph, order: Vec<OpId>) -> Result<Self> {
        let alone = stream_allocation(graph);
        let stream = reuse_streams(graph, &alone, &order);
        // On these streams every op waits for what it waited for.
        Ok(Self { stream, ..Self::new(graph, alone, order)? })
    }
}

impl Scheduler for Opara {
    fn name(&self) -> String {
        match self.resource {
            Resource::Scarcest => "opara".into(),
            resource => format!("opara-{resource}"),
        }
    }

    fn schedule(&self, problem: &Problem) -> Result<Schedule> {
        let Problem { graph, profile, .. } = *problem;
        Schedule::on_paths(graph, launch_order(graph, profile, self.resource))?.cap_streams(graph, MOST_STREAMS)
    }
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
/// kind the one that needs the least of the resource goes first. Memory-intensive ones begin; equal needs keep the
/// recorded order.
///
/// # Arguments
/// `graph`, for each op its class and what it needs, and the resource that counts.
///
/// # Returns
/// Every op once, in launch order.
///
/// # Complexity
/// `O(V log V + E)`.
pub fn launch_order(graph: &OpGraph, profile: &[OpProfile], resource: Resource) -> Vec<OpId> {
    /// Least need first, then recorded order. Bits of a non-negative float order as the float does.
    type Ready = BinaryHeap<Reverse<(u64, OpId)>>;
    let (mut memory, mut compute) = (Ready::new(), Ready::new());
    let mut indegree: Vec<usize> = (0..graph.len()).map(|op| graph.predecessors(op).count()).collect();
    let mut order = Vec::with_capacity(graph.len());
    let push = |op: OpId, memory: &mut Ready, compute: &mut Ready| {
        let entry = Reverse((resource.of(&profile[op]).max(0.).to_bits(), op));
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
    use crate::profile::BlockDemand;
    use crate::schedule::tests::block;
    use proptest::prelude::*;

    fn op(class: Class, demand: f64) -> OpProfile {
        OpProfile { class, demand, ..Default::default() }
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
        assert_eq!(launch_order(&block(), &profile, Resource::Scarcest), [0, 2, 5, 3, 4, 6, 7, 1, 8]);
    }

    #[test]
    fn each_resource_orders_by_its_own_need() {
        let graph = OpGraph::from_predecessors(vec![vec![]; 5]);
        // Op i needs the least of the i-th resource.
        let need = |op: usize, resource: usize| if op == resource { 1. } else { 2. };
        let block = |i| BlockDemand { shared_memory: need(i, 1), registers: need(i, 2), threads: need(i, 3) };
        let profile: Vec<OpProfile> = (0..5)
            .map(|i| OpProfile { demand: need(i, 0), block: block(i), us: need(i, 4), ..Default::default() })
            .collect();
        for (least, resource) in Resource::ALL.into_iter().enumerate() {
            assert_eq!(launch_order(&graph, &profile, resource)[0], least, "{resource}");
        }
        let names = Resource::ALL.map(|resource| Opara { resource }.name());
        assert_eq!(names, ["opara", "opara-shared-memory", "opara-registers", "opara-threads", "opara-duration"]);
    }

    #[test]
    fn wide_graphs_share_streams_and_later_forks_take_those_of_earlier_ones() {
        let scheduled = |predecessors: Vec<Vec<usize>>| {
            let graph = OpGraph::from_predecessors(predecessors);
            let profile = vec![OpProfile::default(); graph.len()];
            Opara::default()
                .schedule(&Problem { graph: &graph, profile: &profile, trace: &Default::default() })
                .unwrap()
        };
        let ops = 2 * MOST_STREAMS + 1;
        let wide = scheduled(vec![vec![]; ops]);
        assert_eq!(wide.streams(), MOST_STREAMS);
        assert_eq!(wide.order, Vec::from_iter(0..ops));
        assert_eq!(wide.predecessors[ops - 1], [MOST_STREAMS], "the stream's op before");
        // Each op of a chain feeds one that nothing waits for: such a stream ends above no op, so that none goes on with it.
        let leaves = scheduled((0..2 * ops).map(|op| op.checked_sub(2 - op % 2).into_iter().collect()).collect());
        assert_eq!(leaves.streams(), MOST_STREAMS);
        // Two branches and their join, again and again.
        let joins = |op: usize| match op % 3 {
            0 => vec![op.wrapping_sub(2), op.wrapping_sub(1)],
            _ => vec![op / 3 * 3],
        };
        let long = scheduled((0..3 * ops).map(|op| if op == 0 { vec![] } else { joins(op) }).collect());
        assert_eq!(long.streams(), 2);
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
            let order = launch_order(&graph, &profile, Resource::Scarcest);
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
