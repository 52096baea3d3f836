//! Means of ranges of rows: vectors of texts that lie side by side.

#[cfg(feature = "cuda")]
mod cuda;
#[cfg(feature = "cuda")]
pub(super) mod launch;

use candle::{bail, DType, Result, Tensor};

use super::differentiable::recomputed;
use super::own_on;
use crate::cpu::record::apply;

/// Of `x`, `(rows, columns)`, the mean of the rows of each range, `(n, columns)` in f32. `ranges`, `(n, 2)` of u32, has the first row of each
/// mean, and the one behind the last. A range without rows gives zeros.
///
/// ```
/// # use candle::{Device::Cpu, Tensor};
/// # use opara_candle::ops;
/// let x = Tensor::new(&[[1f32, 2.], [3., 4.], [5., 6.]], &Cpu)?;
/// let ranges = Tensor::new(&[[0u32, 1], [1, 3]], &Cpu)?;
/// assert_eq!(ops::range_means(&x, &ranges)?.to_vec2::<f32>()?, [[1., 2.], [4., 5.]]);
/// # Ok::<(), candle::Error>(())
/// ```
///
/// # Errors
/// Shapes that do not agree, or ranges of another type.
pub fn range_means(x: &Tensor, ranges: &Tensor) -> Result<Tensor> {
    let (rows, _) = x.dims2()?;
    let (n, ends) = ranges.dims2()?;
    if ends != 2 || ranges.dtype() != DType::U32 {
        bail!("ranges of rows are (n, 2) of u32, not {:?} of {:?}", ranges.dims(), ranges.dtype());
    }
    let composed = move |t: &[&Tensor]| {
        let counted = seen(&t[1].reshape((1, n, 2))?, rows)?.squeeze(0)?.to_dtype(DType::F32)?;
        let counts = counted.sum_keepdim(1)?.maximum(1f32)?;
        counted.broadcast_div(&counts)?.matmul(&t[0].to_dtype(DType::F32)?.contiguous()?)
    };
    apply("range_means", &[x, ranges], x.elem_count() as u64, move |t| {
        let forward = |t: &[&Tensor]| {
            let own = || gpu!(cuda::range_means(t[0], t[1]));
            own_on(t[0], || Ok(None), own)?.map_or_else(|| composed(t), Ok)
        };
        recomputed("range_means", t, forward, composed)
    })
}

/// One where a place is within a range, else zero: `(batch, n, places)` of u8, of ranges `(batch, n, 2)`.
///
/// # Errors
/// Another shape or type.
pub(super) fn seen(ranges: &Tensor, places: usize) -> Result<Tensor> {
    let of = Tensor::arange(0, places as u32, ranges.device())?.reshape((1, 1, places))?;
    let end = |at: usize| ranges.narrow(2, at, 1);
    of.broadcast_ge(&end(0)?)?.mul(&of.broadcast_lt(&end(1)?)?)
}
