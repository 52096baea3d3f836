use std::path::{Path, PathBuf};

use proptest::prelude::*;
use rayon::prelude::*;

use super::*;
use crate::graph::OpGraph;
use crate::prepared::Prepared;
use crate::prepared::Settings;
use crate::schedule::{BuiltIn, Scheduler};
use crate::trace::{Access, AccessMode, Buffer, DeviceSpec, Launch, Op, Region, Role, Trace, Work};

const US: f64 = 1e-6;

fn h200() -> DeviceModel {
    DeviceModel::named("h200").unwrap()
}

/// An op of `blocks` blocks that takes `us` alone, and writes its own buffer of `bytes` bytes.
fn op(name: &str, blocks: u32, us: u64, buffer: usize, bytes: u64) -> Op {
    let launch = Launch { grid: [blocks, 1, 1], block: [256, 1, 1], registers: 32, ..Default::default() };
    let region = Region::contiguous(0, bytes);
    Op {
        name: name.into(),
        label: String::new(),
        work: Work::Kernel(launch),
        accesses: vec![Access { buffer, region, mode: AccessMode::Write }],
        nanos: Some(us * 1000),
        meaning: None,
    }
}

fn prepared(ops: Vec<Op>) -> Prepared {
    let bytes = |op: &Op| op.accesses.iter().map(|a| a.region.end()).max().unwrap_or(0);
    let buffers = ops.iter().map(|op| Buffer { bytes: bytes(op), role: Role::Output(0) }).collect();
    let trace = Trace { device: h200().spec, ops, buffers, ..Default::default() };
    Prepared::new(&trace, Settings { fold_constants: false, ..Settings::default() })
}

/// Two ops on streams of their own; returns when each ran.
fn pair(ops: [Op; 2]) -> [Span; 2] {
    let prepared = prepared(ops.into());
    let schedule = Schedule::new(&prepared.graph, vec![0, 1], vec![0, 1]).unwrap();
    let timeline = simulate(&prepared.problem(), &schedule, &h200());
    [timeline.spans[0], timeline.spans[1]]
}

fn us(span: Span) -> f64 {
    span.end_us - span.start_us
}

#[test]
fn small_kernels_overlap_and_large_ones_do_not() {
    let [first, second] = pair([op("a", 8, 10, 0, 64), op("b", 8, 10, 1, 64)]);
    assert_eq!(first.start_us, second.start_us);
    assert!((us(first) - 10.).abs() < US && (us(second) - 10.).abs() < US);
    // Eight blocks of 256 threads fill a multiprocessor.
    let full = 132 * 8;
    let [first, second] = pair([op("a", full, 10, 0, 64), op("b", full, 10, 1, 64)]);
    assert!(second.start_us >= first.end_us);
    // The second op takes the room that the first leaves free; its other blocks wait for the first.
    let [first, second] = pair([op("a", full * 3 / 4, 10, 0, 64), op("b", full / 2, 10, 1, 64)]);
    assert_eq!(first.start_us, second.start_us);
    assert!((us(second) - 20.).abs() < US, "{second:?}");
}

#[test]
fn ops_that_share_bandwidth_slow_down() {
    let bytes = 40_000_000;
    let memory = |buffer| op("uexp_f32", 132, 10, buffer, bytes);
    let compute = |buffer| op("ampere_sgemm", 132, 10, buffer, bytes / 3);
    let [first, second] = pair([memory(0), memory(1)]);
    let both = us(first).max(us(second));
    let [first, second] = pair([memory(0), compute(1)]);
    let mixed = us(first).max(us(second));
    let [first, second] = pair([compute(0), compute(1)]);
    let computed = us(first).max(us(second));
    // 80 MB at 4.8 TB/s.
    assert!((both - 16.667).abs() < 0.01, "{both}");
    assert!(10. < mixed && mixed < both, "{mixed} {both}");
    assert!((computed - 10.).abs() < US);
}

