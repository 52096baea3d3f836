//! Comparison with PyTorch's results on the same numbers.

use candle::DType;
use opara_candle::ops::{self, Activation, ConvConfig, Padding, PoolConfig};
use serde::Deserialize;

use crate::{assert_close, values};

/// PyTorch's results, written by `../data/ops.py`.
#[derive(Deserialize)]
struct Answer {
    name: String,
    x: [usize; 4],
    conv: Option<AnswerConv>,
    pool: Option<AnswerPool>,
    shape: [usize; 4],
    y: Vec<f64>,
}

#[derive(Deserialize)]
struct AnswerConv {
    weight: [usize; 4],
    padding: [usize; 4],
    stride: usize,
    dilation: usize,
    groups: usize,
    relu: bool,
}

#[derive(Deserialize)]
struct AnswerPool {
    kernel: usize,
    stride: usize,
    padding: usize,
    ceil: bool,
    count_padding: bool,
    mean: bool,
}

#[test]
fn results_match_pytorch() -> anyhow::Result<()> {
    let answers: Vec<Answer> = serde_json::from_str(include_str!("../data/ops.json"))?;
    for answer in answers {
        let x = values(1, &answer.x, DType::F32)?;
        let y = match (answer.conv, answer.pool) {
            (Some(conv), None) => {
                let AnswerConv { weight, padding: [top, bottom, left, right], stride, dilation, groups, relu } = conv;
                let activation = if relu { Activation::Relu } else { Activation::None };
                let padding = Padding { top, bottom, left, right };
                let config = ConvConfig::default()
                    .stride(stride)
                    .padding(padding)
                    .dilation(dilation)
                    .groups(groups)
                    .activation(activation);
                let bias = values(3, &weight[..1], DType::F32)?;
                ops::conv2d(&x, &values(2, &weight, DType::F32)?, Some(&bias), &config)?
            }
            (None, Some(pool)) => {
                let AnswerPool { kernel, stride, padding, ceil, count_padding, mean } = pool;
                let config = PoolConfig::new(kernel, stride).padding(padding).ceil(ceil).count_padding(count_padding);
                if mean {
                    ops::avg_pool2d(&x, &config)?
                } else {
                    ops::max_pool2d(&x, &config)?
                }
            }
            _ => anyhow::bail!("{} is neither a convolution nor a pool", answer.name),
        };
        assert_eq!(y.dims(), answer.shape, "{}", answer.name);
        println!("{}", answer.name);
        assert_close(&y, &answer.y);
    }
    Ok(())
}
