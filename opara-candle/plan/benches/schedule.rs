//! Times of the schedulers on the traces of the six models; `stages` measures them on traces of growing size.
//!
//! `table-1` measures only the two stream assignments, as Table I of Opara's paper does.

use std::hint::black_box;
use std::time::Duration;

use anyhow::Result;
use criterion::{Criterion, Throughput};
use opara_plan::lab::stream_assignment;
use opara_plan::prepared::{Prepared, Settings};
use opara_plan::schedule::{stream_allocation, Scheduler};
use opara_plan::trace::Trace;
use opara_plan::BuiltIn;

const MODELS: [&str; 6] = ["bert", "t5", "deepfm", "googlenet", "inception", "nasnet"];

fn main() -> Result<()> {
    let mut criterion = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(800))
        .configure_from_args();
    for model in MODELS {
        let path = format!("{}/../../tests/data/native-{model}-f32.trace", env!("CARGO_MANIFEST_DIR"));
        let prepared = Prepared::new(&Trace::load(path)?, Settings::default());
        let mut group = criterion.benchmark_group(format!("schedulers/{model}"));
        group.throughput(Throughput::Elements(prepared.graph.len() as u64));
        for scheduler in BuiltIn::FIXED {
            group.bench_function(scheduler.name(), |b| b.iter(|| scheduler.schedule(black_box(&prepared.problem()))));
        }
        group.finish();
        let mut group = criterion.benchmark_group(format!("table-1/{model}"));
        group.bench_function("opara", |b| b.iter(|| stream_allocation(black_box(&prepared.graph))));
        group.bench_function("nimble", |b| b.iter(|| stream_assignment(black_box(&prepared.graph))));
        group.finish();
    }
    criterion.final_summary();
    Ok(())
}
