//! Runs every scheduler on random traces and checks the result, and runs the checker on invalid schedules and layouts.

use opara_plan::check;
use opara_plan::graph::OpGraph;
use opara_plan::memory::{self, Layout};
use opara_plan::prepared::{Prepared, Settings};
use opara_plan::profile::profile;
use opara_plan::schedule::{Problem, Schedule, Scheduler};
use opara_plan::trace::{Access, AccessMode, Buffer, DeviceSpec, Launch, Op, Region, Role, Trace, Work};
use opara_plan::BuiltIn;
use proptest::prelude::*;

const BYTES: u64 = 1024;

fn access(buffers: usize) -> impl Strategy<Value = Access> {
    let mode = prop_oneof![Just(AccessMode::Read), Just(AccessMode::Write), Just(AccessMode::ReadWrite)];
    let region = prop_oneof![
        Just(Region::contiguous(0, BYTES)),
        (0..BYTES, 0..BYTES / 2).prop_map(|(start, len)| Region::contiguous(start, len.min(BYTES - start))),
        (0u64..4).prop_map(|part| Region::rows(part * 16, 16, 64, 16)),
    ];
    (0..buffers, region, mode).prop_map(|(buffer, region, mode)| Access { buffer, region, mode })
}

fn op(buffers: usize) -> impl Strategy<Value = Op> {
    let work = prop_oneof![
        Just(Work::Memset(64)),
        (1u32..500, 1u32..9, 16u32..128, 0u32..50_000).prop_map(|(blocks, warps, registers, shared)| {
            Work::Kernel(Launch {
                grid: [blocks, 1, 1],
                block: [32 * warps, 1, 1],
                registers,
                dynamic_shared: shared,
                resident_blocks: 2,
                ..Default::default()
            })
        }),
    ];
    let name = prop_oneof![Just("sgemm"), Just("badd_f32"), Just("softmax_f32")];
    (name, work, prop::collection::vec(access(buffers), 0..5)).prop_map(|(name, work, accesses)| Op {
        name: name.into(),
        label: String::new(),
        work,
        accesses,
        nanos: None,
        meaning: None,
    })
}

/// Traces from tall (few buffers, all with conflicts) to wide.
fn traces() -> impl Strategy<Value = Trace> {
    (1usize..24, 0usize..60).prop_flat_map(|(buffers, ops)| {
        let roles = prop_oneof![
            6 => Just(Role::Intermediate),
            1 => Just(Role::External),
            1 => Just(Role::Input(0)),
            1 => Just(Role::Output(0)),
        ];
        let device = DeviceSpec {
            name: "toy".into(),
            processors: 16,
            threads_per_processor: 2048,
            registers_per_processor: 65_536,
            shared_memory_per_processor: 100_000,
        };
        (prop::collection::vec(op(buffers), ops), prop::collection::vec(roles, buffers)).prop_map(
            move |(ops, roles)| {
                let buffers = roles.into_iter().map(|role| Buffer { bytes: BYTES, role }).collect();
                Trace { device: device.clone(), ops, buffers, ..Default::default() }
            },
        )
    })
}

/// Plans a layout of at most `limit` bytes, if possible, and a schedule for it.
fn planned(trace: &Trace, scheduler: BuiltIn, limit: Option<u64>) -> (Layout, Schedule) {
    let graph = OpGraph::new(trace);
    let layout = memory::plan(trace, &graph, Role::Intermediate, limit);
    let graph = graph.with_order(layout.waits());
    let problem = Problem { trace, graph: &graph, profile: &profile(trace) };
    (layout, scheduler.schedule(&problem).unwrap())
}

fn scheduled(trace: &Trace, scheduler: BuiltIn) -> Schedule {
    planned(trace, scheduler, None).1
}

/// The peak of bytes in use in recorded order, a lower bound for the arena.
fn most_alive(trace: &Trace) -> u64 {
    let users = trace.users();
    let alive = |op: usize| {
        let buffers = trace.buffers.iter().zip(&users).filter(|(b, _)| b.role == Role::Intermediate);
        let alive = buffers.filter(|(_, u)| u.first().is_some_and(|&f| f <= op) && u.last().is_some_and(|&l| op <= l));
        alive.map(|(b, _)| b.bytes.next_multiple_of(memory::ALIGNMENT)).sum()
    };
    (0..trace.ops.len()).map(alive).max().unwrap_or(0)
}

