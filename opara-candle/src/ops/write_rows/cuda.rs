//! New rows in a buffer on a GPU.

use candle::cuda_backend::{CudaDType, CudaStorageSlice as S};
use candle::{bail, CudaStorage, Layout, Result};
use cudarc::driver::DeviceRepr;

use super::launch;
use super::places::Places;
use crate::cuda::operator::elements;

/// Writes rows of `new` to the buffer. Skips rows beyond its end.
pub(super) fn write(
    places: &Places,
    (buffer, buffer_layout): (&mut CudaStorage, &Layout),
    (new, new_layout): (&CudaStorage, &Layout),
    (at, at_layout): (&CudaStorage, &Layout),
) -> Result<()> {
    let device = new.device.clone();
    let at = (elements::<u32>(at, at_layout)?, places.strides_of_positions(at_layout));
    let rows = places.strides_of_rows(new_layout);
    macro_rules! write {
        ($($variant:ident: $t:ty,)*) => {
            match &mut buffer.slice {
                $(S::$variant(buffer) => {
                    let buffer = buffer.slice_mut(buffer_layout.start_offset()..);
                    launch::write_rows(&device, places, (view::<$t>(new, new_layout)?, rows), at, buffer)
                })*
                _ => bail!("rows of a dtype that is not supported"),
            }
        };
    }
    write!(
        U8: u8,
        U32: u32,
        I16: i16,
        I32: i32,
        I64: i64,
        BF16: half::bf16,
        F16: half::f16,
        F32: f32,
        F64: f64,
    )
}

fn view<'a, T: CudaDType + DeviceRepr>(
    storage: &'a CudaStorage,
    layout: &Layout,
) -> Result<cudarc::driver::CudaView<'a, T>> {
    elements::<T>(storage, layout)
}
