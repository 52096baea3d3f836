//! Whole models on the CPU, one item: eager against the executor.

use std::cell::OnceCell;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use candle::{DType, Device, Module, Tensor};
use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion};
use opara_candle::OparaExecutor;
use opara_models::googlenet::{self, GoogLeNet};
use opara_models::inception::{self, InceptionV3};
use opara_models::nasnet::{self, NasNet};

const MEASUREMENT: Duration = Duration::from_secs(15);

fn main() -> Result<()> {
    let mut criterion = Criterion::default().sample_size(10).measurement_time(MEASUREMENT).configure_from_args();
    let vb = opara_weights::seeded(0, DType::F32, &Device::Cpu);

    let mut model = |name: &str, side, load: &dyn Fn() -> candle::Result<Arc<dyn Module + Send + Sync>>| {
        bench(criterion.benchmark_group(name), load()?, &image(side)?)
    };
    model("googlenet", 224, &|| Ok(Arc::new(GoogLeNet::load(vb.clone(), &googlenet::Config::default())?)))?;
    model("inception_v3", 299, &|| Ok(Arc::new(InceptionV3::load(vb.clone(), &inception::Config::default())?)))?;
    model("nasnet_mobile", 224, &|| Ok(Arc::new(NasNet::load(vb.clone(), &nasnet::Config::mobile())?)))?;
    model("nasnet_large", 331, &|| Ok(Arc::new(NasNet::load(vb.clone(), &nasnet::Config::large())?)))
}

fn image(side: usize) -> candle::Result<Tensor> {
    Tensor::rand(-1f32, 1., (1, 3, side, side), &Device::Cpu)
}

/// Measures `model` on `input` in both ways and prints the executor's report.
fn bench(mut group: BenchmarkGroup<WallTime>, model: Arc<dyn Module + Send + Sync>, input: &Tensor) -> Result<()> {
    // Made when it is first needed, since criterion may be told to leave it out.
    let executor = OnceCell::new();
    group.bench_function("eager", |b| b.iter(|| black_box(model.forward(input))));
    group.bench_function("executor", |b| {
        let run = model.clone();
        let executor = executor.get_or_init(|| OparaExecutor::new(move |input: &Tensor| run.forward(input), input));
        b.iter(|| black_box(executor.as_ref().map(|executor| executor.forward(input))))
    });
    group.finish();
    if let Some(executor) = executor.into_inner().transpose()? {
        println!("{}", executor.report());
    }
    Ok(())
}
