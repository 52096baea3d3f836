//! Where new rows come from and go to.

use candle::{bail, Layout, Result};

/// Dimensions before the rows, at most.
pub(super) const OUTER: usize = 3;

/// Which rows go where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Places {
    /// Dimensions before the rows, those that are missing in front counting as 1.
    pub outer: [usize; OUTER],
    /// Rows of the buffer, for each of `outer`.
    pub len: usize,
    /// New ones.
    pub new: usize,
    /// Elements of a row.
    pub width: usize,
}

/// Elements from one to the next along each outer dimension.
pub(super) type Strides = [usize; OUTER];

impl Places {
    /// # Errors
    /// Shapes that do not agree.
    pub fn new(buffer: &[usize], new: &[usize], at: &[usize]) -> Result<Self> {
        let agree = || {
            let (&width, rest) = buffer.split_last()?;
            let (&len, outer) = rest.split_last()?;
            let (&new_width, rest) = new.split_last()?;
            let (&rows, new_outer) = rest.split_last()?;
            if new_width != width || new_outer != outer || outer.len() > OUTER {
                return None;
            }
            let mut dims = [1; OUTER];
            dims[OUTER - outer.len()..].copy_from_slice(outer);
            let places = Self { outer: dims, len, new: rows, width };
            broadcasts(at, outer).then_some(places)
        };
        let Some(places) = agree() else {
            bail!(
                "rows of shape {new:?} at positions of shape {at:?} into a buffer of shape {buffer:?}: that is \
                 (outer .., len, width) of at most {OUTER} outer dimensions, the rows are (outer .., n, width), and the \
                 positions one or (outer ..)"
            )
        };
        Ok(places)
    }

    /// Of all outer dimensions together.
    pub fn outer(&self) -> usize {
        self.outer.iter().product()
    }

    /// Strides of the positions: 0 along what they broadcast to.
    pub fn strides_of_positions(&self, layout: &Layout) -> Strides {
        let mut strides = [0; OUTER];
        if layout.shape().elem_count() > 1 {
            let (dims, all) = (layout.dims(), layout.stride());
            for (i, (dim, stride)) in dims.iter().zip(all).rev().enumerate() {
                if *dim > 1 {
                    strides[OUTER - 1 - i] = *stride;
                }
            }
        }
        strides
    }

    /// Strides of the new rows along outer dimensions, and from one to the next.
    pub fn strides_of_rows(&self, layout: &Layout) -> (Strides, usize) {
        let strides = layout.stride();
        let (outer, rest) = strides.split_at(strides.len() - 2);
        let mut all = [0; OUTER];
        all[OUTER - outer.len()..].copy_from_slice(outer);
        (all, rest[0])
    }

    /// How far the outer dimension with this number is in something of such strides.
    pub fn offset(&self, outer: usize, strides: &Strides) -> usize {
        let [_, middle, inner] = self.outer;
        let index = [outer / inner / middle, outer / inner % middle, outer % inner];
        index.iter().zip(strides).map(|(index, stride)| index * stride).sum()
    }
}

/// Whether positions of this shape are one, or broadcast to these dimensions.
fn broadcasts(at: &[usize], outer: &[usize]) -> bool {
    let is_one = at.iter().product::<usize>() == 1;
    let fits = || at.iter().rev().zip(outer.iter().rev()).all(|(at, dim)| *at == 1 || at == dim);
    is_one || at.len() <= outer.len() && fits()
}
