//! Launches of `write_rows.cu`.

#![allow(unsafe_code)]

use candle::cuda_backend::WrapErr;
use candle::{bail, CudaDevice, Result};
use cudarc::driver::{CudaView, CudaViewMut, DevicePtr, DeviceRepr, PushKernelArg};

use super::places::{Places, Strides};
use crate::cuda::driver::kernels::{address, blocks, expect, extent, function, ptx};

/// Writes rows of `new` to the buffer, from the positions `at` on. `new` and `at` come with their strides along the outer
/// dimensions, and `new` with its row stride.
///
/// # Errors
/// Slices that are too short, more elements than 31 bits count, or a launch that fails.
pub(super) fn write_rows<T: DeviceRepr>(
    device: &CudaDevice,
    places: &Places,
    (new, (outer_strides, row_stride)): (CudaView<T>, (Strides, usize)),
    (at, at_strides): (CudaView<u32>, Strides),
    buffer: &mut CudaViewMut<T>,
) -> Result<()> {
    let Places { outer, len, new: rows, width } = *places;
    let (outers, written) = (places.outer(), places.outer() * rows * width);
    if written == 0 {
        return Ok(());
    }
    let along = |strides: Strides| outer.into_iter().zip(strides);
    let read = extent(along(outer_strides).chain([(rows, row_stride), (width, 1)]));
    expect("the new rows", new.len(), read)?;
    expect("the positions", at.len(), extent(along(at_strides)))?;
    expect("the buffer", buffer.len(), outers * len * width)?;
    if read.max(written).max(outers * len) > i32::MAX as usize {
        bail!("{places:?} are more elements than the kernel counts")
    }
    let element = std::mem::size_of::<T>();
    let target = buffer.device_ptr(&device.cuda_stream()).0;
    let strides = [width, row_stride, outer_strides[0], outer_strides[1], outer_strides[2]];
    let divides = |unit: &usize| {
        let all = strides.iter().all(|stride| (stride * element).is_multiple_of(*unit));
        all && [target, address(&new, device)].iter().all(|address| address.is_multiple_of(*unit as u64))
    };
    let unit = [16, 8, 4, 2].into_iter().find(divides).unwrap_or(1);
    let name = match unit {
        16 => "v128",
        8 => "i64",
        4 => "u32",
        2 => "i16",
        _ => "u8",
    };
    let function = function(device, &format!("opara_write_rows_{name}"), ptx::WRITE_ROWS)?;
    let units = |elements: usize| (elements * element / unit) as u32;
    let sizes = [outers as u32, len as u32, units(width), rows as u32, outer[1] as u32, outer[2] as u32];
    let from = [outer_strides[0], outer_strides[1], outer_strides[2], row_stride].map(units);
    let positions = at_strides.map(|stride| stride as u32);
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&function);
    for number in sizes.iter().chain(&from).chain(&positions) {
        launch.arg(number);
    }
    launch.arg(&new).arg(&at).arg(buffer);
    // SAFETY: the arguments match the kernel's parameters. It reads positions and new rows along these strides, and writes rows
    // of the buffer whose position is below `len`. All were checked against the slices above, and fit 31 bits.
    unsafe { launch.launch(blocks(written * element / unit)) }.w()?;
    Ok(())
}
