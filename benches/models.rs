//! Whole models on the CPU, one item: eager on candle's operators alone, eager on the library's, and the executor.

use std::cell::OnceCell;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use candle::{DType, Device, Module, Tensor};
use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion};
use opara_candle::{ops, OparaExecutor};
use opara_models::bert::{self, BertModel};
use opara_models::deepfm::{self, DeepFm};
use opara_models::googlenet::{self, GoogLeNet};
use opara_models::inception::{self, InceptionV3};
use opara_models::nasnet::{self, NasNet};
use opara_models::t5::{self, T5Encoder};

const MEASUREMENT: Duration = Duration::from_secs(15);

fn main() -> Result<()> {
    let mut criterion = Criterion::default().sample_size(10).measurement_time(MEASUREMENT).configure_from_args();
    let vb = opara_weights::seeded(0, DType::F32, &Device::Cpu);

    let mut model = |name: &str, input, load: &dyn Fn() -> candle::Result<Arc<dyn Module + Send + Sync>>| {
        bench(criterion.benchmark_group(name), load()?, &input)
    };
    model("bert_base", ids((1, 128))?, &|| Ok(Arc::new(BertModel::load(vb.clone(), &bert::Config::base())?)))?;
    model("t5_small_encoder", ids((1, 128))?, &|| {
        Ok(Arc::new(Encoder(T5Encoder::load(vb.clone(), &t5::Config::small())?)))
    })?;
    model("deepfm", ids((64, 26))?, &|| Ok(Arc::new(DeepFm::load(vb.clone(), &deepfm::Config::criteo())?)))?;
    model("googlenet", image(224)?, &|| Ok(Arc::new(GoogLeNet::load(vb.clone(), &googlenet::Config::default())?)))?;
    model("inception_v3", image(299)?, &|| {
        Ok(Arc::new(InceptionV3::load(vb.clone(), &inception::Config::default())?))
    })?;
    model("nasnet_mobile", image(224)?, &|| Ok(Arc::new(NasNet::load(vb.clone(), &nasnet::Config::mobile())?)))?;
    model("nasnet_large", image(331)?, &|| Ok(Arc::new(NasNet::load(vb.clone(), &nasnet::Config::large())?)))
}

/// The encoder as a module of one input.
struct Encoder(T5Encoder);

impl Module for Encoder {
    fn forward(&self, ids: &Tensor) -> candle::Result<Tensor> {
        self.0.forward(ids, None)
    }
}

fn ids(shape: (usize, usize)) -> candle::Result<Tensor> {
    Tensor::from_iter((0..shape.0 * shape.1).map(|i| (37 * i % 10_000) as u32), &Device::Cpu)?.reshape(shape)
}

fn image(side: usize) -> candle::Result<Tensor> {
    Tensor::rand(-1f32, 1., (1, 3, side, side), &Device::Cpu)
}

/// Measures `model` on `input` in all three ways and prints the executor's report.
fn bench(mut group: BenchmarkGroup<WallTime>, model: Arc<dyn Module + Send + Sync>, input: &Tensor) -> Result<()> {
    // Made when it is first needed, since criterion may be told to leave it out.
    let executor = OnceCell::new();
    ops::use_candle_only(true);
    group.bench_function("candle", |b| b.iter(|| black_box(model.forward(input))));
    ops::use_candle_only(false);
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
