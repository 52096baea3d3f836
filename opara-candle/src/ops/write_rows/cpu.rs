//! Writes rows to a buffer on the CPU; `cuda` does so on a GPU.

use candle::{bail, CpuStorage, InplaceOp3, Layout, Result};

use super::places::Places;
use super::WriteRows;

impl InplaceOp3 for WriteRows {
    fn name(&self) -> &'static str {
        "write_rows"
    }

    fn cpu_fwd(
        &self,
        buffer: &mut CpuStorage,
        buffer_layout: &Layout,
        new: &CpuStorage,
        new_layout: &Layout,
        at: &CpuStorage,
        at_layout: &Layout,
    ) -> Result<()> {
        let CpuStorage::U32(at) = at else { bail!("positions are of u32") };
        let at = (&at[at_layout.start_offset()..], at_layout);
        macro_rules! write {
            ($($variant:ident)*) => {
                match (buffer, new) {
                    $((CpuStorage::$variant(buffer), CpuStorage::$variant(new)) => {
                        let new = (&new[new_layout.start_offset()..], new_layout);
                        write(&self.places, &mut buffer[buffer_layout.start_offset()..], new, at)
                    })*
                    _ => bail!("rows of another dtype than the buffer's, or of one that is not supported"),
                }
            };
        }
        write!(U8 U32 I16 I32 I64 BF16 F16 F32 F64)
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        buffer: &mut candle::CudaStorage,
        buffer_layout: &Layout,
        new: &candle::CudaStorage,
        new_layout: &Layout,
        at: &candle::CudaStorage,
        at_layout: &Layout,
    ) -> Result<()> {
        super::cuda::write(&self.places, (buffer, buffer_layout), (new, new_layout), (at, at_layout))
    }
}

/// Writes nothing if a row does not fit.
fn write<T: Copy>(
    places: &Places,
    buffer: &mut [T],
    (new, new_layout): (&[T], &Layout),
    (at, at_layout): (&[u32], &Layout),
) -> Result<()> {
    let (outer_strides, row_stride) = places.strides_of_rows(new_layout);
    let at_strides = places.strides_of_positions(at_layout);
    let position = |outer: usize| Some(at[places.offset(outer, &at_strides)]).filter(|at| *at != u32::MAX);
    let last = (0..places.outer()).filter_map(position).max();
    if let Some(last) = last.filter(|last| *last as usize + places.new > places.len) {
        bail!("{} rows at position {last} of a buffer of {}", places.new, places.len)
    }
    for outer in 0..places.outer() {
        let Some(position) = position(outer) else { continue };
        for row in 0..places.new {
            let from = places.offset(outer, &outer_strides) + row * row_stride;
            let to = (outer * places.len + position as usize + row) * places.width;
            buffer[to..to + places.width].copy_from_slice(&new[from..from + places.width]);
        }
    }
    Ok(())
}