#[test]
fn ops_in_flight_are_limited() {
    let prepared = prepared((0..6).map(|i| op("a", 1, 10, i, 64)).collect());
    let schedule = Schedule::new(&prepared.graph, (0..6).collect(), (0..6).collect()).unwrap();
    let device = DeviceModel { queues: 2, ..h200() };
    let starts: Vec<f64> =
        simulate(&prepared.problem(), &schedule, &device).spans.iter().map(|span| span.start_us).collect();
    for (start, expected) in starts.into_iter().zip([0., 0., 10., 10., 20., 20.]) {
        assert!((start - expected).abs() < US);
    }
}

#[test]
fn only_waits_outside_a_chain_have_a_latency() {
    let mut prepared = prepared((0..5).map(|i| op("a", 1, 10, i, 64)).collect());
    prepared.graph = OpGraph::from_predecessors(vec![vec![], vec![0], vec![1], vec![1], vec![2, 3]]);
    let schedule = BuiltIn::Opara.schedule(&prepared.problem()).unwrap();
    let mut spans = simulate(&prepared.problem(), &schedule, &h200()).spans;
    spans.sort_by_key(|span| span.op);
    let starts: Vec<f64> = spans.iter().map(|span| span.start_us).collect();
    let DeviceModel { wait_us, edge_us, .. } = h200();
    let fork = 20. + wait_us;
    for (start, expected) in starts.into_iter().zip([0., 10., fork, fork, fork + 10. + wait_us + edge_us]) {
        assert!((start - expected).abs() < US, "{start} {expected}");
    }
}

#[test]
fn memory_decides_for_memory_and_arithmetic_for_arithmetic() {
    let us = |name: &str, device: &DeviceModel| {
        let mut ops = vec![op(name, 1056, 100, 0, 400_000_000)];
        let read = Access { buffer: 0, region: Region::contiguous(0, 400_000_000), mode: AccessMode::Read };
        ops[0].accesses.extend([read, Access { region: Region::contiguous(0, 200_000_000), ..read }]);
        let prepared = prepared(ops);
        let schedule = BuiltIn::Sequential.schedule(&prepared.problem()).unwrap();
        simulate(&prepared.problem(), &schedule, device).total_us
    };
    let h100 = DeviceModel::named("h100").unwrap();
    let memory = us("uexp_f32", &h100) / us("uexp_f32", &h200());
    assert!((memory - 4800. / 3352.).abs() < 0.03, "{memory}");
    let half = DeviceModel { fp32_tflops: h200().fp32_tflops / 2., ..h200() };
    let compute = us("sgemm", &half) / us("sgemm", &h200());
    assert!((compute - 2.).abs() < 0.03, "{compute}");
    assert_eq!(us("uexp_f32", &half), us("uexp_f32", &h200()));
}

#[test]
fn a_barrier_joins_streams() {
    let prepared = prepared((0..4).map(|i| op("a", 1, 10 * (i as u64 + 1), i, 64)).collect());
    let schedule = Schedule::with_barriers(&prepared.graph, vec![0, 1, 0, 1], vec![0, 1, 2, 3], vec![2]).unwrap();
    let spans = simulate(&prepared.problem(), &schedule, &h200()).spans;
    assert!(spans[2].start_us >= spans[1].end_us && spans[3].start_us >= spans[1].end_us);
}

#[test]
fn devices_that_make_no_sense_still_end() {
    let prepared = prepared((0..4).map(|i| op("sgemm", 500, 10, i, 4096)).collect());
    let schedule = BuiltIn::Opara.schedule(&prepared.problem()).unwrap();
    for odd in [0., -1., f64::NAN, f64::INFINITY] {
        let device = DeviceModel {
            spec: Default::default(),
            blocks_per_processor: 0,
            bandwidth_gbs: odd,
            fp32_tflops: odd,
            kernel_us: odd,
            wait_us: odd,
            edge_us: odd,
            queues: 0,
            ..h200()
        };
        let timeline = simulate(&prepared.problem(), &schedule, &device);
        assert!(timeline.spans.len() == 4 && timeline.total_us.is_finite());
    }
}

