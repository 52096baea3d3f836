//! Launches of `upsample.cu`.

#![allow(unsafe_code)]

use candle::cuda_backend::WrapErr;
use candle::{bail, CudaDevice, DType, Result};
use cudarc::driver::{CudaSlice, CudaView, DeviceRepr, PushKernelArg};

use crate::cuda::driver::kernels::{address, blocks, expect, function, ptx};
use crate::cuda::operator::plane::Plane;

/// Copies the pixels of `x` to the larger plane of `y`. Channels are innermost in both.
///
/// # Errors
/// Another layout, slices that are too short, a plane without elements, or a failed launch.
pub(super) fn upsample<T: DeviceRepr>(
    device: &CudaDevice,
    dtype: DType,
    plane: &Plane,
    x: &CudaView<T>,
    y: &mut CudaSlice<T>,
) -> Result<()> {
    let (from, to, numel) = (plane.from(), plane.to(), plane.results());
    if !plane.is_channels_last() || numel == 0 || plane.elements() == 0 {
        bail!("{plane:?} has no elements, or channels that are not innermost")
    }
    expect("the operand", x.len(), plane.elements())?;
    expect("the result", y.len(), numel)?;
    let fits = |&n: &usize| plane.is_aligned(n, dtype.size_in_bytes(), &[address(x, device)]);
    let (variant, threads) = plane.variant([8, 4, 2].into_iter().find(fits));
    let name = format!("opara_upsample_{variant}_{}", dtype.as_str());
    let function = function(device, &name, ptx::UPSAMPLE)?;
    let sizes = [plane.channels(), from.0, from.1, to.0, to.1].map(|n| n as i32);
    let scales = [from.0 as f64 / to.0 as f64, from.1 as f64 / to.1 as f64];
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&function);
    launch.arg(&numel);
    for size in &sizes {
        launch.arg(size);
    }
    for scale in &scales {
        launch.arg(scale);
    }
    launch.arg(x).arg(y);
    // SAFETY: the arguments match the kernel's declaration. It reads rows and columns of `x` below `from`, and writes `numel`
    // elements of `y`, which begins an allocation. Both lengths were checked above. `Plane::new` checked that indices fit into 31
    // bits, and vectors are taken only where channels and the address allow them.
    unsafe { launch.launch(blocks(threads)) }.w()?;
    Ok(())
}
