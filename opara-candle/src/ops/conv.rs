//! Convolution with groups, asymmetric padding, bias and activation in one call.

use candle::{bail, Result, Tensor};

use super::{apply, pad, product_flops, Activation, ConvConfig};
use crate::cuda;

/// Two-dimensional convolution of `x`, `(batch, in, h, w)`, with `weight`, `(out, in / groups, kh, kw)`, plus `bias` of
/// shape `(out)`, and the activation of `config`: one call of a library where there is one for the device and dtype.
///
/// # Errors
/// Shapes that do not agree, or a window that does not fit.
pub fn conv2d(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, config: &ConvConfig) -> Result<Tensor> {
    let (batch, channels, h, w) = x.dims4()?;
    let (out, k, kh, kw) = weight.dims4()?;
    let groups = config.groups;
    if groups == 0 || channels != k * groups || out % groups != 0 {
        bail!("a convolution of {channels} channels with a weight of {:?} in {groups} groups", weight.dims())
    }
    if let Some(bias) = bias.filter(|bias| bias.dims() != [out]) {
        bail!("a bias of {:?} for {out} channels", bias.dims())
    }
    let (oh, ow) = config.output((h, w), (kh, kw))?;
    let flops = product_flops(batch * out * oh * ow, k * kh * kw);
    let config = *config;
    let run = move |t: &[&Tensor]| {
        let (x, weight, bias) = (t[0], t[1], t.get(2).copied());
        let fast = if x.device().is_cuda() { cuda::ops::conv2d(x, weight, bias, &config)? } else { None };
        fast.map_or_else(|| composed(x, weight, bias, &config), Ok)
    };
    match bias {
        Some(bias) => apply("conv2d", &[x, weight, bias], flops, run),
        None => apply("conv2d", &[x, weight], flops, run),
    }
}

/// A weight of [`conv2d`] laid out in memory as its device and dtype want it: done once, when a layer is loaded, it need
/// not be done in every call. Shape and values stay the same.
///
/// # Errors
/// A weight of another rank.
pub fn conv2d_weight(weight: &Tensor, groups: usize) -> Result<Tensor> {
    weight.dims4()?;
    match weight.device().is_cuda() {
        true => cuda::ops::weight_for(weight, groups),
        false => weight.contiguous(),
    }
}

/// The same out of candle's operators, for any device and dtype.
fn composed(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, config: &ConvConfig) -> Result<Tensor> {
    let p = config.padding;
    // candle pads all four edges alike.
    let (x, padding) = match p.is_symmetric() && p.top == p.left {
        true => (x.clone(), p.top),
        false => (pad(x, p)?, 0),
    };
    let mut y = x.conv2d(weight, padding, config.stride, config.dilation, config.groups)?;
    if let Some(bias) = bias {
        y = y.broadcast_add(&bias.reshape((1, (), 1, 1))?)?;
    }
    match config.activation {
        Activation::None => Ok(y),
        Activation::Relu => y.relu(),
    }
}
