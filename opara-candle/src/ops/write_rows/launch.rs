//! Launches of `write_rows.cu`.

use candle::{bail, CudaDevice, Result};
use cudarc::driver::{CudaView, CudaViewMut, DevicePtr, DeviceRepr};

use super::places::{Places, Strides};
use crate::cuda::driver::kernels::{address, blocks, expect, extent, kernels, ptx, strided};

kernels! {
    /// New rows into a buffer from positions on, in units of the type in the name, which may be larger than an element.
    WriteRows<T> = "opara_layout_write_rows_" for [u8 i16 u32 i64 v128] {
        reached: host, outers: u32, len: u32, row: u32, rows: u32, dims: u32 [2], from: u32 [3], from_row: u32, of_at: u32 [3],
        new: in T [reached],
        at: in u32 [strided([outers / (dims[0] * dims[1]), dims[0], dims[1]], of_at, 1)],
        buffer: kept T [outers * len * row],
    }
}

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
    buffer: CudaViewMut<T>,
) -> Result<()> {
    let Places { outer, len, new: rows, width } = *places;
    let (outers, written) = (places.outer(), places.outer() * rows * width);
    if written == 0 {
        return Ok(());
    }
    let along = outer.into_iter().zip(outer_strides);
    let reached = extent(along.chain([(rows, row_stride), (width, 1)]));
    expect("the buffer", buffer.len(), outers * len * width)?;
    if reached.max(written).max(outers * len) > i32::MAX as usize {
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
    let units = |elements: usize| elements * element / unit;
    WriteRows {
        reached,
        outers,
        len,
        row: units(width),
        rows,
        dims: [outer[1], outer[2]],
        from: outer_strides.map(units),
        from_row: units(row_stride),
        of_at: at_strides,
        new: &new,
        at: &at,
        buffer,
    }
    .launch(device, name, ptx::WRITE_ROWS, blocks(units(written)))
}
