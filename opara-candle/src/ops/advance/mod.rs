//! Counters that move on.

#[cfg(feature = "cuda")]
pub(super) mod launch;

use candle::{bail, CpuStorage, DType, InplaceOp1, Layout, Result, Tensor};

use crate::cpu::record::apply_in_place;

/// Adds `by` to each element of `counter`, in place: u32 or i64, contiguous. It wraps around at the largest number.
///
/// ```
/// # use candle::{Device::Cpu, Tensor};
/// # use opara_candle::ops;
/// let position = Tensor::new(&[0u32, 5], &Cpu)?;
/// ops::advance(&position, 1)?;
/// assert_eq!(position.to_vec1::<u32>()?, [1, 6]);
/// # Ok::<(), candle::Error>(())
/// ```
///
/// # Errors
/// Another dtype, or a counter that is not contiguous.
pub fn advance(counter: &Tensor, by: u32) -> Result<()> {
    if !counter.is_contiguous() || !matches!(counter.dtype(), DType::U32 | DType::I64) {
        bail!("a counter is contiguous and of u32 or i64, not {:?} {:?}", counter.dtype(), counter.layout())
    }
    apply_in_place("advance", &[counter], move |t| t[0].inplace_op1(&Advance { by }))
}

struct Advance {
    by: u32,
}

impl InplaceOp1 for Advance {
    fn name(&self) -> &'static str {
        "advance"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let elements = layout.start_offset()..layout.start_offset() + layout.shape().elem_count();
        match storage {
            CpuStorage::U32(v) => v[elements].iter_mut().for_each(|n| *n = n.wrapping_add(self.by)),
            CpuStorage::I64(v) => v[elements].iter_mut().for_each(|n| *n = n.wrapping_add(self.by.into())),
            _ => bail!("a counter is of u32 or i64"),
        }
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, storage: &mut candle::CudaStorage, layout: &Layout) -> Result<()> {
        use candle::cuda_backend::CudaStorageSlice as S;
        let device = storage.device.clone();
        let elements = layout.start_offset()..layout.start_offset() + layout.shape().elem_count();
        match &mut storage.slice {
            S::U32(v) => launch::advance(&device, DType::U32, v.slice_mut(elements), self.by),
            S::I64(v) => launch::advance(&device, DType::I64, v.slice_mut(elements), self.by),
            _ => bail!("a counter is of u32 or i64"),
        }
    }
}
