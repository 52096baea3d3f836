//! Launches of `cat.cu`: concatenations.

#![allow(unsafe_code)]

use candle::cuda_backend::WrapErr;
use candle::{bail, CudaDevice, DType, Result};
use cudarc::driver::{CudaSlice, CudaView, DeviceRepr, PushKernelArg};

use crate::cuda::driver::kernels::{address, arg_or_null, blocks, expect, function, ptx};

/// Maximum number of parts of one launch.
pub(super) const MAX_PARTS: usize = 8;

/// Concatenates matrices of `rows` rows, part `i` with `widths[i]` columns, along their columns into `y`. At most
/// [`MAX_PARTS`] parts.
///
/// # Errors
/// Slices that are too short, or a failed launch.
pub(super) fn cat<T: DeviceRepr>(
    device: &CudaDevice,
    rows: usize,
    widths: &[usize],
    parts: &[CudaView<T>],
    y: &mut CudaSlice<T>,
) -> Result<()> {
    let row = row(rows, widths, parts.len())?;
    for (part, width) in parts.iter().zip(widths) {
        expect("a part", part.len(), rows * width)?;
    }
    expect("the result", y.len(), rows * row)?;
    let element = std::mem::size_of::<T>();
    let unit = unit(widths, element, parts.iter().map(|part| address(part, device)));
    let name = match unit {
        16 => "v128",
        8 => "i64",
        4 => "u32",
        2 => "i16",
        _ => "u8",
    };
    let function = function(device, &format!("opara_cat_{name}"), ptx::CAT)?;
    let (units, row) = (rows * row * element / unit, (row * element / unit) as u32);
    let mut widths: Vec<u32> = widths.iter().map(|width| (width * element / unit) as u32).collect();
    widths.resize(MAX_PARTS, 0);
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&function);
    launch.arg(&units).arg(&row).arg(y);
    for (i, width) in widths.iter().enumerate() {
        arg_or_null(&mut launch, parts.get(i));
        launch.arg(width);
    }
    // SAFETY: the arguments match the kernel's declaration. It reads `rows * widths[i]` elements of part `i`, nothing
    // of parts with width 0, and writes `rows * row` elements of `y`. The slice lengths were checked above.
    unsafe { launch.launch(blocks(units)) }.w()?;
    Ok(())
}

/// Like [`cat`], with an optional tensor added to each part; `max(x, 0)` follows if `relu`.
///
/// # Errors
/// As for [`cat`].
#[allow(clippy::too_many_arguments, reason = "operands and sizes of one operator")]
pub(super) fn cat_sums<T: DeviceRepr>(
    device: &CudaDevice,
    dtype: DType,
    rows: usize,
    widths: &[usize],
    parts: &[CudaView<T>],
    others: &[Option<CudaView<T>>],
    relu: bool,
    y: &mut CudaSlice<T>,
) -> Result<()> {
    let row = row(rows, widths, parts.len().min(others.len()))?;
    let operands = || parts.iter().zip(others).flat_map(|(part, other)| [Some(part), other.as_ref()]);
    for (operand, width) in operands().zip(widths.iter().flat_map(|width| [width; 2])) {
        expect("a part", operand.map_or(rows * width, CudaView::len), rows * width)?;
    }
    expect("the result", y.len(), rows * row)?;
    let addresses = operands().flatten().map(|operand| address(operand, device));
    let element = std::mem::size_of::<T>();
    let neighbours = (unit(widths, element, addresses) / element).max(1);
    let name = format!("opara_cat_sums_{neighbours}_{}", dtype.as_str());
    let function = function(device, &name, ptx::CAT)?;
    let (numel, row, relu) = (rows * row, row as u32, i32::from(relu));
    let mut widths: Vec<u32> = widths.iter().map(|&width| width as u32).collect();
    widths.resize(MAX_PARTS, 0);
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&function);
    launch.arg(&numel).arg(&row).arg(&relu).arg(y);
    for (i, width) in widths.iter().enumerate() {
        arg_or_null(&mut launch, parts.get(i));
        arg_or_null(&mut launch, others.get(i).and_then(Option::as_ref));
        launch.arg(width);
    }
    // SAFETY: the arguments match the kernel's declaration. It reads `rows * widths[i]` elements of part `i`, as many
    // of its summand unless that is null, nothing of parts with width 0, and writes `rows * row` elements of `y`. The
    // slice lengths were checked above.
    unsafe { launch.launch(blocks(numel / neighbours)) }.w()?;
    Ok(())
}

/// The number of elements in a row of the result.
fn row(rows: usize, widths: &[usize], parts: usize) -> Result<usize> {
    let row: usize = widths.iter().sum();
    if parts != widths.len() || parts > MAX_PARTS || rows * row > u32::MAX as usize {
        bail!("cannot concatenate {parts} parts with {} widths and {} elements", widths.len(), rows * row)
    }
    Ok(row)
}

/// The largest unit, at most 16 bytes, that divides all row widths and all addresses: the copy unit of a thread.
fn unit(widths: &[usize], element: usize, addresses: impl Iterator<Item = u64>) -> usize {
    let addresses: Vec<_> = addresses.collect();
    let divides = |unit: &usize| {
        widths.iter().all(|width| (width * element).is_multiple_of(*unit))
            && addresses.iter().all(|address| address.is_multiple_of(*unit as u64))
    };
    [16, 8, 4, 2].into_iter().find(divides).unwrap_or(1)
}
