//! Norms and grouped heads.

use candle::{DType, Module, Result, Tensor, D};
use candle_nn::GroupNorm;

use super::{is_not_faster, no_less_accurate, noise, Inputs, FLOATS};
use crate::common::gpu;

type Forward = fn(&[Tensor], &Tensor) -> Result<Tensor>;

/// Builds an executor of a function of weights and an input. It has to be no less accurate than candle on another input, and in 16
/// bits these rules have to fit.
fn check(forward: Forward, weights: &[Tensor], shape: &[usize], rules: &[&str]) -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    for dtype in FLOATS {
        let on_gpu = |t: &Tensor| t.to_dtype(dtype)?.to_device(&device);
        let module = weights.iter().map(on_gpu).collect::<Result<Vec<_>>>()?;
        let wide = module.iter().map(|weight| weight.to_dtype(DType::F64)).collect::<Result<Vec<_>>>()?;
        let [built, asked] = [1, 2].map(|seed| on_gpu(&noise(seed, shape)?));
        let inputs = Inputs { built: vec![built?], asked: vec![asked?] };
        let [module, wide] = [module, wide].map(|weights| move |x: &[Tensor]| forward(&weights, &x[0]));
        let report = no_less_accurate(dtype, &format!("{shape:?}"), module, wide, inputs)?;
        for rule in rules.iter().filter(|_| dtype != DType::F32 && !is_not_faster(&report)) {
            assert!(report.rewrites().iter().any(|rewrite| rewrite.rule == *rule), "{rule} does not fit: {report}");
        }
    }
    Ok(())
}

/// A ResNet's block of a diffusion model: twice a group norm with SiLU and a convolution, then a sum. `x` is `(batch, 64, h, w)`.
fn diffusion_block(weights: &[Tensor], x: &Tensor) -> Result<Tensor> {
    let half = |x: &Tensor, weights: &[Tensor]| {
        let [scale, shift, weight, bias] = weights else { candle::bail!("half a block has four weights") };
        let norm = GroupNorm::new(scale.clone(), shift.clone(), 64, 32, 1e-5)?;
        let y = norm.forward(x)?.silu()?.conv2d(weight, 1, 1, 1, 1)?;
        y.broadcast_add(&bias.reshape((1, (), 1, 1))?)
    };
    half(&half(x, &weights[..4])?, &weights[4..])? + x
}

#[test]
fn blocks_of_diffusion_models_are_no_less_accurate() -> anyhow::Result<()> {
    let vector = |seed| noise(seed, 64);
    let weight = |seed| noise(seed, (64, 64, 3, 3))? * 0.05;
    let half = |seed| -> Result<Vec<Tensor>> {
        Ok(vec![(vector(seed)? + 1.)?, vector(seed + 1)?, weight(seed + 2)?, vector(seed + 3)?])
    };
    let weights = [half(10)?, half(20)?].concat();
    // Images of one launch, and of several parts, also of an odd number of pixels.
    for shape in [[1, 64, 24, 20], [2, 64, 128, 96], [3, 64, 61, 53]] {
        check(diffusion_block, &weights, &shape, &["convolution", "group-norm"])?;
    }
    Ok(())
}

/// A norm of rows as candle writes it where it has no kernel, in f32 at least.
fn written_norm(x: &Tensor, scale: &Tensor, shift: Option<&Tensor>) -> Result<Tensor> {
    let wide = if x.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
    let y = x.to_dtype(wide)?;
    let y = if shift.is_some() { y.broadcast_sub(&y.mean_keepdim(D::Minus1)?)? } else { y };
    let root = (y.sqr()?.mean_keepdim(D::Minus1)? + 1e-6)?.sqrt()?;
    let y = y.broadcast_div(&root)?.to_dtype(x.dtype())?.broadcast_mul(scale)?;
    shift.map_or(Ok(y.clone()), |shift| y.broadcast_add(shift))
}

