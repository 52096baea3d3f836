//! Launches of `cat.cu`: concatenations.

use candle::cuda_backend::WrapErr;
use candle::{bail, CudaDevice, DType, Result};
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
    let row = row(rows, widths, parts.len())?;
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

/// As [`cat`], of sums: part `i` may have another one that is added to it. `max(x, 0)` follows if `relu`.
///
/// # Errors
/// As for [`cat`].
#[allow(clippy::too_many_arguments, reason = "operands and sizes of one operator")]
pub(in crate::cuda) fn cat_sums<T: DeviceRepr>(
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
    // As many neighbours as 16 bytes hold and widths and addresses allow.
    let element = dtype.size_in_bytes();
    let addresses: Vec<_> = operands().flatten().map(|operand| address(operand, device)).collect();
    let divides = |n: &usize| {
        n * element <= 16
            && widths.iter().all(|width| width.is_multiple_of(*n))
            && addresses.iter().all(|a| a.is_multiple_of((n * element) as u64))
    };
    let neighbours = [8, 4, 2].into_iter().find(divides).unwrap_or(1);
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
