//! The cost of re-checks: BERT-base with one sentence of 128 tokens, with no call, one call in 1,000, in 100 and in 10
//! re-checked. Runs on a GPU in f16 if there is one, else on the CPU in f32.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use candle::{DType, Device, Module, Tensor};
use criterion::Criterion;
use opara_candle::OparaExecutor;
use opara_models::bert::{BertModel, Config};

const SEQ_LEN: usize = 128;
const MEASUREMENT: Duration = Duration::from_secs(5);

fn main() -> Result<()> {
    let mut criterion = Criterion::default().sample_size(10).measurement_time(MEASUREMENT).configure_from_args();
    let mut group = criterion.benchmark_group("bert-base");
    let (device, dtype) = match opara_candle::cuda_device(0) {
        Ok(device) => (device, DType::F16),
        Err(_) => (Device::Cpu, DType::F32),
    };
    let model = Arc::new(BertModel::load(opara_weights::seeded(0, dtype, &device), &Config::base())?);
    let ids = Tensor::arange(1u32, 1 + SEQ_LEN as u32, &device)?.unsqueeze(0)?;
    for every in [0, 1000, 100, 10] {
        let model = model.clone();
        let module = move |ids: &Tensor| Module::forward(&*model, ids);
        let executor = OparaExecutor::builder().recheck(every).build(module, &ids)?;
        // Long enough that each measurement contains several re-checks.
        const CALLS: usize = 2000;
        group.bench_function(format!("{CALLS} calls, recheck {every}"), |b| {
            b.iter(|| -> Result<()> {
                for _ in 0..CALLS {
                    black_box(executor.forward(&ids)?);
                }
                Ok(device.synchronize()?)
            })
        });
    }
    group.finish();
    Ok(())
}
