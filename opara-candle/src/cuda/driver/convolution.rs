//! The description of a convolution with bias and activation.

use candle::{bail, DType, Result, WithDType};
use cudarc::driver::{CudaSlice, CudaView};

use super::matmul::Matmul;
use crate::ops::Activation;

/// All that the choice of an algorithm depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Convolution {
    /// Of all operands.
    pub dtype: DType,
    /// Whether the channels of a pixel lie together, in the operand, the weight and the result.
    pub channels_last: bool,
    /// Batch, channels, h, w.
    pub x: [usize; 4],
    /// Result channels, channels of a group, h, w.
    pub weight: [usize; 4],
    /// Batch, channels, h, w.
    pub y: [usize; 4],
    /// Rows and columns beyond opposite edges.
    pub padding: [usize; 2],
    /// Elements from one window to the next.
    pub stride: usize,
    /// Elements from one of a window to the next.
    pub dilation: usize,
    /// Parts that the channels fall into.
    pub groups: usize,
    /// Whether `max(x, 0)` follows.
    pub relu: bool,
}

impl Convolution {
    /// The same as a matmul over pixels, if the window is one pixel.
    pub fn matmul(&self) -> Option<Matmul> {
        let [batch, inner, h, w] = self.x;
        let [columns, _, kh, kw] = self.weight;
        let is_matmul = (kh, kw, self.stride, self.groups) == (1, 1, 1, 1) && self.padding == [0, 0];
        (is_matmul && self.channels_last).then_some(Matmul {
            dtype: self.dtype,
            tf32: true,
            rows: batch * h * w,
            inner,
            columns,
            bias: true,
            activation: if self.relu { Activation::Relu } else { Activation::None },
        })
    }

    /// Shape of the result as it lies in memory.
    pub fn shape(&self) -> (usize, usize, usize, usize) {
        let [batch, channels, h, w] = self.y;
        match self.channels_last {
            true => (batch, h, w, channels),
            false => (batch, channels, h, w),
        }
    }
}

/// Operands of a convolution.
pub(crate) struct Operands<'a, T> {
    pub x: CudaView<'a, T>,
    pub weight: CudaView<'a, T>,
    pub bias: CudaView<'a, T>,
}

impl<T: WithDType> Operands<'_, T> {
    /// Checks that they and the result hold what a convolution reads and writes.
    ///
    /// # Errors
    /// Slices that are too short or of another dtype.
    pub(super) fn check(&self, of: &Convolution, y: &CudaSlice<T>) -> Result<()> {
        let count = |sizes: &[usize]| sizes.iter().product::<usize>();
        let held = [self.x.len(), self.weight.len(), self.bias.len(), y.len()];
        let needed = [count(&of.x), count(&of.weight), of.y[1], count(&of.y)];
        if T::DTYPE != of.dtype || held.iter().zip(&needed).any(|(held, needed)| held < needed) {
            bail!("operands of {held:?} elements of {:?} where {needed:?} of {:?} are needed", T::DTYPE, of.dtype)
        }
        Ok(())
    }
}