proptest! {
    #[test]
    fn every_scheduler_orders_every_conflict_within_any_limit(trace in traces(), limit in 0..32 * BYTES) {
        trace.validate().unwrap();
        for scheduler in BuiltIn::FIXED {
            for limit in [None, Some(limit)] {
                let (layout, schedule) = planned(&trace, scheduler, limit);
                check::schedule(&trace, &schedule).unwrap();
                check::layout(&trace, &schedule, &layout).unwrap();
                // Buffers of one size leave no gaps.
                prop_assert!(limit.is_none_or(|limit| layout.bytes <= limit.max(most_alive(&trace))));
            }
        }
    }

    #[test]
    fn without_a_limit_memory_costs_no_parallelism(trace in traces()) {
        let layout = memory::plan(&trace, &OpGraph::new(&trace), Role::Intermediate, None);
        prop_assert_eq!(layout.waits(), []);
    }

    #[test]
    fn shared_streams_keep_every_order(trace in traces(), streams in 1usize..5) {
        for scheduler in BuiltIn::FIXED {
            let prepared = Prepared::new(&trace, Settings::default());
            let graph = &prepared.graph;
            let schedule = scheduler.schedule(&prepared.problem()).unwrap();
            let shared = schedule.clone().cap_streams(graph, streams).unwrap();
            check::schedule(&prepared.ops.trace, &shared).unwrap();
            prop_assert_eq!(shared.streams(), schedule.streams().min(streams));
            prop_assert_eq!(&shared.order, &schedule.order);
            prop_assert_eq!(schedule.clone().cap_streams(graph, schedule.streams()).unwrap(), schedule);
        }
    }

    #[test]
    fn every_edge_of_a_schedule_is_needed(trace in traces(), pick in any::<prop::sample::Index>()) {
        let mut schedule = scheduled(&trace, BuiltIn::Opara);
        let edges: Vec<(usize, usize)> = schedule
            .predecessors
            .iter()
            .enumerate()
            .flat_map(|(op, p)| p.iter().map(move |&p| (op, p)))
            .filter(|&(op, p)| schedule.stream[op] != schedule.stream[p])
            .collect();
        if !edges.is_empty() {
            let (op, wait) = edges[pick.index(edges.len())];
            schedule.predecessors[op].retain(|&p| p != wait);
            prop_assert!(check::schedule(&trace, &schedule).is_err(), "op {} need not wait for op {}", op, wait);
        }
    }
}

/// `0 -> 1 -> 2` through separate buffers, and 3 in parallel.
fn small() -> Trace {
    let op = |reads: &[usize], writes: usize| Op {
        name: "badd_f32".into(),
        label: String::new(),
        work: Work::Memset(0),
        accesses: reads
            .iter()
            .map(|&buffer| Access { buffer, region: Region::contiguous(0, BYTES), mode: AccessMode::Read })
            .chain([Access { buffer: writes, region: Region::contiguous(0, BYTES), mode: AccessMode::Write }])
            .collect(),
        nanos: None,
        meaning: None,
    };
    let buffers = vec![Buffer { bytes: BYTES, role: Role::Intermediate }; 4];
    Trace { ops: vec![op(&[], 0), op(&[0], 1), op(&[1], 2), op(&[], 3)], buffers, ..Default::default() }
}

#[test]
fn a_chain_reuses_memory_and_a_parallel_branch_does_not() {
    let trace = small();
    let (layout, schedule) = planned(&trace, BuiltIn::Opara, None);
    assert_eq!(schedule.streams(), 2);
    assert_eq!(layout.offset(0), layout.offset(2), "the first buffer is dead when the third is written");
    assert_eq!(layout.bytes, 3 * BYTES, "the branch's buffer is alive beside any of the chain's");
}

#[test]
fn under_a_limit_a_branch_waits_for_memory() {
    let trace = small();
    let (layout, schedule) = planned(&trace, BuiltIn::Opara, Some(2 * BYTES));
    assert_eq!((layout.bytes, layout.waits()), (2 * BYTES, &[(2, 3)][..]), "op 3 takes the place of op 1's buffer");
    assert_eq!(schedule.predecessors[3], [2]);
    check::layout(&trace, &schedule, &layout).unwrap();
    let without = planned(&trace, BuiltIn::Opara, None).1;
    assert!(check::layout(&trace, &without, &layout).unwrap_err().to_string().contains("share bytes"));
}

/// The launches of candle for consecutive grouped convolutions: for each group, one that reads a whole buffer and
/// writes a separate one; then for each group, a copy of that into its part of the next buffer.
fn grouped(layers: usize, groups: usize) -> Trace {
    let (part, all) = (BYTES, groups as u64 * BYTES);
    let access = |buffer, start, bytes, mode| Access { buffer, region: Region::contiguous(start, bytes), mode };
    let op = |name: &str, accesses| Op {
        name: name.into(),
        label: String::new(),
        work: Work::Memset(0),
        accesses,
        nanos: None,
        meaning: None,
    };
    let whole = |layer: usize| layer * (groups + 1);
    let own = |layer: usize, group: usize| whole(layer) + 1 + group;
    let mut ops = vec![op("memset", vec![access(whole(0), 0, all, AccessMode::Write)])];
    for layer in 0..layers {
        ops.extend((0..groups).map(|group| {
            let reads = access(whole(layer), 0, all, AccessMode::Read);
            op("implicit_convolve_sgemm", vec![reads, access(own(layer, group), 0, part, AccessMode::Write)])
        }));
        ops.extend((0..groups).map(|group| {
            let reads = access(own(layer, group), 0, part, AccessMode::Read);
            op("copy2d_f32", vec![reads, access(whole(layer + 1), group as u64 * part, part, AccessMode::Write)])
        }));
    }
    let buffers = (0..=whole(layers))
        .map(|id| Buffer { bytes: if id % (groups + 1) == 0 { all } else { part }, role: Role::Intermediate });
    Trace { ops, buffers: buffers.collect(), ..Default::default() }
}

