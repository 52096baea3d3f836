//! Products with quantised weights, replayed: candle's kernels (`QMatMul`) and this library's (`ops::quantized_linear`), as the feed-forward
//! networks of Llama-3.1-8B have them, two layers one after the other. Runs on a GPU if there is one.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{ensure, Result};
use candle::quantized::{GgmlDType, QMatMul, QTensor};
use candle::{Device, Module, Tensor};
use criterion::Criterion;
use opara_candle::ops::{self, QuantizedWeight};
use opara_candle::{Numerics, OparaExecutor};

const MEASUREMENT: Duration = Duration::from_millis(300);
const LAYERS: usize = 2;
/// Calls of a measurement: a call takes less than launching it and waiting for it.
const CALLS: usize = 50;

fn main() -> Result<()> {
    let mut criterion = Criterion::default()
        .sample_size(10)
        .warm_up_time(MEASUREMENT)
        .measurement_time(MEASUREMENT)
        .configure_from_args();
    let device = opara_candle::cuda_device(0).unwrap_or(Device::Cpu);
    let (hidden, inner) = if device.is_cuda() { (4096, 14336) } else { (256, 512) };
    for dtype in [GgmlDType::Q4_0, GgmlDType::Q4K, GgmlDType::Q6K, GgmlDType::Q8_0] {
        let shapes = [(inner, hidden), (hidden, inner)].repeat(LAYERS);
        let weight = |(out, columns): (usize, usize)| -> Result<Arc<QTensor>> {
            let bound = (3. / columns as f64).sqrt();
            let weight = Tensor::rand(-bound as f32, bound as f32, (out, columns), &Device::Cpu)?;
            // Each tensor's blocks are on the CPU, where both sides take them from.
            Ok(Arc::new(QTensor::quantize(&weight, dtype)?))
        };
        let weights = shapes.into_iter().map(weight).collect::<Result<Vec<_>>>()?;
        let candles = weights
            .iter()
            .map(|weight| {
                let data = candle::quantized::QStorage::from_data(weight.data()?, &device, dtype)?;
                QMatMul::from_arc(Arc::new(QTensor::new(data, weight.shape())?))
            })
            .collect::<candle::Result<Vec<_>>>()?;
        let ours: Vec<QuantizedWeight> =
            weights.iter().map(|weight| QuantizedWeight::new(&[weight], &device)).collect::<candle::Result<_>>()?;
        for rows in [1, 8] {
            let x = Tensor::rand(-1f32, 1., (rows, hidden), &device)?;
            let candles = candles.clone();
            let chain = move |x: &Tensor| candles.iter().try_fold(x.clone(), |x, weight| weight.forward(&x));
            let ours = ours.clone();
            let own = move |x: &Tensor| {
                ours.iter().try_fold(x.clone(), |x, weight| ops::quantized_linear(&x, None, weight, None, None))
            };
            let builder = || OparaExecutor::builder().numerics(Numerics::Exact);
            let (theirs, ours) = (builder().build(chain, &x)?, builder().build(own, &x)?);
            let (expected, got) = (theirs.forward(&x)?, ours.forward(&x)?);
            let apart = ((&got - &expected)?.sqr()?.mean_all()?.to_scalar::<f32>()?
                / expected.sqr()?.mean_all()?.to_scalar::<f32>()?)
            .sqrt();
            // Both round activations to 8 bits, each in groups of its own.
            ensure!(apart < 0.05, "{dtype:?}: results are {apart} apart");
            let mut group = criterion.benchmark_group(format!("{dtype:?}-{rows}-rows-{CALLS}-calls"));
            for (name, executor) in [("candle", &theirs), ("ours", &ours)] {
                group.bench_function(name, |b| {
                    b.iter(|| -> Result<()> {
                        for _ in 0..CALLS {
                            black_box(executor.forward(&x)?);
                        }
                        Ok(device.synchronize()?)
                    })
                });
            }
            group.finish();
        }
    }
    Ok(())
}
