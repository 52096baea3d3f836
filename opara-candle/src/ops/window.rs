//! Configuration of convolution and pooling windows over `(batch, channels, h, w)`.

use candle::{bail, Result};

use super::{Activation, ProductPrecision};

/// Rows and columns added at each edge of the input. They are zeros for a convolution or a mean, and ignored by a
/// maximum.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Padding {
    /// Rows above.
    pub top: usize,
    /// Rows below.
    pub bottom: usize,
    /// Columns to the left.
    pub left: usize,
    /// Columns to the right.
    pub right: usize,
}

impl Padding {
    /// Padding for `ceil(size / stride)` outputs. An odd row or column is added below or to the right, like
    /// TensorFlow's `SAME`.
    pub fn same(size: (usize, usize), kernel: (usize, usize), stride: usize, dilation: usize) -> Self {
        let total = |size: usize, kernel: usize| {
            let stride = stride.max(1);
            let reach = dilation * kernel.saturating_sub(1) + 1;
            ((size.div_ceil(stride).saturating_sub(1)) * stride + reach).saturating_sub(size)
        };
        let (rows, columns) = (total(size.0, kernel.0), total(size.1, kernel.1));
        Self { top: rows / 2, bottom: rows.div_ceil(2), left: columns / 2, right: columns.div_ceil(2) }
    }

    /// Are opposite edges padded equally?
    pub fn is_symmetric(&self) -> bool {
        self.top == self.bottom && self.left == self.right
    }

    /// Size of a plane with the padding.
    fn around(&self, (h, w): (usize, usize)) -> (usize, usize) {
        let along = |size: usize, before, after| size.saturating_add(before).saturating_add(after);
        (along(h, self.top, self.bottom), along(w, self.left, self.right))
    }

    /// Limits a stride to the padded size: any larger stride has the same effect.
    pub(super) fn limit(&self, stride: usize, size: (usize, usize)) -> usize {
        let (h, w) = self.around(size);
        stride.min(h.max(w))
    }
}

impl From<usize> for Padding {
    fn from(all: usize) -> Self {
        (all, all).into()
    }
}

impl From<(usize, usize)> for Padding {
    /// From (rows above and below, columns left and right).
    fn from((rows, columns): (usize, usize)) -> Self {
        Self { top: rows, bottom: rows, left: columns, right: columns }
    }
}

/// A two-dimensional convolution.
///
/// ```
/// use opara_candle::ops::{Activation, ConvConfig};
///
/// let same = ConvConfig::default().padding(1).activation(Activation::Relu);
/// assert_eq!(same.output((8, 8), (3, 3))?, (8, 8));
/// # Ok::<(), opara_candle::candle::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct ConvConfig {
    /// Rows and columns from one window to the next.
    pub stride: usize,
    /// Padding around the input.
    pub padding: Padding,
    /// Rows and columns from one tap of a window to the next.
    pub dilation: usize,
    /// Groups that input and output channels are divided into. An output channel depends on the input channels of its
    /// own group.
    pub groups: usize,
    /// Applied to the input first. On a GPU, the depthwise kernel applies a ReLU in the same launch.
    pub input_activation: Activation,
    /// Applied to the result.
    pub activation: Activation,
    /// How products of f32 are computed on a GPU. The fastest way rounds operands to TF32, as cuDNN does by default.
    pub precision: ProductPrecision,
}

impl Default for ConvConfig {
    /// Stride, dilation and groups of 1, no padding, no activations, the fastest products.
    fn default() -> Self {
        Self {
            stride: 1,
            padding: Padding::default(),
            dilation: 1,
            groups: 1,
            input_activation: Activation::None,
            activation: Activation::None,
            precision: ProductPrecision::Fastest,
        }
    }
}

impl ConvConfig {
    /// Sets the stride of rows and columns.
    pub fn stride(self, stride: usize) -> Self {
        Self { stride, ..self }
    }

    /// Sets the padding.
    pub fn padding(self, padding: impl Into<Padding>) -> Self {
        Self { padding: padding.into(), ..self }
    }

    /// Sets the dilation of rows and columns.
    pub fn dilation(self, dilation: usize) -> Self {
        Self { dilation, ..self }
    }

