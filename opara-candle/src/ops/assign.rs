//! Overwrites the elements of one tensor with another's.

use candle::{Result, Tensor};

use crate::arguments::write;
use crate::cpu::record::apply_in_place;

/// Overwrites `to`, which is contiguous, with the elements of `from`, which has its shape and dtype.
///
/// ```
/// # use candle::{Device::Cpu, Tensor};
/// # use opara_candle::ops;
/// let token = Tensor::new(&[0u32, 0], &Cpu)?;
/// ops::assign(&token, &Tensor::new(&[7u32, 9], &Cpu)?)?;
/// assert_eq!(token.to_vec1::<u32>()?, [7, 9]);
/// # Ok::<(), candle::Error>(())
/// ```
///
/// # Errors
/// Tensors that differ in shape, dtype or device, a `to` that is not contiguous, and tensors that share memory.
pub fn assign(to: &Tensor, from: &Tensor) -> Result<()> {
    apply_in_place("assign", &[to, from], |t| write(t[0], t[1]))
}
