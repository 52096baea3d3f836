//! Launches of `depthwise.cu`.

#![allow(unsafe_code)]

use candle::cuda_backend::WrapErr;
use candle::{CudaDevice, DType, Result};
use cudarc::driver::{CudaSlice, CudaView, DeviceRepr, PushKernelArg};

use crate::cuda::driver::kernels::{address, blocks, expect, function, ptx};
use crate::cuda::operator::plane::Plane;
use crate::ops::{Activation, ConvConfig};

/// A convolution of each channel of `x` by itself into `y`, both laid out as `plane` says; so are the `kernel.0 *
/// kernel.1` weights of each channel.
///
/// # Errors
/// Slices that are too short, or a launch that fails.
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
    let [before, after] = [config.input_activation, config.activation].map(|a| usize::from(a == Activation::Relu));
    let rest = [config.stride, config.dilation, p.top, p.left, before, after];
    let integers = sizes.into_iter().chain(rest).map(|n| n as i32).collect::<Vec<_>>();
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&function);
    launch.arg(&numel);
    for n in &integers {
        launch.arg(n);
    }
    launch.arg(x).arg(weight).arg(bias).arg(y);
    // SAFETY: the arguments are those that the kernel declares. It reads within `elements()` of `x`, one weight for each
    // channel and place, one bias for each channel, and writes each of `results()` of `y`: all were held against the
    // slices above. `Plane::new` saw that 31 bits count the elements, and `variant` takes no more neighbours at once than sizes
    // and addresses allow.
    unsafe { launch.launch(blocks(threads)) }.w()?;
    Ok(())
}

/// The kernel's variant, and how many threads it takes. Each takes as many neighbouring channels as channels and addresses allow,
/// more than 4 bytes only as long as that leaves enough threads.
/// Without dilation they take neighbouring pixels of a row, too: as many as were fastest on an H200 where they are enough,
/// and where they are not.
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
        return plane.taking([8, 4, 2].into_iter().find(fits));
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