/// Ops with the dependencies of a random graph, and for each a stream.
fn problems() -> impl Strategy<Value = (Vec<Op>, Vec<Vec<usize>>, Vec<usize>)> {
    let op = (1u32..3000, 1u64..50, prop_oneof![Just("sgemm"), Just("uexp_f32")], 0u64..100_000_000);
    prop::collection::vec((op, prop::collection::vec(any::<prop::sample::Index>(), 0..3), 0usize..6), 1..40).prop_map(
        |ops| {
            let edges = |at: usize, picks: &[prop::sample::Index]| match at {
                0 => Vec::new(),
                _ => picks.iter().map(|pick| pick.index(at)).collect(),
            };
            let predecessors = ops.iter().enumerate().map(|(at, (_, picks, _))| edges(at, picks)).collect();
            let streams = ops.iter().map(|(_, _, stream)| *stream).collect();
            let ops = ops.into_iter().enumerate();
            let ops = ops.map(|(at, ((blocks, us, name, bytes), _, _))| self::op(name, blocks, us, at, bytes));
            (ops.collect(), predecessors, streams)
        },
    )
}

/// No op starts before its predecessors end, and each runs once and takes its time.
fn holds(prepared: &Prepared, schedule: &Schedule, timeline: &Timeline) {
    let mut times = vec![None; schedule.order.len()];
    for span in &timeline.spans {
        assert!(times[span.op].replace((span.start_us, span.end_us)).is_none(), "op {} ran twice", span.op);
        assert_eq!(span.stream, schedule.stream[span.op]);
    }
    let times: Vec<(f64, f64)> = times.into_iter().map(|time| time.expect("every op runs")).collect();
    let mut finished = Vec::new();
    for step in schedule.steps() {
        let ready = step.after.iter().map(|&before: &usize| finished[before]).fold(0., f64::max);
        finished.push(match step.op {
            Some(op) => {
                assert!(times[op].0 >= ready - US);
                let taken = times[op].1 - times[op].0;
                assert!(taken >= prepared.profile[op].us - US * prepared.profile[op].us.max(1.));
                times[op].1
            }
            None => ready,
        });
    }
}

proptest! {
    #[test]
    fn nothing_is_faster_than_it_can_be((ops, predecessors, streams) in problems()) {
        let mut prepared = prepared(ops);
        let device = h200();
        prepared.graph = OpGraph::from_predecessors(predecessors);
        let n = prepared.profile.len();
        let schedule = Schedule::new(&prepared.graph, streams, (0..n).collect()).unwrap();
        let timeline = simulate(&prepared.problem(), &schedule, &device);
        holds(&prepared, &schedule, &timeline);

        let cost: Vec<f64> = prepared.profile.iter().map(|cost| cost.us).collect();
        prop_assert!(timeline.total_us >= prepared.graph.critical_path(&cost).1 - US);
        // A multiprocessor has room for eight of these blocks.
        let work = |op: usize| {
            let waves = match &prepared.ops.trace.ops[op].work {
                Work::Kernel(launch) => launch.blocks() as f64 / (132. * 8.),
                _ => 0.,
            };
            prepared.profile[op].us * (waves / waves.ceil())
        };
        prop_assert!(timeline.total_us >= (0..n).map(work).sum::<f64>() - US);
        prop_assert!((0. ..=1. + US).contains(&timeline.utilization()));

        let sequential = BuiltIn::Sequential.schedule(&prepared.problem()).unwrap();
        let total = simulate(&prepared.problem(), &sequential, &device).total_us;
        prop_assert!((total - cost.iter().sum::<f64>()).abs() < US * total);
    }
}

fn recorded(select: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data");
    let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    files.filter(|file| file.extension().is_some_and(|e| e == "trace") && select(&stem(file))).collect()
}

fn stem(file: &Path) -> String {
    file.file_stem().unwrap().to_string_lossy().into_owned()
}

