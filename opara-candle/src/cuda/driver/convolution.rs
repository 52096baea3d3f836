//! Convolutions with bias and activation in one call, by the library and the algorithm that are the fastest.

use candle::{bail, CudaDevice, DType, Result};
use cudarc::cudnn::CudnnDataType;
use cudarc::driver::{CudaSlice, CudaView, DeviceRepr};

use super::choice::Choices;
use super::product::Product;
use super::{cublaslt, cudnn, kernels};
use crate::ops::Activation;

/// All that the choice of an algorithm depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::cuda) struct Convolution {
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
    /// The same as a product of pixels, where a window is one of them.
    fn product(&self) -> Option<Product> {
        let [batch, inner, h, w] = self.x;
        let [columns, _, kh, kw] = self.weight;
        let is_product = (kh, kw, self.stride, self.groups) == (1, 1, 1, 1) && self.padding == [0, 0];
        (is_product && self.channels_last).then_some(Product {
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
pub(in crate::cuda) struct Operands<'a, T> {
    pub x: CudaView<'a, T>,
    pub weight: CudaView<'a, T>,
    pub bias: CudaView<'a, T>,
}

/// How a convolution is computed.
#[derive(Clone, Copy)]
enum Way {
    Cudnn(cudnn::Algorithm),
    CublasLt(cublaslt::Algorithm),
}

/// The way for each convolution, and whether cuBLASLt may take its operands.
static WAYS: Choices<(Convolution, bool), Way> = Choices::new();

/// The convolution `of` the operands plus the bias, and the activation, into `y`. `C` is what it adds up in.
///
/// # Errors
/// Slices that are too short or of another dtype, or what no library supports.
pub(in crate::cuda) fn convolve<T, C>(
    device: &CudaDevice,
    of: &Convolution,
    operands: &Operands<'_, T>,
    y: &mut CudaSlice<T>,
) -> Result<()>
where
    T: CudnnDataType + DeviceRepr + candle::WithDType,
    C: CudnnDataType,
{
    let count = |sizes: &[usize]| sizes.iter().product::<usize>();
    let held = [operands.x.len(), operands.weight.len(), operands.bias.len(), y.len()];
    let needed = [count(&of.x), count(&of.weight), of.y[1], count(&of.y)];
    if T::DTYPE != of.dtype || held.iter().zip(&needed).any(|(held, needed)| held < needed) {
        bail!("operands of {held:?} elements of {:?} where {needed:?} of {:?} are needed", T::DTYPE, of.dtype)
    }
    let Operands { x, weight, bias } = operands;
    let aligned = || [x, weight, bias].iter().all(|operand| cublaslt::is_aligned(kernels::address(operand, device)));
    let product = of.product().filter(|_| aligned());
    let run = |way| match (way, &product) {
        (Way::CublasLt(algorithm), Some(product)) => {
            cublaslt::run(device, product, &algorithm, x, weight, Some(bias), y)
        }
        (Way::CublasLt(_), None) => bail!("{of:?} is no product"),
        (Way::Cudnn(algorithm), _) => cudnn::run::<T, C>(device, of, algorithm, operands, y),
    };
    let ways = || {
        let mut ways: Vec<Way> = cudnn::algorithms::<T, C>(device, of)?.into_iter().map(Way::Cudnn).collect();
        if let Some(product) = &product {
            ways.extend(cublaslt::algorithms(device, product)?.into_iter().map(Way::CublasLt));
        }
        Ok(ways.into_iter().map(|way| (way, 1.)).collect())
    };
    let guess = || Ok(Way::Cudnn(cudnn::guess::<T, C>(device, of)?));
    WAYS.run(device, (*of, product.is_some()), ways, guess, run)
}
