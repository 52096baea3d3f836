//! Launches of `depthwise.cu`, and of the convolutions of `matmul.cu`.

use candle::{bail, CudaDevice, DType, Result};
use cudarc::driver::{CudaSlice, CudaView, DeviceRepr};

#[cfg(feature = "cudnn")]
use crate::cuda::driver::convolution::{Convolution, Operands};
use crate::cuda::driver::kernels::{address, blocks, kernels, ptx};
#[cfg(feature = "cudnn")]
use crate::cuda::driver::matmul::Matmul;
use crate::cuda::operator::plane::Plane;
#[cfg(feature = "cudnn")]
use crate::ops::matmul::launch::{tiles_for, Tile};
use crate::ops::{Activation, ConvConfig};

kernels! {
    /// Depthwise convolution.
    Depthwise<T> = "opara_depthwise_" for [f16 bf16 f32 f64] {
        batch: host, numel: usize, channels: u32, from: u32 [2], to: u32 [2], kernel: u32 [2], stride: u32, dilation: u32,
        before: u32 [2], relu: i32, activation: i32,
        x: vector in T [batch * channels * from[0] * from[1]],
        weight: vector in T [channels * kernel[0] * kernel[1]],
        bias: vector in T [channels],
        y: out T [numel],
    }

    /// A product of windows of images with a weight.
    #[cfg_attr(not(feature = "cudnn"), allow(dead_code, reason = "cuDNN's builds choose it"))]
    Windows<T> = "opara_convolution_" for [f32] needs [Warpgroups] {
        rows: u32, columns: u32, inner: u32, activation: i32, from: u32 [2], channels: u32, taps: u32,
        stride: u32, dilation: u32, before: u32 [2], to: u32 [2],
        x: wide in T [rows / (to[0] * to[1]) * from[0] * from[1] * channels],
        weight: wide in T [columns * inner],
        bias: wide opt T [columns],
        residual: wide opt T [rows * columns],
        y: out T [rows * columns],
    }
}

/// Depthwise convolution of `x` into `y`, in the layout of `plane`. The weight has `kernel.0 * kernel.1` elements per
/// channel, in the same layout. The only activations are a ReLU of the input, and a ReLU or SiLU of the result.
///
/// # Errors
/// Other activations of the result, slices that are too short, or a failed launch.
#[allow(clippy::too_many_arguments, reason = "operands and sizes of one operator")]
pub(super) fn depthwise<T: DeviceRepr>(
    device: &CudaDevice,
    dtype: DType,
    plane: &Plane,
    kernel: (usize, usize),
    config: &ConvConfig,
    x: &CudaView<T>,
    weight: &CudaView<T>,
    bias: &CudaView<T>,
    y: &mut CudaSlice<T>,
) -> Result<()> {
    if !matches!(config.activation, Activation::None | Activation::Relu | Activation::Silu) {
        bail!("the depthwise kernel has no {:?}", config.activation)
    }
    if plane.results() == 0 {
        return Ok(());
    }
    let addresses = [x, weight, bias].map(|operand| address(operand, device));
    let (variant, threads) = variant(plane, kernel, config, dtype.size_in_bytes(), &addresses);
    let [from, to, kernel] = [plane.from(), plane.to(), kernel].map(<[usize; 2]>::from);
    let ConvConfig { stride, dilation, padding, .. } = *config;
    let (batch, numel, channels, before) =
        (plane.batch(), plane.results(), plane.channels(), [padding.top, padding.left]);
    let (relu, activation) = (i32::from(config.input_activation == Activation::Relu), config.activation.code());
    let (variant, y) = (format!("{variant}_{}", dtype.as_str()), y.as_view_mut());
    Depthwise {
        batch,
        numel,
        channels,
        from,
        to,
        kernel,
        stride,
        dilation,
        before,
        relu,
        activation,
        x,
        weight,
        bias,
        y,
    }
    .launch(device, &variant, ptx::DEPTHWISE, blocks(threads))
}

/// The convolution `of` the operands, in f32 by tensor cores, into `y`.
///
/// # Errors
/// A convolution that the tile does not support, slices that are too short or not aligned to 16 bytes, or a failed launch.
#[cfg(feature = "cudnn")]
pub(super) fn of_windows<T: DeviceRepr + candle::WithDType>(
    device: &CudaDevice,
    of: &Convolution,
    tile: Tile,
    operands: &Operands<'_, T>,
    y: &mut CudaSlice<T>,
) -> Result<()> {
    let Operands { x, weight, bias, residual } = operands;
    let is_known = operands.are_aligned(device) && of.residual == residual.is_some();
    let matmul = of.of_windows().filter(|_| is_known);
    let Some(matmul) = matmul else { bail!("no kernel supports {of:?} with these operands") };
    if !tiles_for(device, &matmul)?.contains(&tile) {
        bail!("no kernel with {tile:?} supports {of:?}")
    }
    operands.check(of, y)?;
    let (variant, config) = tile.launch(&matmul);
    let ([_, channels, h, w], [_, _, oh, ow], Convolution { stride, dilation, padding: before, .. }) =
        (of.x, of.y, *of);
    let Matmul { rows, columns, inner, activation, .. } = matmul;
    let (activation, taps, from, to, bias) = (activation.code(), of.weight[3], [h, w], [oh, ow], Some(bias));
    let (residual, y) = (residual.as_ref(), y.as_view_mut());
    Windows {
        rows,
        columns,
        inner,
        activation,
        from,
        channels,
        taps,
        stride,
        dilation,
        before,
        to,
        x,
        weight,
        bias,
        residual,
        y,
    }
    .launch(device, &variant, ptx::MATMUL, config)
}

/// The kernel variant and its number of threads. A thread takes as many neighbouring channels as the channel count and
/// the addresses allow, but more than 4 bytes of them only if enough threads remain to fill the GPU. Without dilation
/// it also takes several neighbouring pixels of a row: the numbers that were fastest on an H200, with and without
/// enough threads.
fn variant(
    plane: &Plane,
    kernel: (usize, usize),
    config: &ConvConfig,
    bytes: usize,
    addresses: &[u64],
) -> (String, usize) {
    let stride = config.stride;
    let aligned = |n| bytes <= 4 && plane.is_aligned(n, bytes, addresses);
    let is_square = matches!(kernel, (3, 3) | (5, 5) | (7, 7));
    if !is_square || config.dilation > 1 || stride > 2 || !aligned(2) {
        let fits = |n: &usize| plane.is_aligned(*n, bytes, addresses) && (n * bytes <= 4 || plane.fills(*n));
        return plane.variant([8, 4, 2].into_iter().find(fits));
    }
    let (channels, pixels) = match (bytes, stride, plane.fills(4)) {
        (4, _, true) => (2, 7),
        (2, 1, true) if aligned(4) => (4, 7),
        (2, 1, false) if aligned(4) => (4, 3),
        (2, _, true) if aligned(4) => (4, 4),
        (2, _, false) if aligned(4) => (4, 2),
        _ => (2, 3),
    };
    let strips = plane.results() / plane.to().1 * plane.to().1.div_ceil(pixels);
    (format!("nhwc{channels}x{pixels}_{}s{stride}", kernel.0), strips / channels)
}
