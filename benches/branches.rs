//! GoogLeNet's four-branch blocks on the CPU: candle eager against the executor.

use std::hint::black_box;
use std::time::Duration;

use anyhow::Result;
use candle::{DType, Device, Module, Tensor};
use candle_nn::VarBuilder;
use criterion::Criterion;
use opara_candle::nn::{conv2d, Conv2d};
use opara_candle::ops::{Activation, ConvConfig, PoolConfig};
use opara_candle::{ops, scope, OparaExecutor};

const MEASUREMENT: Duration = Duration::from_secs(5);

/// Name, height and width of the image, input channels, and output channels of: 1x1; 1x1 before 3x3, 3x3; 1x1 before
/// 5x5, 5x5; 1x1 after the pooling. (Szegedy et al., "Going Deeper with Convolutions", 2014, Table 1; with
/// torchvision's kernel size of 3 for the third branch.)
const BLOCKS: [(&str, usize, usize, [usize; 6]); 4] = [
    ("inception3a", 28, 192, [64, 96, 128, 16, 32, 32]),
    ("inception4b", 14, 512, [160, 112, 224, 24, 64, 64]),
    ("inception4e", 14, 528, [256, 160, 320, 32, 128, 128]),
    ("inception5b", 7, 832, [384, 192, 384, 48, 128, 128]),
];

#[derive(Clone)]
struct Block {
    branches: [Vec<Conv2d>; 4],
}

impl Block {
    fn load(input: usize, [c1, r3, c3, r5, c5, pool]: [usize; 6], vb: VarBuilder) -> candle::Result<Self> {
        let conv = |input, out, kernel: usize, name: &str| {
            let activation = Activation::Relu;
            let config = ConvConfig::default().padding(kernel / 2).activation(activation);
            conv2d(input, out, (kernel, kernel), config, vb.pp(name))
        };
        Ok(Self {
            branches: [
                vec![conv(input, c1, 1, "branch1")?],
                vec![conv(input, r3, 1, "branch2.0")?, conv(r3, c3, 3, "branch2.1")?],
                vec![conv(input, r5, 1, "branch3.0")?, conv(r5, c5, 3, "branch3.1")?],
                vec![conv(input, pool, 1, "branch4")?],
            ],
        })
    }
}

impl Module for Block {
    fn forward(&self, x: &Tensor) -> candle::Result<Tensor> {
        let _scope = scope("block");
        let pooled = ops::max_pool2d(x, &PoolConfig::new(3, 1).padding(1))?;
        let inputs = [x, x, x, &pooled];
        let branch =
            |(branch, x): (&Vec<Conv2d>, &Tensor)| branch.iter().try_fold(x.clone(), |x, conv| conv.forward(&x));
        let branches = self.branches.iter().zip(inputs).map(branch).collect::<candle::Result<Vec<_>>>()?;
        ops::cat(&branches.iter().collect::<Vec<_>>(), 1)
    }
}

fn main() -> Result<()> {
    let vb = opara_weights::seeded(0, DType::F32, &Device::Cpu);
    let mut criterion = Criterion::default().sample_size(20).measurement_time(MEASUREMENT).configure_from_args();
    for (name, side, input, channels) in BLOCKS {
        let block = Block::load(input, channels, vb.pp(name))?;
        let x = Tensor::rand(0f32, 1., (1, input, side, side), &Device::Cpu)?;
        let executor = OparaExecutor::new(block.clone(), &x)?;
        let mut group = criterion.benchmark_group(name);
        group.bench_function("eager", |b| b.iter(|| black_box(block.forward(&x))));
        group.bench_function("executor", |b| b.iter(|| black_box(executor.forward(&x))));
        group.finish();
        println!("{}", executor.report());
    }
    Ok(())
}