#[test]
fn every_recorded_trace_can_be_simulated_on_another_device() {
    recorded(|_| true).par_iter().for_each(|file| {
        let trace = Trace::load(file).unwrap();
        let recorded = DeviceModel::of(&trace.device);
        for op in &trace.ops {
            if let Work::Kernel(launch) = &op.work {
                assert_eq!(recorded.resident_blocks(launch), launch.resident_blocks, "{file:?} {}", op.name);
            }
        }
        let prepared = Prepared::new(&trace, Settings::default());
        let native = stem(file).starts_with("native-");
        for scheduler in BuiltIn::FIXED.into_iter().filter(|&scheduler| native || scheduler == BuiltIn::default()) {
            let schedule = scheduler.schedule(&prepared.problem()).unwrap();
            let timeline = simulate(&prepared.problem(), &schedule, &recorded);
            holds(&prepared, &schedule, &timeline);
            if scheduler == BuiltIn::default() {
                let a100 = simulate(&prepared.problem(), &schedule, &DeviceModel::named("a100").unwrap());
                // A timeline that is all latency takes as long.
                assert!(a100.total_us.is_finite() && a100.total_us >= timeline.total_us - US, "{file:?}");
            }
        }
    });
}

#[test]
fn simulated_times_agree_with_measured_ones() {
    let compare = |file: &PathBuf| {
        let trace = Trace::load(file).unwrap();
        let compared = SimulatedAndMeasured::all(&trace, &Prepared::new(&trace, Settings::default())).unwrap();
        assert_eq!(compared.len(), BuiltIn::FIXED.len(), "{file:?}");
        (stem(file), compared.iter().map(|one| (one.simulated_us, one.measured_us)).collect::<Vec<_>>())
    };
    let traces: Vec<_> = recorded(|name| name.starts_with("native-")).par_iter().map(compare).collect();
    assert_eq!(traces.len(), 12);
    let all: Vec<_> = traces.iter().flat_map(|(_, pairs)| pairs.iter().copied()).collect();
    let median = Agreement::of(&all).unwrap().median_error;
    assert!(median < 0.04, "{median}");
    for (name, pairs) in traces {
        let Agreement { median_error, rank_correlation, .. } = Agreement::of(&pairs).unwrap();
        assert!(median_error < 0.1, "{name} {median_error}");
        // On T5 all schedulers measure the same. On DeepFM, IOS measures slower than it is simulated.
        let least = match name.contains("deepfm") {
            true => 0.45,
            false => 0.65,
        };
        assert!(rank_correlation.is_none_or(|rank| rank > least), "{name} {rank_correlation:?}");
        assert_eq!(rank_correlation.is_none(), name.contains("t5"), "{name} {rank_correlation:?}");
    }
}

#[test]
fn the_largest_device_and_kernels_are_simulated() {
    let huge = |i: usize| {
        let launch = Launch { grid: [1 << 20, 1 << 20, 1], block: [1024, 1, 1], registers: 32, ..Default::default() };
        let nanos = (i > 0).then_some(1 << (4 * i));
        Op { work: Work::Kernel(launch), nanos, ..op("uexp_f32", 1, 0, i, 1 << 40) }
    };
    let mut prepared = prepared((0..12).map(huge).collect());
    let most = 1 << 28;
    let spec = DeviceSpec {
        name: "NVIDIA H200".into(),
        processors: 65_535,
        threads_per_processor: most,
        registers_per_processor: most,
        shared_memory_per_processor: most,
    };
    prepared.ops.trace.device = spec.clone();
    let device = DeviceModel::of(&spec);
    for scheduler in [BuiltIn::Sequential, BuiltIn::Opara] {
        let schedule = scheduler.schedule(&prepared.problem()).unwrap();
        let timeline = simulate(&prepared.problem(), &schedule, &device);
        assert!(timeline.spans.len() == 12 && timeline.total_us.is_finite());
    }
}

#[test]
fn long_traces_are_simulated() {
    const OPS: usize = 10_000;
    let ops = (0..OPS).map(|i| op("uexp_f32", 1 + (i * 7919 % 3000) as u32, 1 + (i * 104_729 % 40) as u64, i, 4096));
    let mut prepared = prepared(ops.collect());
    let before = |op: usize| if op < 64 { vec![] } else { vec![op - 64 + op % 7] };
    prepared.graph = OpGraph::from_predecessors((0..OPS).map(before).collect());
    let schedule = Schedule::new(&prepared.graph, (0..OPS).map(|op| op % 64).collect(), (0..OPS).collect()).unwrap();
    assert_eq!(simulate(&prepared.problem(), &schedule, &h200()).spans.len(), OPS);
}