    /// Sets the number of groups.
    pub fn groups(self, groups: usize) -> Self {
        Self { groups, ..self }
    }

    /// Sets the activation of the input.
    pub fn input_activation(self, input_activation: Activation) -> Self {
        Self { input_activation, ..self }
    }

    /// Sets the activation of the result.
    pub fn activation(self, activation: Activation) -> Self {
        Self { activation, ..self }
    }

    /// Sets how products of f32 are computed on a GPU.
    pub fn precision(self, precision: ProductPrecision) -> Self {
        Self { precision, ..self }
    }

    /// Height and width of the result.
    ///
    /// # Errors
    /// A window that does not fit, or a stride or dilation of 0.
    pub fn output(&self, size: (usize, usize), kernel: (usize, usize)) -> Result<(usize, usize)> {
        if self.stride == 0 || self.dilation == 0 {
            bail!("a stride of {} and a dilation of {}: both must be at least 1", self.stride, self.dilation)
        }
        let p = self.padding;
        let along = |size: usize, kernel: usize| {
            let reach = self.dilation.saturating_mul(kernel.saturating_sub(1)).saturating_add(1);
            if kernel == 0 || reach > size {
                bail!("a window of {reach} does not fit into {size} elements, padding included")
            }
            Ok((size - reach) / self.stride + 1)
        };
        let (h, w) = p.around(size);
        Ok((along(h, kernel.0)?, along(w, kernel.1)?))
    }
}

/// Configuration of max and mean pooling.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct PoolConfig {
    /// Rows and columns of a window.
    pub kernel: usize,
    /// Rows and columns from one window to the next.
    pub stride: usize,
    /// Padding around the input.
    pub padding: Padding,
    /// Is there a last window that reaches past the padded input? It must start inside the input or the padding before
    /// it (PyTorch's `ceil_mode`).
    pub ceil: bool,
    /// Does a mean divide by the padding too (PyTorch's `count_include_pad`)?
    pub count_padding: bool,
}

impl PoolConfig {
    /// Windows of `kernel` x `kernel`, `stride` apart, without padding.
    pub fn new(kernel: usize, stride: usize) -> Self {
        Self { kernel, stride, padding: Padding::default(), ceil: false, count_padding: false }
    }

    /// Sets the padding.
    pub fn padding(self, padding: impl Into<Padding>) -> Self {
        Self { padding: padding.into(), ..self }
    }

    /// Adds or omits a last window that reaches past the padded input.
    pub fn ceil(self, ceil: bool) -> Self {
        Self { ceil, ..self }
    }

    /// Sets whether means count the padding.
    pub fn count_padding(self, count_padding: bool) -> Self {
        Self { count_padding, ..self }
    }

    /// Height and width of the result.
    ///
    /// # Errors
    /// A window that does not fit, a stride of 0, or padding as wide as a window, whose mean would be 0 / 0.
    pub fn output(&self, size: (usize, usize)) -> Result<(usize, usize)> {
        let Self { kernel, stride, padding: p, ceil, .. } = *self;
        if stride == 0 || kernel == 0 {
            bail!("a pool with a window of {kernel} and a stride of {stride}: both must be at least 1")
        }
        if p.top.max(p.bottom).max(p.left).max(p.right) >= kernel {
            bail!("{p:?} must be narrower than the window of {kernel}")
        }
        let along = |size: usize, before: usize, padded: usize| {
            if size == 0 || kernel > padded {
                bail!("a window of {kernel} does not fit into {padded} elements, padding included")
            }
            let last = padded - kernel;
            let windows = if ceil { last.div_ceil(stride) } else { last / stride } + 1;
            // The last window must not start in the padding after the input.
            Ok(if ceil && (windows - 1) * stride >= size + before { windows - 1 } else { windows })
        };
        let (h, w) = p.around(size);
        Ok((along(size.0, p.top, h)?, along(size.1, p.left, w)?))
    }

    /// Rows or columns that the mean of window `index` counts: all inside the input, and the padding if it counts.
    pub(crate) fn counted(&self, index: usize, size: usize, before: usize, after: usize) -> usize {
        let start = index * self.stride;
        let end = (start + self.kernel).min(size + before + after);
        match self.count_padding {
            true => end - start,
            false => end.min(size + before) - start.max(before),
        }
    }
}
