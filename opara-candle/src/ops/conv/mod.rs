//! Convolution with groups, asymmetric padding, bias and activation in one call.

#[cfg(feature = "cudnn")]
mod backward;
mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(feature = "cudnn")]
mod dense;
#[cfg(feature = "cudnn")]
mod depthwise_backward;
#[cfg(feature = "cuda")]
pub(super) mod gradient_launch;
#[cfg(feature = "cuda")]
pub(super) mod launch;
#[cfg(feature = "cudnn")]
mod way;

use candle::{bail, Module, Result, Tensor};

#[cfg(feature = "cudnn")]
pub(crate) use self::backward::gradients as conv2d_gradients;
use super::column_sums::{activation_backward, in_sums};
use super::differentiable::{differentiable, gradients_through, Passed};
use super::matmul::matmul_flops;
use super::{apply, own_on, own_or, pad, runs_own, Activation, ConvConfig};

/// Two-dimensional convolution of `x`, `(batch, in, h, w)`, with `weight`, `(out, in / groups, kh, kw)`, and an
/// optional `bias`, `(out)`. The activations of `config` are applied in the same library call where the library
/// supports that.
///
/// With cuDNN the first call of each size benchmarks the algorithms, so it takes longer; later calls in the process use
/// the fastest. In f64 a kernel of this library runs, and bias and activation are launches of their own.
///
/// ```
/// # use candle::{DType, Device::Cpu, Tensor};
/// use opara_candle::ops::{self, Activation, ConvConfig};
///
/// let x = Tensor::zeros((1, 3, 32, 32), DType::F32, &Cpu)?; // (batch, in, h, w)
/// let weight = Tensor::zeros((8, 3, 3, 3), DType::F32, &Cpu)?; // (out, in / groups, kh, kw)
/// let bias = Tensor::zeros(8, DType::F32, &Cpu)?;
/// let config = ConvConfig::default().stride(2).padding(1).activation(Activation::Relu);
/// assert_eq!(ops::conv2d(&x, &weight, Some(&bias), &config)?.dims(), [1, 8, 16, 16]);
/// # Ok::<(), candle::Error>(())
/// ```
///
/// # Errors
/// Shapes that do not agree, a window that does not fit, or a result too large for memory.
pub fn conv2d(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, config: &ConvConfig) -> Result<Tensor> {
    convolved(x, weight, bias, None, config)
}

/// [`conv2d`] plus `residual`, which has the result's shape, before the activation: the end of a residual block. With cuDNN it is
/// added in the same call, and nothing is rounded before; a depthwise convolution, and one in f64, adds it in a launch of its own.
///
/// ```
/// # use candle::{DType, Device::Cpu, Tensor};
/// use opara_candle::ops::{self, Activation, ConvConfig};
///
/// let x = Tensor::ones((1, 3, 8, 8), DType::F32, &Cpu)?;
/// let weight = Tensor::zeros((3, 3, 1, 1), DType::F32, &Cpu)?;
/// let config = ConvConfig::default().activation(Activation::Relu);
/// assert_eq!(ops::add_conv2d(&x, &weight, None, &x, &config)?.sum_all()?.to_scalar::<f32>()?, 192.);
/// # Ok::<(), candle::Error>(())
/// ```
///
/// # Errors
/// As for [`conv2d`].
pub fn add_conv2d(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    residual: &Tensor,
    config: &ConvConfig,
) -> Result<Tensor> {
    convolved(x, weight, bias, Some(residual), config)
}

