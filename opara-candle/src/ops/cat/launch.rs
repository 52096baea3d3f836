//! Launches of `cat.cu`: concatenations.

#![allow(unsafe_code)]

use candle::cuda_backend::WrapErr;
use candle::{bail, CudaDevice, DType, Result};
use cudarc::driver::{CudaSlice, CudaView, DeviceRepr, PushKernelArg};

use crate::cuda::driver::kernels::{address, arg_or_null, blocks, expect, function, ptx};

/// Parts that one concatenation takes.
pub(super) const MOST_PARTS: usize = 8;

/// Matrices of `rows` rows side by side, part `i` of `widths[i]` columns, into `y`: at most [`MOST_PARTS`].
///
/// # Errors
/// Slices that are too short, or a launch that fails.
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

/// As [`cat`], of sums: part `i` may have another one that is added to it. `max(x, 0)` follows if `relu`.
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
    let function = function(device, &name, "cat", ptx::CAT)?;
    let (numel, row, relu) = (rows * row, row as u32, i32::from(relu));
    let mut widths: Vec<u32> = widths.iter().map(|&width| width as u32).collect();
    widths.resize(MOST_PARTS, 0);
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&function);
    launch.arg(&numel).arg(&row).arg(&relu).arg(y);
    for (i, width) in widths.iter().enumerate() {
        arg_or_null(&mut launch, parts.get(i));
        arg_or_null(&mut launch, others.get(i).and_then(Option::as_ref));
        launch.arg(width);
    }
    // SAFETY: the arguments are those that the kernel declares. It reads `rows * widths[i]` elements of part `i` and of what
    // is added to it, none of those without width, nothing through null, and writes each of `rows * row` of `y`: all were
    // held against the slices above.
    unsafe { launch.launch(blocks(numel / neighbours)) }.w()?;
    Ok(())
}

/// Elements of a row of the result.
fn row(rows: usize, widths: &[usize], parts: usize) -> Result<usize> {
    let row: usize = widths.iter().sum();
    if parts != widths.len() || parts > MOST_PARTS || rows * row > u32::MAX as usize {
        bail!("a concatenation of {parts} parts, {} widths and {} elements", widths.len(), rows * row)
    }
    Ok(row)
}

/// The most bytes, up to 16, that divide all rows of so many elements and all addresses: what a thread may take at once.
fn unit(widths: &[usize], element: usize, addresses: impl Iterator<Item = u64>) -> usize {
    let addresses: Vec<_> = addresses.collect();
    let divides = |unit: &usize| {
        widths.iter().all(|width| (width * element).is_multiple_of(*unit))
            && addresses.iter().all(|address| address.is_multiple_of(*unit as u64))
    };
    [16, 8, 4, 2].into_iter().find(divides).unwrap_or(1)
}
