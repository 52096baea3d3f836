//! A bias of rows, and where its rows start.

use candle::{Layout, Result, Shape, Tensor};

/// Broadcasts the bias to `shape`, and finds the starts of its rows. A bias whose rows are not contiguous is copied.
/// `None` if it does not broadcast, or has more than 2^32 elements.
pub(in crate::ops) fn bias_of_rows(bias: &Tensor, shape: &Shape) -> Result<Option<(Tensor, RowStarts)>> {
    let Ok(bias) = bias.broadcast_as(shape) else { return Ok(None) };
    if let Some(starts) = RowStarts::of(bias.layout()) {
        return Ok(Some((bias, starts)));
    }
    let bias = bias.contiguous()?;
    let starts = RowStarts::of(bias.layout());
    Ok(starts.map(|starts| (bias, starts)))
}

/// The start of each row of the bias. Rows are indexed by three dimensions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowStarts {
    /// The number of rows along each dimension.
    pub dims: [usize; 3],
    /// Strides of these dimensions, in elements.
    pub strides: [usize; 3],
}

impl RowStarts {
    /// `None` if rows are not contiguous, if more than three dimensions index rows that are not contiguous with each
    /// other, or if an offset exceeds 32 bits.
    pub fn of(layout: &Layout) -> Option<Self> {
        let ((&columns, outer), strides) = (layout.dims().split_last()?, layout.stride());
        let (inner, strides) = strides.split_last()?;
        let mut starts = Self { dims: [1; 3], strides: [0; 3] };
        if layout.is_contiguous() {
            (starts.dims[2], starts.strides[2]) = (outer.iter().product(), columns);
        } else {
            let at = starts.dims.len().checked_sub(outer.len())?;
            starts.dims[at..].copy_from_slice(outer);
            starts.strides[at..].copy_from_slice(strides);
        }
        let is_countable = starts.needed(columns)? <= u32::MAX as usize;
        (is_countable && (*inner == 1 || columns == 1)).then_some(starts)
    }

    /// Elements from the first to the last element of these rows; `None` if that overflows.
    pub fn needed(&self, columns: usize) -> Option<usize> {
        let ends = self.dims.iter().zip(self.strides).map(|(dim, stride)| dim.saturating_sub(1).checked_mul(stride));
        ends.into_iter().try_fold(columns, |needed, end| needed.checked_add(end?))
    }

    /// The offset of this row, in elements.
    pub fn of_row(&self, row: usize) -> usize {
        let [_, middle, inner] = self.dims;
        let index = [row / inner / middle, row / inner % middle, row % inner];
        index.iter().zip(self.strides).map(|(index, stride)| index * stride).sum()
    }
}
