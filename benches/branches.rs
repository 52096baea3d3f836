//! Inception-like blocks of four branches on the CPU: candle eager against the executor.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use candle::{DType, Device, Module, Tensor};
use candle_nn::{Conv2dConfig, VarBuilder};
use criterion::Criterion;
use opara_candle::nn::{conv2d, Conv2d};
use opara_candle::{ops, scope, OparaExecutor};

const CHANNELS: usize = 192;
const SIDE: usize = 28;
const BLOCKS: usize = 3;
const MEASUREMENT: Duration = Duration::from_secs(10);

/// Output channels of the branches: 1x1, 3x3 and 5x5 convolutions, and a 1x1 convolution of the pooled input.
const BRANCHES: [usize; 4] = [64, 128, 32, 32];

struct Block {
    convolutions: [Conv2d; 3],
    projection: Conv2d,
}

impl Block {
    fn load(input: usize, vb: VarBuilder) -> candle::Result<Self> {
        let branch = |index: usize, kernel: usize| {
            let config = Conv2dConfig { padding: kernel / 2, ..Default::default() };
            conv2d(input, BRANCHES[index], kernel, config, vb.pp(format!("branch{index}")))
        };
        Ok(Self { convolutions: [branch(0, 1)?, branch(1, 3)?, branch(2, 5)?], projection: branch(3, 1)? })
    }
}

impl Module for Block {
    fn forward(&self, x: &Tensor) -> candle::Result<Tensor> {
        let _scope = scope("block");
        // After a ReLU nothing is below zero, so padding with zeros does not change a maximum.
        let padded = ops::custom("pad", &[x], |x| x[0].pad_with_zeros(2, 1, 1)?.pad_with_zeros(3, 1, 1))?;
        let pooled = ops::max_pool2d(&padded, 3, 1)?;
        let inputs = [x, x, x, &pooled];
        let branches = self.convolutions.iter().chain([&self.projection]).zip(inputs);
        let branches = branches.map(|(conv, x)| ops::relu(&conv.forward(x)?)).collect::<candle::Result<Vec<_>>>()?;
        ops::cat(&branches.iter().collect::<Vec<_>>(), 1)
    }
}

fn main() -> Result<()> {
    let vb = opara_weights::seeded(0, DType::F32, &Device::Cpu);
    let channels = |index| if index == 0 { CHANNELS } else { BRANCHES.iter().sum() };
    let blocks = (0..BLOCKS).map(|i| Block::load(channels(i), vb.pp(i))).collect::<candle::Result<Vec<_>>>()?;
    let blocks = Arc::new(blocks);
    let model = move |x: &Tensor| blocks.iter().try_fold(x.clone(), |x, block| block.forward(&x));
    let x = Tensor::rand(0f32, 1., (1, CHANNELS, SIDE, SIDE), &Device::Cpu)?;

    let mut criterion = Criterion::default().sample_size(10).measurement_time(MEASUREMENT).configure_from_args();
    let mut group = criterion.benchmark_group("branches");
    group.bench_function("eager", |b| b.iter(|| black_box(model(&x))));
    let executor = OparaExecutor::new(model.clone(), &x)?;
    group.bench_function("executor", |b| b.iter(|| black_box(executor.forward(&x))));
    group.finish();
    println!("{}", executor.report());
    Ok(())
}
