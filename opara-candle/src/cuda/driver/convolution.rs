//! The description of a convolution with bias and activation, for every library.

use candle::{bail, CudaDevice, DType, Result, WithDType};
use cudarc::driver::{CudaSlice, CudaView};
use opara_plan::rewrite::ProductPrecision;

use super::cublaslt;
use super::kernels::address;
use super::matmul::Matmul;
use crate::activation::Activation;

/// The parameters that the choice of an algorithm depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Convolution {
    /// Dtype of all operands.
    pub dtype: DType,
    /// Are the operand, the weight and the result in the NHWC layout?
    pub channels_last: bool,
    /// Input (batch, channels, h, w).
    pub x: [usize; 4],
    /// Weight (output channels, channels per group, h, w).
    pub weight: [usize; 4],
    /// Output (batch, channels, h, w).
    pub y: [usize; 4],
    /// Rows and columns of padding, equal at opposite edges.
    pub padding: [usize; 2],
    /// Rows and columns from one window to the next.
    pub stride: usize,
    /// Rows and columns from one tap of a window to the next.
    pub dilation: usize,
    /// Groups of channels.
    pub groups: usize,
    /// Is something of the result's size added before that?
    pub residual: bool,
    /// Does a ReLU follow?
    pub relu: bool,
    /// How products of f32 are computed.
    pub precision: ProductPrecision,
}

impl Convolution {
    /// The convolution as a matmul over pixels. `None` unless the window is one pixel and nothing is added.
    pub fn as_matmul(&self) -> Option<Matmul> {
        let [batch, inner, h, w] = self.x;
        let [columns, _, kh, kw] = self.weight;
        let is_matmul = !self.residual && (kh, kw, self.stride, self.groups) == (1, 1, 1, 1) && self.padding == [0, 0];
        (is_matmul && self.channels_last).then_some(Matmul {
            dtype: self.dtype,
            precision: self.precision,
            rows: batch * h * w,
            inner,
            columns,
            bias: true,
            activation: if self.relu { Activation::Relu } else { Activation::None },
        })
    }

    /// The matmul of the elements under the windows. `None` if these are not rows whose channels lie beside each other, or if
    /// their indices do not fit into 31 bits.
    pub fn of_windows(&self) -> Option<Matmul> {
        let [columns, channels, kh, kw] = self.weight;
        let [batch, _, oh, ow] = self.y;
        let is_countable = [self.x, self.y].iter().all(|of| of.iter().product::<usize>() <= i32::MAX as usize);
        (self.channels_last && self.groups == 1 && is_countable && channels.is_multiple_of(4)).then_some(Matmul {
            dtype: self.dtype,
            precision: self.precision,
            rows: batch * oh * ow,
            inner: kh * kw * channels,
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

/// The operands of a convolution.
pub(crate) struct Operands<'a, T> {
    pub x: CudaView<'a, T>,
    pub weight: CudaView<'a, T>,
    pub bias: CudaView<'a, T>,
    /// What is added, in the result's layout.
    pub residual: Option<CudaView<'a, T>>,
}

impl<T> Operands<'_, T> {
    /// Do all begin at an address that cuBLASLt and this library's kernels take?
    pub fn are_aligned(&self, device: &CudaDevice) -> bool {
        let Self { x, weight, bias, residual } = self;
        let all = [Some(x), Some(weight), Some(bias), residual.as_ref()];
        all.into_iter().flatten().all(|operand| cublaslt::is_aligned(address(operand, device)))
    }
}

impl<T: WithDType> Operands<'_, T> {
    /// Checks that the operands and the result are as large as the convolution needs.
    ///
    /// # Errors
    /// Slices that are too short or of another dtype.
    pub fn check(&self, of: &Convolution, y: &CudaSlice<T>) -> Result<()> {
        let count = |sizes: &[usize]| sizes.iter().product::<usize>();
        let residual = if of.residual { count(&of.y) } else { 0 };
        let of_residual = self.residual.as_ref().map_or(0, CudaView::len);
        let held = [self.x.len(), self.weight.len(), self.bias.len(), of_residual, y.len()];
        let needed = [count(&of.x), count(&of.weight), of.y[1], residual, count(&of.y)];
        if T::DTYPE != of.dtype || held.iter().zip(&needed).any(|(held, needed)| held < needed) {
            bail!("operands have {held:?} elements of {:?}, but need {needed:?} of {:?}", T::DTYPE, of.dtype)
        }
        Ok(())
    }
}
