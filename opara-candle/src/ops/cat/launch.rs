//! Launches of `cat.cu`: concatenations.

use std::array;

use candle::{bail, CudaDevice, DType, Result};
use cudarc::driver::{CudaSlice, CudaView, DeviceRepr};

use crate::cuda::driver::kernels::{address, blocks, expect, kernels, ptx};

kernels! {
    /// Rows of parts one after the other, in units of the type in the name, which may be larger than an element.
    Cat<T> = "opara_layout_cat_" for [u8 i16 u32 i64 v128] {
        units: usize, row: u32,
        y: out T [units],
        parts: parts T [8, 1],
    }

    /// Each part plus another one.
    CatSums<T> = "opara_layout_cat_sums_" for [f16 bf16 f32 f64] {
        numel: usize, row: u32, relu: i32,
        y: out T [numel],
        parts: parts T [8, 2],
    }
}

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
    let of_units = |elements: usize| elements * element / unit;
    let units = of_units(rows * row);
    let each = array::from_fn(|i| match (parts.get(i), widths.get(i)) {
        (Some(part), Some(&width)) => ([Some(part)], of_units(width)),
        _ => ([None], 0),
    });
    Cat { units, row: of_units(row), y: y.as_view_mut(), parts: each }.launch(device, name, ptx::CAT, blocks(units))
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
    let numel = rows * row;
    let each = array::from_fn(|i| match (parts.get(i), others.get(i), widths.get(i)) {
        (Some(part), Some(other), Some(&width)) => ([Some(part), other.as_ref()], width),
        _ => ([None, None], 0),
    });
    CatSums { numel, row, relu: relu.into(), y: y.as_view_mut(), parts: each }.launch(
        device,
        &format!("{neighbours}_{}", dtype.as_str()),
        ptx::CAT,
        blocks(numel / neighbours),
    )
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
