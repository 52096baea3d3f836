//! Convolutions and pools of GoogLeNet, Inception-v3 and NASNet-A, and BERT's softmax, on the CPU: candle's operators against this library's.

use std::hint::black_box;
use std::time::Duration;

use anyhow::Result;
use candle::{Device, Tensor};
use criterion::{BenchmarkGroup, Criterion};
use opara_candle::ops::{self, Activation, ConvConfig, PoolConfig};

const MEASUREMENT: Duration = Duration::from_secs(1);

/// Name, input channels, height and width, output channels, window, stride, groups. Padding keeps height and width.
type Convolution = (&'static str, usize, usize, usize, (usize, usize), usize, usize);

#[rustfmt::skip]
const CONVOLUTIONS: [Convolution; 15] = [
    ("googlenet-stem-7x7-s2",       3, 224,  64, (7, 7), 2,   1),
    ("googlenet-3a-1x1",          192,  28,  64, (1, 1), 1,   1),
    ("googlenet-3a-3x3",           96,  28, 128, (3, 3), 1,   1),
    ("googlenet-4b-3x3",          112,  14, 224, (3, 3), 1,   1),
    ("googlenet-5b-1x1",          832,   7, 384, (1, 1), 1,   1),
    ("googlenet-5b-3x3",          192,   7, 384, (3, 3), 1,   1),
    ("inception-stem-3x3-s2",       3, 299,  32, (3, 3), 2,   1),
    ("inception-stem-3x3",         32, 147,  64, (3, 3), 1,   1),
    ("inception-5x5",              48,  35,  64, (5, 5), 1,   1),
    ("inception-3x3-s2",          288,  35, 384, (3, 3), 2,   1),
    ("inception-1x7",             192,  17, 192, (1, 7), 1,   1),
    ("nasnet-depthwise-3x3",      168,  42, 168, (3, 3), 1, 168),
    ("nasnet-depthwise-5x5",      336,  21, 336, (5, 5), 1, 336),
    ("nasnet-depthwise-7x7-s2",   168,  42, 168, (7, 7), 2, 168),
    ("resnext-32-groups-3x3",     256,  14, 256, (3, 3), 1,  32),
];

/// Name, mean instead of maximum, channels, height and width, kernel, stride, padding.
type Pool = (&'static str, bool, usize, usize, usize, usize, usize);

#[rustfmt::skip]
const POOLS: [Pool; 5] = [
    ("googlenet-max-3x3-s2",       false,   64, 112, 3, 2, 0),
    ("googlenet-max-3x3",          false,  256,  28, 3, 1, 1),
    ("inception-mean-3x3",         true,   256,  35, 3, 1, 1),
    ("nasnet-mean-3x3-s2",         true,   336,  42, 3, 2, 1),
    ("googlenet-mean-whole-plane", true,  1024,   7, 7, 1, 0),
];

/// Name and shape of attention scores.
const SCORES: [(&str, [usize; 4]); 2] =
    [("bert-base-softmax", [1, 12, 128, 128]), ("bert-base-softmax-32-tokens", [1, 12, 32, 32])];

fn compare(
    mut group: BenchmarkGroup<criterion::measurement::WallTime>,
    candle: impl Fn() -> candle::Result<Tensor>,
    ours: impl Fn() -> candle::Result<Tensor>,
) -> Result<()> {
    anyhow::ensure!(candle()?.dims() == ours()?.dims());
    group.bench_function("candle", |b| b.iter(|| black_box(candle())));
    group.bench_function("ours", |b| b.iter(|| black_box(ours())));
    group.finish();
    Ok(())
}

fn main() -> Result<()> {
    let random = |shape: &[usize]| Tensor::rand(-1f32, 1., shape, &Device::Cpu);
    let mut criterion = Criterion::default()
        .sample_size(20)
        .warm_up_time(MEASUREMENT / 4)
        .measurement_time(MEASUREMENT)
        .configure_from_args();
    for (name, input, side, out, (kh, kw), stride, groups) in CONVOLUTIONS {
        let x = random(&[1, input, side, side])?;
        let (weight, bias) = (random(&[out, input / groups, kh, kw])?, random(&[out])?);
        let padding = (kh / 2, kw / 2).into();
        let config = ConvConfig::default().stride(stride).padding(padding).groups(groups).activation(Activation::Relu);
        let candle = || {
            // candle pads all edges equally.
            let (x, padding) = if kh == kw { (x.clone(), kh / 2) } else { (ops::pad(&x, padding)?, 0) };
            let y = x.conv2d(&weight, padding, stride, 1, groups)?;
            y.broadcast_add(&bias.reshape((1, (), 1, 1))?)?.relu()
        };
        compare(criterion.benchmark_group(name), candle, || ops::conv2d(&x, &weight, Some(&bias), &config))?;
    }
    for (name, mean, channels, side, kernel, stride, padding) in POOLS {
        let x = random(&[1, channels, side, side])?;
        let config = PoolConfig::new(kernel, stride).padding(padding).count_padding(true);
        let candle = || {
            // candle's pools do not pad. Zero padding is correct for a mean, and costs as much as the padding for a
            // maximum.
            let x = if padding > 0 { ops::pad(&x, config.padding)? } else { x.clone() };
            match mean {
                true => x.avg_pool2d_with_stride(kernel, stride),
                false => x.max_pool2d_with_stride(kernel, stride),
            }
        };
        let ours = || if mean { ops::avg_pool2d(&x, &config) } else { ops::max_pool2d(&x, &config) };
        compare(criterion.benchmark_group(name), candle, ours)?;
    }
    for (name, shape) in SCORES {
        let x = random(&shape)?;
        let candle = || candle_nn::ops::softmax_last_dim(&x);
        compare(criterion.benchmark_group(name), candle, || ops::softmax_last_dim(&x))?;
    }
    Ok(())
}
