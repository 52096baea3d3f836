//! Where a dimension is largest.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(feature = "cuda")]
pub(super) mod effects;
#[cfg(feature = "cuda")]
mod launch;

use candle::{Result, Tensor};

pub(crate) use self::cpu::first_largest;
use super::own_on;
use crate::cpu::record::apply;

/// Where dimension `dim` is largest, as u32, without that dimension.
///
/// Along the last dimension of floats the first of several that are equal counts, zeros of both signs being equal, and the
/// first NaN, if there is one. What candle's operator does for others may differ from one device to another.
///
/// ```
/// # use candle::{Device::Cpu, Tensor};
/// # use opara_candle::ops;
/// let logits = Tensor::new(&[[1f32, 3., 3.], [f32::NAN, 9., f32::NAN]], &Cpu)?;
/// assert_eq!(ops::argmax(&logits, 1)?.to_vec1::<u32>()?, [1, 0]);
/// # Ok::<(), candle::Error>(())
/// ```
///
/// # Errors
/// A dimension that `x` does not have.
pub fn argmax(x: &Tensor, dim: usize) -> Result<Tensor> {
    apply("argmax", &[x], x.elem_count() as u64, move |t| {
        let x = t[0];
        // Of rows without elements there is no largest: an error of candle's.
        let own = match dim + 1 == x.rank() && x.elem_count() > 0 {
            true => own_on(x, || cpu::argmax(x).map(Some), || gpu!(cuda::argmax(x)))?,
            false => None,
        };
        own.map_or_else(|| x.argmax(dim), Ok)
    })
}
