//! Launches of `depthwise.cu`, and of the convolutions of `matmul.cu`.

#![allow(unsafe_code)]

use candle::cuda_backend::WrapErr;
use candle::{bail, CudaDevice, DType, Result};
use cudarc::driver::{CudaSlice, CudaView, DeviceRepr, PushKernelArg};

#[cfg(feature = "cudnn")]
use crate::cuda::driver::convolution::{Convolution, Operands};
#[cfg(feature = "cudnn")]
use crate::cuda::driver::kernels::arg_or_null;
use crate::cuda::driver::kernels::{address, blocks, expect, function, ptx};
use crate::cuda::operator::plane::Plane;
#[cfg(feature = "cudnn")]
use crate::ops::matmul::launch::{tiles_for, Tile};
use crate::ops::{Activation, ConvConfig};

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
    expect("the operand", x.len(), plane.elements())?;
    expect("the weight", weight.len(), plane.channels() * kernel.0 * kernel.1)?;
    expect("the bias", bias.len(), plane.channels())?;
    expect("the result", y.len(), plane.results())?;
    if plane.results() == 0 {
        return Ok(());
    }
    let addresses = [x, weight, bias].map(|operand| address(operand, device));
    let (variant, threads) = variant(plane, kernel, config, dtype.size_in_bytes(), &addresses);
    let name = format!("opara_depthwise_{variant}_{}", dtype.as_str());
    let function = function(device, &name, ptx::DEPTHWISE)?;
    let numel = plane.results();
    let p = config.padding;
    let sizes = [plane.channels(), plane.from().0, plane.from().1, plane.to().0, plane.to().1, kernel.0, kernel.1];
    let rest = [config.stride, config.dilation, p.top, p.left].map(|n| n as i32);
    let activations = [i32::from(config.input_activation == Activation::Relu), config.activation.code()];
    let integers = sizes.into_iter().map(|n| n as i32).chain(rest).chain(activations).collect::<Vec<_>>();
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&function);
    launch.arg(&numel);
    for n in &integers {
        launch.arg(n);
    }
    launch.arg(x).arg(weight).arg(bias).arg(y);
    // SAFETY: the arguments match the kernel's declaration. It reads `elements()` elements of `x`, one weight per
    // channel and tap, one bias element per channel, and writes `results()` elements of `y`. The slice lengths were
    // checked above. `Plane::new` checked that indices fit into 31 bits, and `variant` takes vectors only where sizes
    // and addresses allow them.
    unsafe { launch.launch(blocks(threads)) }.w()?;
    Ok(())
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
    let (function, config) = tile.function(device, "convolution", &matmul)?;
    let ([_, channels, h, w], [_, _, oh, ow], [top, left]) = (of.x, of.y, of.padding);
    let sizes = [matmul.rows, matmul.columns, matmul.inner].map(|n| n as u32);
    let windows = [h, w, channels, of.weight[3], of.stride, of.dilation, top, left, oh, ow].map(|n| n as u32);
    let activation = matmul.activation.code();
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&function);
    for size in &sizes {
        launch.arg(size);
    }
    launch.arg(&activation);
    for size in &windows {
        launch.arg(size);
    }
    launch.arg(x).arg(weight).arg(bias);
    arg_or_null(&mut launch, residual.as_ref());
    launch.arg(y);
    // SAFETY: the arguments match the kernel's declaration. It reads `x` inside of the images, the weight, a bias element per
    // column, and a residual of the result's size unless that is null, and writes the result. Slices and alignments were
    // checked above, and `of_windows` that indices fit into 31 bits. The dynamic shared memory has the size that the kernel
    // divides into stages.
    unsafe { launch.launch(config) }.w()?;
    Ok(())
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
