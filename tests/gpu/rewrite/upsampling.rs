//! Nearest upsampling between convolutions.

use candle::{Result, Tensor};

use super::{is_not_faster, no_less_accurate, noise, Inputs, FLOATS};
use crate::common::gpu;

/// A step of a decoder of images: a convolution, more pixels, and another convolution. `x` is `(batch, 16, h, w)`.
fn step(weights: &[Tensor], x: &Tensor, [rows, columns]: [usize; 2]) -> Result<Tensor> {
    let y = x.conv2d(&weights[0], 1, 1, 1, 1)?.silu()?.upsample_nearest2d(rows, columns)?;
    y.conv2d(&weights[1], 1, 1, 1, 1)?.broadcast_add(&weights[2].reshape((1, (), 1, 1))?)
}

#[test]
fn upsampling_between_convolutions_is_no_less_accurate() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let weights = [(noise(3, (40, 16, 3, 3))? * 0.1)?, (noise(4, (24, 40, 3, 3))? * 0.1)?, noise(5, 24)?];
    // Twice as many, three times as many columns as rows, and numbers that are no multiples.
    let sizes = [[24, 20], [12, 30], [31, 17]];
    for ((dtype, batch), size) in
        FLOATS.into_iter().flat_map(|dtype| [(dtype, 1), (dtype, 3)]).flat_map(|one| sizes.map(|size| (one, size)))
    {
        let module = weights.iter().map(|weight| weight.to_dtype(dtype)?.to_device(&device));
        let module = module.collect::<Result<Vec<_>>>()?;
        let wide = module.iter().map(|weight| weight.to_dtype(candle::DType::F64)).collect::<Result<Vec<_>>>()?;
        let x = |seed| noise(seed, (batch, 16, 12, 10))?.to_dtype(dtype)?.to_device(&device);
        let inputs = Inputs { built: vec![x(1)?], asked: vec![x(2)?] };
        let [module, wide] = [module, wide].map(|weights| move |x: &[Tensor]| step(&weights, &x[0], size));
        let report = no_less_accurate(dtype, &format!("batch {batch} to {size:?}"), module, wide, inputs)?;
        let rule = report.rewrites().iter().find(|rewrite| rewrite.rule == "upsampling");
        if !is_not_faster(&report) {
            assert_eq!(rule.map(|rewrite| (rewrite.times, rewrite.saved)), Some((1, 0)), "{report}");
        }
    }
    Ok(())
}
