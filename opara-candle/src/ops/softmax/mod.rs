//! Softmax, with an optional bias added before.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(feature = "cuda")]
pub(in crate::ops) mod effects;
#[cfg(feature = "cuda")]
mod launch;

use candle::{bail, Layout, Result, Shape, Tensor};

use super::own_on;
use crate::cpu::record::apply;

/// Softmax over the last dimension, in one kernel.
///
/// # Errors
/// A dtype without a softmax.
pub fn softmax_last_dim(x: &Tensor) -> Result<Tensor> {
    add_softmax(x, None)
}

/// Softmax of `x + bias` over the last dimension, in one kernel. The bias, for example an attention mask, broadcasts to
/// `x`. The sum is not rounded before the softmax.
///
/// ```
/// # use candle::{DType, Device::Cpu, Tensor};
/// # use opara_candle::ops;
/// let scores = Tensor::zeros((2, 4, 8, 8), DType::F32, &Cpu)?; // (batch, heads, queries, keys)
/// let mask = Tensor::zeros((2, 1, 1, 8), DType::F32, &Cpu)?;
/// let weights = ops::add_softmax(&scores, Some(&mask))?;
/// assert_eq!(weights.dims(), [2, 4, 8, 8]);
/// # Ok::<(), candle::Error>(())
/// ```
///
/// # Errors
/// Shapes that do not agree, or a dtype without a softmax.
pub fn add_softmax(x: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let flops = 8 * x.elem_count() as u64;
    match bias {
        Some(bias) => apply("softmax", &[x, bias], flops, |t| softmax(t[0], Some(t[1]))),
        None => apply("softmax", &[x], flops, |t| softmax(t[0], None)),
    }
}

fn softmax(x: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    if x.rank() == 0 {
        bail!("softmax needs at least one dimension; this tensor is a scalar");
    }
    let composed = || {
        let x = bias.map_or_else(|| x.contiguous(), |bias| x.broadcast_add(bias))?;
        // candle's operator divides by the length of a row.
        match x.elem_count() {
            0 => Ok(x),
            _ => candle_nn::ops::softmax_last_dim(&x),
        }
    };
    let bias = bias.map(|bias| bias_of_rows(bias, x.shape())).transpose()?;
    if matches!(bias, Some(None)) {
        return composed();
    }
    let bias = bias.flatten();
    own_on(x, || cpu::softmax(x, bias.as_ref()), || gpu!(cuda::softmax(x, bias.as_ref())))?.map_or_else(composed, Ok)
}

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
