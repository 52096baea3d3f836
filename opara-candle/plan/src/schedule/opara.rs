//! Opara's two algorithms: stream allocation and launch order. (Chen et al., "Opara: Exploiting Operator Parallelism for Expediting DNN Inference on
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

/// The resource by which Alg. 2 orders the ready ops of one class: the smallest need first.
///
/// The paper says "the least amount of GPU resources (e.g., shared memory, threads, registers)" (Sec. III-C) of a block
/// (Sec. III-B) and leaves open which one. Its authors' prototype uses shared memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Resource {
    /// The resource of which the op takes the largest share of the device ([`OpProfile::demand`]).
    #[default]
    Scarcest,
    /// Shared memory of a block.
    SharedMemory,
    /// Registers of a block.
    Registers,
    /// Threads of a block.
    Threads,
    /// The op's duration alone.
    Duration,
}

impl Resource {
    /// Every resource.
    pub const ALL: [Resource; 5] =
        [Resource::Scarcest, Resource::SharedMemory, Resource::Registers, Resource::Threads, Resource::Duration];

    /// The op's need of this resource.
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

/// The maximum number of streams: as many kernels as a GPU runs at a time ("resident grids per device", CUDA C++ Programming
/// Guide, Compute Capabilities). Alg. 1 has no limit. More streams gain little, and each one costs time to instantiate the CUDA
/// graph and memory of the driver. candle runs grouped convolutions one group at a time; such models would get thousands.
const MAX_STREAMS: usize = 128;

/// Opara with a choice of resource. [`BuiltIn::Opara`](super::BuiltIn::Opara) uses the default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Opara {
    /// The resource that orders the launches.
    pub resource: Resource,
}

impl Schedule {
    /// This launch order on the streams of Alg. 1, where later branches reuse streams whose branches have ended.
    ///
    /// # Errors
    /// Errors of [`new`](Self::new).
    pub(super) fn with_allocated_streams(graph: &OpGraph, order: Vec<OpId>) -> Result<Self> {
        let alone = stream_allocation(graph);
        let stream = reuse_streams(graph, &alone, &order);
        // Reused streams do not change the waits.
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
        Schedule::with_allocated_streams(graph, launch_order(graph, profile, self.resource))?
            .cap_streams(graph, MAX_STREAMS)
    }
}

/// Alg. 1: an op continues the stream of its first predecessor that has no successor on its stream yet. If there is none, it
/// opens a stream. The ops of a stream form a path of the graph, so the assignment costs no parallelism.
///
/// # Arguments
/// `graph`, whose recorded order is the topological order of line 1.
///
/// # Returns
/// The stream of each op.
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

/// Alg. 2: among the ready ops, whose predecessors are launched, memory- and compute-intensive ones alternate, starting with a
/// memory-intensive one. Within a class the op that needs the least of the resource goes first; ties keep the recorded order.
///
/// # Arguments
/// `graph`; the class and the needs of each op; the resource to order by.
///
/// # Returns
/// Every op once, in launch order.
///
/// # Complexity
/// `O(V log V + E)`.
pub fn launch_order(graph: &OpGraph, profile: &[OpProfile], resource: Resource) -> Vec<OpId> {
    /// The smallest need first, then recorded order. The bits of non-negative floats compare like the floats.
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
    let mut is_memory_next = true;
    loop {
        let (first, second) = if is_memory_next { (&mut memory, &mut compute) } else { (&mut compute, &mut memory) };
        let Some(Reverse((_, op))) = first.pop().or_else(|| second.pop()) else { return order };
        is_memory_next = !is_memory_next;
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
        // 0 memory; then compute: 2 (5), frees memory 5; memory: 5 (1); compute: 3 (7), frees compute 6; memory: 4
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
    fn wide_graphs_share_streams_and_later_forks_reuse_streams() {
        let scheduled = |predecessors: Vec<Vec<usize>>| {
            let graph = OpGraph::from_predecessors(predecessors);
            let profile = vec![OpProfile::default(); graph.len()];
            Opara::default()
                .schedule(&Problem { graph: &graph, profile: &profile, trace: &Default::default() })
                .unwrap()
        };
        let ops = 2 * MAX_STREAMS + 1;
        let wide = scheduled(vec![vec![]; ops]);
        assert_eq!(wide.streams(), MAX_STREAMS);
        assert_eq!(wide.order, Vec::from_iter(0..ops));
        assert_eq!(wide.predecessors[ops - 1], [MAX_STREAMS], "the op before it on its stream");
        // Each op of a chain has a second successor without successors. No op depends on such a stream's last op, so that no
        // later branch reuses the stream.
        let leaves = scheduled((0..2 * ops).map(|op| op.checked_sub(2 - op % 2).into_iter().collect()).collect());
        assert_eq!(leaves.streams(), MAX_STREAMS);
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
            let mut next = Class::Memory;
            for &chosen in &order {
                let ready: Vec<usize> = (0..graph.len())
                    .filter(|&v| !launched[v] && graph.predecessors(v).all(|p| launched[p]))
                    .collect();
                prop_assert!(ready.contains(&chosen));
                let of_class: Vec<usize> = ready.iter().copied().filter(|&v| profile[v].class == next).collect();
                let list = if of_class.is_empty() { &ready } else { &of_class };
                let least = list.iter().map(|&v| profile[v].demand).fold(f64::INFINITY, f64::min);
                prop_assert!(list.contains(&chosen) && profile[chosen].demand == least);
                launched[chosen] = true;
                next = if next == Class::Memory { Class::Compute } else { Class::Memory };
            }
            prop_assert_eq!(order.len(), graph.len());
        }
    }
}