fn convolved(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    residual: Option<&Tensor>,
    config: &ConvConfig,
) -> Result<Tensor> {
    let (batch, channels, h, w) = x.dims4()?;
    let (out, k, kh, kw) = weight.dims4()?;
    let groups = config.groups;
    if groups == 0 || channels != k * groups || out % groups != 0 {
        bail!("{channels} channels do not match a weight of {:?} in {groups} groups", weight.dims())
    }
    if k * h * w == 0 {
        bail!(
            "a convolution of {:?} with a weight of {:?}: neither planes nor channels may be empty",
            x.dims(),
            weight.dims()
        )
    }
    if let Some(bias) = bias.filter(|bias| bias.dims() != [out]) {
        bail!("a bias of {:?} for {out} output channels", bias.dims())
    }
    let (oh, ow) = config.output((h, w), (kh, kw))?;
    if let Some(residual) = residual.filter(|residual| residual.dims() != [batch, out, oh, ow]) {
        bail!("{:?} cannot be added to a convolution of shape {:?}", residual.dims(), [batch, out, oh, ow])
    }
    // The result must be allocatable, at up to 16 bytes per element.
    let elements = [batch, out, oh, ow].into_iter().try_fold(1usize, usize::checked_mul);
    let Some(elements) = elements.filter(|elements| elements.checked_mul(16).is_some()) else {
        bail!("a convolution with padding {:?} gives {oh} x {ow} pixels, more than memory holds", config.padding)
    };
    let flops = matmul_flops(elements, k * kh * kw);
    // The libraries fuse no other activation, and the depthwise kernel for a GPU one more.
    let is_depthwise = groups > 1 && k == 1 && residual.is_none() && x.device().is_cuda();
    let (within, after) = match config.activation {
        simple @ (Activation::None | Activation::Relu) => (simple, Activation::None),
        Activation::Silu if is_depthwise && out == groups => (Activation::Silu, Activation::None),
        other => (Activation::None, other),
    };
    // A stride beyond the padded input, and a dilation of a 1 x 1 window, have no effect but may exceed the libraries'
    // limits.
    let stride = config.padding.limit(config.stride, (h, w));
    let dilation = if (kh, kw) == (1, 1) { 1 } else { config.dilation };
    let config = ConvConfig { stride, dilation, activation: within, ..*config };
    let (has_bias, name) = (bias.is_some(), if residual.is_some() { "add_conv2d" } else { "conv2d" });
    let by_candle = move |t: &[&Tensor]| {
        let (bias, residual) = optional(t, has_bias);
        after.forward(&apart(residual, &config, |config| composed(t[0], t[1], bias, config))?)
    };
    let forward = move |t: &[&Tensor]| {
        let ((x, weight), (bias, residual)) = ((t[0], t[1]), optional(t, has_bias));
        let cpu = || {
            let x = config.input_activation.forward(x)?;
            apart(residual, &config, |config| cpu::conv2d(&x, weight, bias, *config)).map(Some)
        };
        match own_on(x, cpu, || gpu!(cuda::conv2d(x, weight, bias, residual, &config)))? {
            Some(y) => after.forward(&y),
            None => by_candle(t),
        }
    };
    let activation = if after == Activation::None { config.activation } else { after };
    let bare = ConvConfig { activation: Activation::None, ..config };
    let backward = move |passed: &Passed| {
        let operands: Vec<_> = passed.operands.iter().collect();
        let ((x, weight), (bias, residual)) = ((operands[0], operands[1]), optional(&operands, has_bias));
        let is_simple = config.input_activation == Activation::None && runs_own(x);
        // The derivative of an activation needs its operand.
        let before_activation = || {
            if activation == Activation::None {
                return Ok(Some(passed.gradient.clone()));
            }
            let z = gpu!(cuda::conv2d(x, weight, bias, residual, &bare))?;
            let of = |z: Tensor| -> Result<Tensor> {
                Ok(activation_backward(&z.contiguous()?, passed.gradient, activation)?.0)
            };
            z.map(of).transpose()
        };
        let gradient = if is_simple { before_activation()? } else { None };
        let found = match &gradient {
            Some(gradient) => conv2d_gradients(x, weight, gradient, &bare, [0, 1].map(|at| passed.needs(at)))?,
            None => None,
        };
        let (Some(gradient), Some([of_x, of_weight])) = (gradient, found) else {
            return gradients_through(passed, by_candle);
        };
        let mut all = vec![of_x, of_weight];
        if bias.is_some() {
            all.push(Some(in_sums(&gradient)?.sum((2, 3))?.sum(0)?.to_dtype(x.dtype())?));
        }
        all.extend(residual.map(|_| Some(gradient)));
        Ok(all)
    };
    let run = move |t: &[&Tensor]| differentiable(name, t, |t| Ok((forward(t)?, Vec::new())), backward);
    apply(name, &[Some(x), Some(weight), bias, residual].into_iter().flatten().collect::<Vec<_>>(), flops, run)
}

/// The gradients of image and weight, if cuDNN computes them.
#[cfg(not(feature = "cudnn"))]
pub(crate) fn conv2d_gradients(
    _: &Tensor,
    _: &Tensor,
    _: &Tensor,
    _: &ConvConfig,
    _: [bool; 2],
) -> Result<Option<[Option<Tensor>; 2]>> {
    Ok(None)
}

/// Bias and residual, behind `x` and weight.
fn optional<'a>(t: &[&'a Tensor], has_bias: bool) -> (Option<&'a Tensor>, Option<&'a Tensor>) {
    let mut rest = t[2..].iter().copied();
    (if has_bias { rest.next() } else { None }, rest.next())
}

/// A convolution, with the residual and the activation behind it as operators of their own.
fn apart(
    residual: Option<&Tensor>,
    config: &ConvConfig,
    convolution: impl FnOnce(&ConvConfig) -> Result<Tensor>,
) -> Result<Tensor> {
    let Some(residual) = residual else { return convolution(config) };
    let y = convolution(&ConvConfig { activation: Activation::None, ..*config })?;
    config.activation.forward(&(y + residual)?)
}

/// The weight of [`conv2d`] in the memory layout that its device and dtype want. A layer that converts its weight once,
/// when it is loaded, saves the conversion in every call. Shape and values stay the same.
///
/// # Errors
/// A weight of another rank.
pub fn conv2d_weight(weight: &Tensor, groups: usize) -> Result<Tensor> {
    weight.dims4()?;
    own_or(weight, || gpu!(cuda::weight_for(weight, groups)), || weight.contiguous())
}

/// The same with candle's operators, for any device and dtype.
fn composed(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, config: &ConvConfig) -> Result<Tensor> {
    let p = config.padding;
    let x = config.input_activation.forward(x)?;
    // candle pads all four edges equally.
    let (x, padding) = match p.is_symmetric() && p.top == p.left {
        true => (x, p.top),
        false => (pad(&x, p)?, 0),
    };
    let mut y = x.conv2d(weight, padding, config.stride, config.dilation, config.groups)?;
    if let Some(bias) = bias {
        y = y.broadcast_add(&bias.reshape((1, (), 1, 1))?)?;
    }
    config.activation.forward(&y)
}