/// A block of ConvNeXt, whose norm is of the channels of each pixel, and T5's norm behind it. `x` is `(batch, channels, h, w)`.
fn pixels(weights: &[Tensor], x: &Tensor) -> Result<Tensor> {
    let [weight, scale, shift, up, of_up, last] = weights else { candle::bail!("a block has six weights") };
    let y = written_norm(&x.conv2d(weight, 1, 1, 1, 1)?.permute((0, 2, 3, 1))?, scale, Some(shift))?;
    let y = y.contiguous()?.reshape(((), scale.elem_count()))?.matmul(&up.t()?)?.broadcast_add(of_up)?.gelu_erf()?;
    written_norm(&y, last, None)
}

#[test]
fn written_norms_of_rows_are_no_less_accurate() -> anyhow::Result<()> {
    // candle sums rows of up to 32 elements by another kernel.
    for channels in [96, 32] {
        let weights = [
            (noise(1, (channels, channels, 3, 3))? * 0.05)?,
            (noise(2, channels)? + 1.)?,
            noise(3, channels)?,
            (noise(4, (2 * channels, channels))? * 0.1)?,
            noise(5, 2 * channels)?,
            (noise(6, 2 * channels)? + 1.)?,
        ];
        check(pixels, &weights, &[2, channels, 14, 12], &["convolution", "row-norm", "product-activation"])?;
    }
    Ok(())
}

/// Attention of 8 heads of 64, of which four each share keys and values, which are copied for each of them as in
/// candle-transformers. `x` is `(batch, tokens, 128)`.
fn grouped_attention(weights: &[Tensor], x: &Tensor) -> Result<Tensor> {
    let (batch, tokens, _) = x.dims3()?;
    let heads = |weight: &Tensor, heads: usize| {
        let y = x.reshape((batch * tokens, ()))?.matmul(&weight.t()?)?;
        y.reshape((batch, tokens, heads, 64))?.transpose(1, 2)
    };
    let each = |x: &Tensor| Tensor::cat(&[x; 4], 2)?.reshape((batch, 8, tokens, 64))?.contiguous();
    let q = heads(&weights[0], 8)?.contiguous()?;
    let (k, v) = (each(&heads(&weights[1], 2)?.contiguous()?)?, each(&heads(&weights[2], 2)?)?);
    let scores = (q.matmul(&k.t()?)? * 0.125)?;
    let p = match scores.dtype() {
        DType::F64 => candle_nn::ops::softmax(&scores, D::Minus1)?,
        _ => candle_nn::ops::softmax_last_dim(&scores)?,
    };
    p.matmul(&v)?.transpose(1, 2)?.contiguous()
}

#[test]
fn heads_that_share_keys_are_no_less_accurate() -> anyhow::Result<()> {
    let weights = [512, 128, 128].into_iter().zip(1..).map(|(out, seed)| noise(seed, (out, 128))? * 0.1);
    let weights = weights.collect::<Result<Vec<_>>>()?;
    check(grouped_attention, &weights, &[1, 40, 128], &["attention", "grouped-heads"])?;
    // candle concatenates views of several texts in another order, which stays a copy.
    check(grouped_attention, &weights, &[3, 40, 128], &["attention"])
}

/// The norm of a sum comes beside the sum, as a part of one tensor, and candle adds to a copy of that.
#[test]
fn elements_are_added_to_places_of_a_norm_beside_its_sum() -> anyhow::Result<()> {
    let added: Forward = |weights, x| {
        let sum = (x + x.tanh()?)?;
        let scale = &weights[0];
        let norm = match x.dtype() {
            DType::F64 => {
                let size = (sum.sqr()?.mean_keepdim(D::Minus1)? + 1e-5)?.sqrt()?;
                sum.broadcast_div(&size)?.broadcast_mul(scale)?
            }
            _ => candle_nn::ops::rms_norm(&sum, scale, 1e-5)?,
        };
        let rows = Tensor::new(&[5u32, 3, 0], x.device())?;
        norm.index_add(&rows, &norm.narrow(1, 0, 3)?.contiguous()?, 1)? + sum
    };
    check(added, &[(noise(1, 96)? + 1.)?], &[1, 33, 96], &["residual-norm"])
}
