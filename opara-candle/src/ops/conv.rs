//! Convolution with groups, asymmetric padding, bias and activation in one call.

use candle::{bail, Device, Result, Tensor};

use super::{apply, pad, product_flops, Activation, ConvConfig};

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
    let run = move |t: &[&Tensor]| match t[0].device() {
        Device::Cpu => composed(t[0], t[1], t.get(2).copied(), &config),
        _ => composed(t[0], t[1], t.get(2).copied(), &config),
    };
    match bias {
        Some(bias) => apply("conv2d", &[x, weight, bias], flops, run),
        None => apply("conv2d", &[x, weight], flops, run),
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
