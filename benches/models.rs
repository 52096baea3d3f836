//! Whole models on the CPU: eager with candle's operators only, eager with the library's operators, and the executor.

use std::cell::OnceCell;
use std::hint::black_box;
use std::time::Duration;

use anyhow::Result;
use candle::{DType, Device, Tensor};
use clap::ValueEnum;
use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion};
use opara_candle::{ops, OparaExecutor};
use opara_examples::{Model, Native};

const MEASUREMENT: Duration = Duration::from_secs(15);

fn main() -> Result<()> {
    let mut criterion = Criterion::default().sample_size(10).measurement_time(MEASUREMENT).configure_from_args();
    let vb = opara_weights::seeded(0, DType::F32, &Device::Cpu);
    for native in Native::value_variants() {
        // One row of categories is too little work to measure.
        let batch = if *native == Native::Deepfm { 64 } else { 1 };
        let input = native.example(batch, DType::F32, &Device::Cpu)?;
        bench(criterion.benchmark_group(native.name()), &native.load(vb.clone())?, &[input])?;
    }
    Ok(())
}

/// Measures `model` on `input` in all three modes and prints the executor's report.
fn bench(mut group: BenchmarkGroup<WallTime>, model: &Model, input: &[Tensor]) -> Result<()> {
    // Built on first use, because criterion may be told to skip it.
    let executor = OnceCell::new();
    ops::use_candle_only(true);
    group.bench_function("candle", |b| b.iter(|| black_box(model.call(input))));
    ops::use_candle_only(false);
    group.bench_function("eager", |b| b.iter(|| black_box(model.call(input))));
    group.bench_function("executor", |b| {
        let executor = executor.get_or_init(|| model.executor(OparaExecutor::builder(), input));
        b.iter(|| black_box(executor.as_ref().map(|executor| executor.call(input))))
    });
    group.finish();
    if let Some(executor) = executor.into_inner().transpose()? {
        println!("{}", executor.report());
    }
    Ok(())
}
