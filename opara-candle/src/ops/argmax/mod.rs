//! The index of the largest element along a dimension.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(feature = "cuda")]
pub(super) mod launch;

use candle::{Result, Tensor};

pub(crate) use self::cpu::first_largest;
use super::own_on;
use crate::cpu::record::apply;

/// The index of the largest element along dimension `dim`, as u32; the result lacks that dimension.
///
/// Along the last dimension of floats it is the first of equal elements, or the first NaN if there is one; zeros of both signs
/// are equal. Along other dimensions candle's operator runs, whose choice among equals depends on the device.
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
        // For rows without elements candle's operator returns an error.
        let own = match dim + 1 == x.rank() && x.elem_count() > 0 {
            true => own_on(x, || cpu::argmax(x).map(Some), || gpu!(cuda::argmax(x)))?,
            false => None,
        };
        own.map_or_else(|| x.argmax(dim), Ok)
    })
}
