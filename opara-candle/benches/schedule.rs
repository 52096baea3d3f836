//! How long schedulers take: each policy on the traces of the six models, and Opara on growing graphs.
//!
//! `table-1` holds the two stream assignments alone, as Table I of Opara's paper does.

use std::hint::black_box;
use std::time::Duration;

use anyhow::Result;
use criterion::{BenchmarkId, Criterion, Throughput};
use opara_candle::graph::OpGraph;
use opara_candle::prepared::{Prepared, Settings};
use opara_candle::profile::{Class, OpProfile};
use opara_candle::schedule::{stream_allocation, stream_assignment, Problem, Scheduler};
use opara_candle::trace::Trace;
use opara_candle::Policy;

const MODELS: [&str; 6] = ["bert", "t5", "deepfm", "googlenet", "inception", "nasnet"];

/// Ops of the growing graphs.
const SIZES: [usize; 3] = [1_000, 10_000, 100_000];

/// Blocks of four branches of one to four ops between joins, as in GoogLeNet, ten ops and a join each.
fn blocks(ops: usize) -> OpGraph {
    let predecessors = |op: usize| {
        let join = op / 11 * 11;
        match op - join {
            0 => [1, 3, 6, 10].iter().filter_map(|branch| (join + branch).checked_sub(11)).collect(),
            1 | 2 | 4 | 7 => vec![join],
            _ => vec![op - 1],
        }
    };
    OpGraph::from_predecessors((0..ops).map(predecessors).collect())
}

fn main() -> Result<()> {
    let mut criterion = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(800))
        .configure_from_args();
    for model in MODELS {
        let path = format!("{}/../tests/data/native-{model}-f32.trace", env!("CARGO_MANIFEST_DIR"));
        let prepared = Prepared::new(&Trace::load(path)?, Settings::default());
        let mut group = criterion.benchmark_group(format!("policies/{model}"));
        group.throughput(Throughput::Elements(prepared.graph.len() as u64));
        for policy in Policy::FIXED {
            group.bench_function(policy.name(), |b| b.iter(|| policy.schedule(black_box(&prepared.problem()))));
        }
        group.finish();
        let mut group = criterion.benchmark_group(format!("table-1/{model}"));
        group.bench_function("opara", |b| b.iter(|| stream_allocation(black_box(&prepared.graph))));
        group.bench_function("nimble", |b| b.iter(|| stream_assignment(black_box(&prepared.graph))));
        group.finish();
    }
    let mut group = criterion.benchmark_group("growth");
    for ops in SIZES {
        let graph = blocks(ops);
        let class = |op| if op % 3 == 0 { Class::Compute } else { Class::Memory };
        let profile: Vec<OpProfile> = (0..ops)
            .map(|op| OpProfile { class: class(op), demand: (op * 7 % 11) as f64 / 8., ..Default::default() })
            .collect();
        let trace = Trace::default();
        let problem = Problem { trace: &trace, graph: &graph, profile: &profile };
        group.throughput(Throughput::Elements(ops as u64));
        for policy in [Policy::Opara, Policy::Nimble] {
            let id = BenchmarkId::new(policy.name(), ops);
            group.bench_function(id, |b| b.iter(|| policy.schedule(black_box(&problem))));
        }
    }
    group.finish();
    criterion.final_summary();
    Ok(())
}
