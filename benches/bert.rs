//! BERT-base on the CPU, one sentence of 128 tokens: candle eager against the executor.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use candle::{DType, Device, Module, Tensor};
use candle_transformers::models::bert as candle_bert;
use criterion::Criterion;
use opara_candle::OparaExecutor;
use opara_models::bert::{BertModel, Config};

const SEQ_LEN: usize = 128;
const MEASUREMENT: Duration = Duration::from_secs(15);

fn main() -> Result<()> {
    let mut criterion = Criterion::default().sample_size(10).measurement_time(MEASUREMENT).configure_from_args();
    let mut group = criterion.benchmark_group("bert-base");
    let vb = opara_weights::seeded(0, DType::F32, &Device::Cpu);
    let ids = Tensor::arange(1u32, 1 + SEQ_LEN as u32, &Device::Cpu)?.unsqueeze(0)?;

    // Its default configuration is BERT-base.
    let reference = candle_bert::BertModel::load(vb.clone(), &candle_bert::Config::default())?;
    let types = ids.zeros_like()?;
    group.bench_function("candle-transformers", |b| b.iter(|| black_box(reference.forward(&ids, &types, None))));

    let model = Arc::new(BertModel::load(vb, &Config::base())?);
    let eager = model.clone();
    group.bench_function("eager", |b| b.iter(|| black_box(Module::forward(&*eager, &ids))));

    let executor = OparaExecutor::new(move |ids: &Tensor| Module::forward(&*model, ids), &ids)?;
    group.bench_function("executor", |b| b.iter(|| black_box(executor.forward(&ids))));
    group.finish();
    println!("{}", executor.report());
    Ok(())
}