#[test]
fn wide_buffers_reuse_memory_without_a_wait_for_every_pair() {
    const GROUPS: usize = 64;
    const LAYERS: usize = 6;
    let trace = grouped(LAYERS, GROUPS);
    trace.validate().unwrap();
    let limit = 2 * GROUPS as u64 * BYTES;
    let (layout, schedule) = planned(&trace, BuiltIn::Opara, Some(limit));
    check::layout(&trace, &schedule, &layout).unwrap();
    assert_eq!(layout.bytes, limit);
    let waits = layout.waits().len();
    assert!((LAYERS * GROUPS..3 * LAYERS * GROUPS).contains(&waits), "{waits} waits");
}

#[test]
fn the_checker_finds_invalid_schedules_and_layouts() {
    let trace = small();
    let good = scheduled(&trace, BuiltIn::Opara);
    let broken = |edit: &dyn Fn(&mut Schedule)| {
        let mut schedule = good.clone();
        edit(&mut schedule);
        check::schedule(&trace, &schedule).unwrap_err().to_string()
    };
    assert!(broken(&|s| s.order.swap(0, 1)).contains("launched after"));
    assert!(broken(&|s| s.order[0] = s.order[1]).contains("twice"));
    assert!(broken(&|s| s.order.truncate(3)).contains("3 ops"));
    assert!(broken(&|s| s.stream[0] = usize::MAX).contains("op 0 is on stream"));
    assert!(broken(&|s| s.barriers = vec![2, 1]).contains("ascending"));
    assert!(broken(&|s| s.barriers = vec![usize::MAX]).contains("inside the order"));
    // Its buffers do not need this, but a stream is a queue.
    assert!(broken(&|s| {
        s.stream[3] = 0;
        s.predecessors[3].clear()
    })
    .contains("op 3 does not wait for op 2"));
    assert!(broken(&|s| s.predecessors[2] = vec![1, 1]).contains("not in launch order"));
    assert!(broken(&|s| {
        s.stream[1] = 2;
        s.predecessors[1].clear()
    })
    .contains("may overtake"));
    assert!(broken(&|s| {
        s.stream[2] = 2;
        s.predecessors[2] = vec![0, 1]
    })
    .contains("already waits"));

    let overlapping = Layout::new(2 * BYTES, vec![Some(0), Some(512), Some(0), Some(BYTES)]);
    assert!(check::layout(&trace, &good, &overlapping).unwrap_err().to_string().contains("share bytes"));
    let outside = Layout::new(BYTES, vec![Some(0), Some(512), Some(0), Some(0)]);
    assert!(check::layout(&trace, &good, &outside).unwrap_err().to_string().contains("outside"));
    let missing = Layout::new(BYTES, vec![Some(0), None, None, None]);
    assert!(check::layout(&trace, &good, &missing).unwrap_err().to_string().contains("no place"));
}

/// Traces of the zoo, recorded on an NVIDIA H200 by `benches/zoo --traces`, and of the six models by
/// `opara record --measure`.
fn recorded() -> Vec<(String, Trace)> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty());
    files.into_iter().map(|file| (file.display().to_string(), Trace::load(&file).unwrap())).collect()
}

#[test]
fn recorded_traces_get_valid_schedules_within_their_memory() {
    for (name, recorded) in recorded() {
        let limit = recorded.memory_limit(1.15).expect("the recorded peak");
        let prepared = Prepared::new(&recorded, Settings::default());
        let used = prepared.layouts[0].bytes + prepared.ops.constant_bytes();
        assert!(used <= limit, "{name}: an arena and constants of {used} bytes, where {limit} are allowed");
        for scheduler in BuiltIn::FIXED {
            let schedule = scheduler.schedule(&prepared.problem()).unwrap();
            prepared.check(&schedule).unwrap_or_else(|error| panic!("{name}, {scheduler}: {error}"));
        }
        let graph = OpGraph::new(&prepared.ops.trace);
        // This library's T5 computes queries, keys and values with one matmul, so its encoder is a chain.
        let parallel = graph.width() >= 2 && graph.depth() < graph.len();
        assert!(parallel || name.contains("native-t5"), "{name}: no parallelism");
    }
}
