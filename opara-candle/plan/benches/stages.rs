//! How long the stages before a replay take, by the size of the trace: reading a file, folding, dependency analysis,
//! memory, profile, each scheduler, the simulator, and the checker. Traces are made, or recorded of models with grouped convolutions.

use std::hint::black_box;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use criterion::{BenchmarkId, Criterion, Throughput};
use opara_plan::graph::OpGraph;
use opara_plan::optimize::Optimized;
use opara_plan::prepared::{Prepared, Settings};
use opara_plan::profile::profile;
use opara_plan::schedule::Scheduler;
use opara_plan::simulate::{simulate, DeviceModel};
use opara_plan::trace::{Access, AccessMode, Buffer, DeviceSpec, Launch, Op, Region, Role, Trace, Work};
use opara_plan::{check, memory, BuiltIn};

const SIZES: [usize; 3] = [1_000, 10_000, 100_000];

/// Recorded traces: 22,000 and 62,000 launches, most of them parts of grouped convolutions.
const WIDE: [&str; 2] = ["efficientnet-b0-f32", "convmixer-1024-20-f32"];

/// Ops above which the checker, which is quadratic, IOS, which searches, and the simulator are left out.
const SLOW: usize = 10_000;

/// Bytes of a buffer.
const BYTES: u64 = 64 << 10;

/// Blocks of four branches of one to four ops between joins, as in GoogLeNet: ten ops and a join each. Every op writes its own
/// buffer and reads the buffers of the ops before it. The first op of each branch also reads a weight.
fn blocks(ops: usize) -> Trace {
    let before = |op: usize| -> Vec<usize> {
        let join = op / 11 * 11;
        match op - join {
            0 => [1, 3, 6, 10].iter().filter_map(|branch| (join + branch).checked_sub(11)).collect(),
            1 | 2 | 4 | 7 => vec![join],
            _ => vec![op - 1],
        }
    };
    let device = DeviceSpec {
        name: "NVIDIA H200".into(),
        processors: 132,
        threads_per_processor: 2048,
        registers_per_processor: 65_536,
        shared_memory_per_processor: 233_472,
    };
    let whole = |buffer, mode| Access { buffer, region: Region::contiguous(0, BYTES), mode };
    let launch = |op: usize| Launch {
        grid: [1 + (op * 7919 % 300) as u32, 1, 1],
        block: [128, 1, 1],
        registers: 64,
        dynamic_shared: (op * 104_729 % 48_000) as u32,
        resident_blocks: 4,
        ..Default::default()
    };
    let input = Buffer { bytes: BYTES, role: Role::Input(0) };
    let weight = Buffer { bytes: BYTES, role: Role::External };
    let made = (0..ops).map(|op| {
        let role = if op + 1 == ops { Role::Output(0) } else { Role::Intermediate };
        Buffer { bytes: BYTES, role }
    });
    let op = |op: usize| {
        let sources: Vec<usize> = before(op).into_iter().map(|before| before + 2).collect();
        let sources = if sources.is_empty() { vec![0] } else { sources };
        let weights = (op % 11 == 1).then_some(1);
        let reads = sources.into_iter().chain(weights).map(|buffer| whole(buffer, AccessMode::Read));
        Op {
            name: if op.is_multiple_of(3) { "sm90_xmma_fprop_implicit_gemm".into() } else { "urelu_f32".into() },
            label: format!("block{}/branch", op / 11),
            work: Work::Kernel(launch(op)),
            accesses: reads.chain([whole(op + 2, AccessMode::Write)]).collect(),
            nanos: Some(2_000 + (op * 37 % 5_000) as u64),
            meaning: None,
        }
    };
    Trace {
        device,
        ops: (0..ops).map(op).collect(),
        buffers: [input, weight].into_iter().chain(made).collect(),
        peak_bytes: 8 * BYTES,
        measured: Vec::new(),
    }
}

fn main() -> Result<()> {
    let mut criterion = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(100))
        .measurement_time(Duration::from_millis(800))
        .configure_from_args();
    let mut traces: Vec<(String, Trace)> = SIZES.map(|ops| (ops.to_string(), blocks(ops))).into();
    let recorded = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data");
    for name in WIDE {
        traces.push((name.into(), Trace::load(recorded.join(name).with_extension("trace"))?));
    }
    for (name, trace) in traces {
        let ops = trace.ops.len();
        let mut file = Vec::new();
        trace.write_to(&mut file)?;
        let prepared = Prepared::new(&trace, Settings::default());
        let graph = OpGraph::new(&prepared.ops.trace);
        let limit = trace.memory_limit(1.15);
        let mut stage = |stage: &str, run: &mut dyn FnMut()| {
            let mut group = criterion.benchmark_group(stage);
            group.throughput(Throughput::Elements(ops as u64));
            group.bench_function(BenchmarkId::from_parameter(&name), |b| b.iter(&mut *run));
            group.finish();
        };
        stage("read", &mut || drop(black_box(Trace::read_from(&file[..]))));
        stage("optimize", &mut || drop(black_box(Optimized::fold_within(&trace, u64::MAX))));
        stage("graph", &mut || drop(black_box(OpGraph::new(&prepared.ops.trace))));
        stage("memory", &mut || drop(black_box(memory::plan(&prepared.ops.trace, &graph, Role::Intermediate, limit))));
        stage("profile", &mut || drop(black_box(profile(&prepared.ops.trace))));
        for scheduler in BuiltIn::FIXED.into_iter().filter(|&scheduler| ops <= SLOW || scheduler != BuiltIn::Ios) {
            stage(&format!("schedule/{scheduler}"), &mut || drop(black_box(scheduler.schedule(&prepared.problem()))));
        }
        if ops <= SLOW {
            let schedule = BuiltIn::Opara.schedule(&prepared.problem())?;
            let device = DeviceModel::of(&prepared.ops.trace.device);
            stage("simulate", &mut || drop(black_box(simulate(&prepared.problem(), &schedule, &device))));
            stage("check", &mut || drop(black_box(check::schedule(&prepared.ops.trace, &schedule))));
        }
    }
    criterion.final_summary();
    Ok(())
}
