//! What is done to many tensors in a launch for each 64 of a dtype.

mod average;
mod cuda;
pub(super) mod launch;

use candle::{Result, Tensor};

pub(crate) use self::average::Average;

/// Copies of images or weights, `(outer, channels, h, w)`, with channels beside each other in memory, or the other way round.
///
/// # Errors
/// Other tensors, and a failed launch.
pub(crate) fn turned(all: &[Tensor], are_last: bool) -> Result<Vec<Tensor>> {
    let inside = |t: &Tensor| if are_last { t.permute((0, 2, 3, 1)) } else { Ok(t.clone()) };
    let outside = |t: Tensor| if are_last { Ok(t) } else { t.permute((0, 3, 1, 2)) };
    let mut made: Vec<Option<Tensor>> = vec![None; all.len()];
    for (made, turned) in
        made.iter_mut().zip(cuda::turned(&all.iter().map(inside).collect::<Result<Vec<_>>>()?, are_last)?)
    {
        *made = turned;
    }
    let apart = |(made, of): (Option<Tensor>, &Tensor)| match made {
        Some(made) => outside(made),
        None if are_last => of.contiguous(),
        None => outside(of.permute((0, 2, 3, 1))?.contiguous()?),
    };
    made.into_iter().zip(all).map(apart).collect()
}

/// Moves averages of f32, which are contiguous.
///
/// # Errors
/// Shapes that do not agree, and a failed launch.
pub(crate) fn average(all: &[Average]) -> Result<()> {
    cuda::average(all)
}
