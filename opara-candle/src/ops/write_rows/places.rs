//! The layout of new rows, their positions, and the buffer.

use candle::{bail, Layout, Result};

/// Maximum number of dimensions before the rows.
pub(super) const OUTER: usize = 3;

/// Shapes of the buffer and of the new rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Places {
    /// Dimensions before the rows, padded with 1 in front.
    pub outer: [usize; OUTER],
    /// Rows of the buffer, for each of `outer`.
    pub len: usize,
    /// New rows, for each of `outer`.
    pub new: usize,
    /// Elements of a row.
    pub width: usize,
}

/// Distance of neighbours along each outer dimension, in elements.
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

    /// The product of all outer dimensions.
    pub fn outer(&self) -> usize {
        self.outer.iter().product()
    }

    /// Strides of the positions: 0 along broadcast dimensions.
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

    /// Strides of the new rows along outer dimensions, and of neighbouring rows.
    pub fn strides_of_rows(&self, layout: &Layout) -> (Strides, usize) {
        let strides = layout.stride();
        let (outer, rest) = strides.split_at(strides.len() - 2);
        let mut all = [0; OUTER];
        all[OUTER - outer.len()..].copy_from_slice(outer);
        (all, rest[0])
    }

    /// The offset of an outer index in a tensor of these strides.
    pub fn offset(&self, outer: usize, strides: &Strides) -> usize {
        let [_, middle, inner] = self.outer;
        let index = [outer / inner / middle, outer / inner % middle, outer % inner];
        index.iter().zip(strides).map(|(index, stride)| index * stride).sum()
    }
}

/// Is this the shape of a single position, or does it broadcast to these dimensions?
fn broadcasts(at: &[usize], outer: &[usize]) -> bool {
    let is_one = at.iter().product::<usize>() == 1;
    let fits = || at.iter().rev().zip(outer.iter().rev()).all(|(at, dim)| *at == 1 || at == dim);
    is_one || at.len() <= outer.len() && fits()
}
