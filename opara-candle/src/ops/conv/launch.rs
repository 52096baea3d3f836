//! Launches of `depthwise.cu`.

#![allow(unsafe_code)]

use candle::cuda_backend::WrapErr;
use candle::{bail, CudaDevice, DType, Result};
use cudarc::driver::{CudaSlice, CudaView, DeviceRepr, PushKernelArg};

use crate::cuda::driver::kernels::{address, blocks, expect, function, ptx};
use crate::cuda::operator::plane::Plane;
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
    let function = function(device, &name, "depthwise", ptx::DEPTHWISE)?;
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
