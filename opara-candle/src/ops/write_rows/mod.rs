//! Writes rows to a buffer, at positions that are on the device.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(feature = "cuda")]
pub(super) mod launch;
mod places;

use candle::{bail, DType, Result, Tensor};

use self::places::Places;
use crate::cpu::record::apply_in_place;

/// Overwrites rows of `buffer` in place, for example the keys of a new token in a cache. The position is a tensor on
/// the device, so that one recording serves all positions.
///
/// - `buffer` has the shape `(outer .., len, width)`, with at most three dimensions before the rows, and is contiguous;
/// - `new` has the shape `(outer .., n, width)`;
/// - `at`, of u32, is the position of the first of the `n` rows: one number for all, or a shape that broadcasts to `outer`. At
///   the largest u32 nothing is written.
///
/// ```
/// # use candle::{DType, Device::Cpu, Tensor};
/// # use opara_candle::ops;
/// let cache = Tensor::zeros((2, 4, 1), DType::F32, &Cpu)?; // (batch, len, width)
/// let new = Tensor::new(&[[[1f32]], [[2.]]], &Cpu)?; // (batch, 1, width)
/// ops::write_rows(&cache, &new, &Tensor::new(&[0u32, 3], &Cpu)?)?;
/// assert_eq!(cache.flatten_all()?.to_vec1::<f32>()?, [1., 0., 0., 0., 0., 0., 0., 2.]);
/// # Ok::<(), candle::Error>(())
/// ```
///
/// # Errors
/// Shapes or dtypes that do not agree, tensors that share memory, and on the CPU rows beyond the end of the buffer. A GPU skips
/// such rows.
pub fn write_rows(buffer: &Tensor, new: &Tensor, at: &Tensor) -> Result<()> {
    if !buffer.is_contiguous() || buffer.dtype() != new.dtype() || at.dtype() != DType::U32 {
        let (buffer_type, new_type, at_type) = (buffer.dtype(), new.dtype(), at.dtype());
        bail!(
            "rows of {new_type:?} at positions of {at_type:?} into a buffer of {buffer_type:?} {:?}: it is contiguous and \
             of the same dtype, and positions are of u32",
            buffer.layout()
        )
    }
    Places::new(buffer.dims(), new.dims(), at.dims())?;
    apply_in_place("write_rows", &[buffer, new, at], |t| {
        let places = Places::new(t[0].dims(), t[1].dims(), t[2].dims())?;
        // The elements of a row lie together.
        let new = if t[1].stride().last() == Some(&1) { t[1].clone() } else { t[1].contiguous()? };
        t[0].inplace_op3(&new, t[2], &WriteRows { places })
    })
}

struct WriteRows {
    places: Places,
}
