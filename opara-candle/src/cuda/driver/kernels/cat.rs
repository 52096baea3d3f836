//! Launches of `cat.cu`: concatenations.

use candle::cuda_backend::WrapErr;
use candle::{bail, CudaDevice, Result};
use cudarc::driver::{CudaSlice, CudaView, DeviceRepr, PushKernelArg};

use super::{address, arg_or_null, blocks, expect, function};
use crate::cuda::ops::ptx;

/// Parts that one concatenation takes.
pub(in crate::cuda) const MOST_PARTS: usize = 8;

/// Matrices of `rows` rows side by side, part `i` of `widths[i]` columns, into `y`: at most [`MOST_PARTS`].
///
/// # Errors
/// Slices that are too short, or a launch that fails.
pub(in crate::cuda) fn cat<T: DeviceRepr>(
    device: &CudaDevice,
    rows: usize,
    widths: &[usize],
    parts: &[CudaView<T>],
    y: &mut CudaSlice<T>,
) -> Result<()> {
    let row: usize = widths.iter().sum();
    if parts.len() != widths.len() || parts.len() > MOST_PARTS || rows * row > u32::MAX as usize {
        bail!("a concatenation of {} parts, {} widths and {} elements", parts.len(), widths.len(), rows * row)
    }
    for (part, width) in parts.iter().zip(widths) {
        expect("a part", part.len(), rows * width)?;
    }
    expect("the result", y.len(), rows * row)?;
    // The largest unit that divides all rows and addresses.
    let element = std::mem::size_of::<T>();
    let addresses: Vec<_> = parts.iter().map(|part| address(part, device)).collect();
    let divides = |&(_, unit): &(&str, usize)| {
        widths.iter().all(|width| (width * element).is_multiple_of(unit))
            && addresses.iter().all(|a| a % unit as u64 == 0)
    };
    let units = [("v128", 16), ("i64", 8), ("u32", 4), ("i16", 2)].into_iter().find(divides);
    let (name, unit) = units.unwrap_or(("u8", 1));
    let function = function(device, &format!("opara_cat_{name}"), "cat", ptx::CAT)?;
    let (units, row) = (rows * row * element / unit, (row * element / unit) as u32);
    let mut widths: Vec<u32> = widths.iter().map(|width| (width * element / unit) as u32).collect();
    widths.resize(MOST_PARTS, 0);
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&function);
    launch.arg(&units).arg(&row).arg(y);
    for (i, width) in widths.iter().enumerate() {
        arg_or_null(&mut launch, parts.get(i));
        launch.arg(width);
    }
    // SAFETY: the arguments are those that the kernel declares. It reads `rows * widths[i]` elements of part `i`, none of
    // those without width, and writes each of `rows * row` of `y`: all were held against the slices above.
    unsafe { launch.launch(blocks(units)) }.w()?;
    Ok(())
}
