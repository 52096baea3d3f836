//! Windows of convolutions and pools over `(batch, channels, h, w)`.

use candle::{bail, Result};

use super::Activation;

/// Rows and columns beyond each edge of the input: zeros for a convolution or a mean, ignored by a maximum.
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
    /// TensorFlow's `SAME`: padding for `ceil(size / stride)` outputs; an odd row or column is added below and to the right.
    pub fn same(size: (usize, usize), kernel: (usize, usize), stride: usize, dilation: usize) -> Self {
        let total = |size: usize, kernel: usize| {
            let stride = stride.max(1);
            let reach = dilation * kernel.saturating_sub(1) + 1;
            ((size.div_ceil(stride).saturating_sub(1)) * stride + reach).saturating_sub(size)
        };
        let (rows, columns) = (total(size.0, kernel.0), total(size.1, kernel.1));
        Self { top: rows / 2, bottom: rows.div_ceil(2), left: columns / 2, right: columns.div_ceil(2) }
    }

    /// Have opposite edges the same padding?
    pub fn is_symmetric(&self) -> bool {
        self.top == self.bottom && self.left == self.right
    }

    /// A plane of this size with the padding.
    fn around(&self, (h, w): (usize, usize)) -> (usize, usize) {
        let along = |size: usize, before, after| size.saturating_add(before).saturating_add(after);
        (along(h, self.top, self.bottom), along(w, self.left, self.right))
    }

    /// A stride that takes windows over a plane of this size as this one does: one that leads beyond the plane, padding
    /// included, is as good as the whole.
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
    /// Above and below, left and right.
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
    /// Elements from one window to the next, both ways.
    pub stride: usize,
    /// Around the input.
    pub padding: Padding,
    /// Distance of the elements of a window, both ways.
    pub dilation: usize,
    /// Number of groups of channels: each output channel depends on the input channels of its group.
    pub groups: usize,
    /// Activation of the input. On a GPU a depthwise convolution applies ReLU in the same launch.
    pub input_activation: Activation,
    /// Activation of the result.
    pub activation: Activation,
}

impl Default for ConvConfig {
    /// Stride, dilation and groups of 1, no padding, no activations.
    fn default() -> Self {
        Self {
            stride: 1,
            padding: Padding::default(),
            dilation: 1,
            groups: 1,
            input_activation: Activation::None,
            activation: Activation::None,
        }
    }
}

impl ConvConfig {
    /// The same with this stride, both ways.
    pub fn stride(self, stride: usize) -> Self {
        Self { stride, ..self }
    }

    /// The same with this padding.
    pub fn padding(self, padding: impl Into<Padding>) -> Self {
        Self { padding: padding.into(), ..self }
    }

    /// The same with this dilation, both ways.
    pub fn dilation(self, dilation: usize) -> Self {
        Self { dilation, ..self }
    }

    /// The same in this many groups.
    pub fn groups(self, groups: usize) -> Self {
        Self { groups, ..self }
    }

    /// The same with this activation of the input.
    pub fn input_activation(self, input_activation: Activation) -> Self {
        Self { input_activation, ..self }
    }

    /// The same with this activation of the result.
    pub fn activation(self, activation: Activation) -> Self {
        Self { activation, ..self }
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

/// A maximum or a mean over windows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct PoolConfig {
    /// Size of a window, both ways.
    pub kernel: usize,
    /// Elements from one window to the next, both ways.
    pub stride: usize,
    /// Around the input.
    pub padding: Padding,
    /// Counts a last window that reaches beyond the padded input, if it starts inside the input or the padding before it (PyTorch's
    /// `ceil_mode`).
    pub ceil: bool,
    /// Counts the padding in means (PyTorch's `count_include_pad`).
    pub count_padding: bool,
}

impl PoolConfig {
    /// Windows of `kernel` elements a side, `stride` apart, without padding.
    pub fn new(kernel: usize, stride: usize) -> Self {
        Self { kernel, stride, padding: Padding::default(), ceil: false, count_padding: false }
    }

    /// The same with padding.
    pub fn padding(self, padding: impl Into<Padding>) -> Self {
        Self { padding: padding.into(), ..self }
    }

    /// The same with this `ceil`.
    pub fn ceil(self, ceil: bool) -> Self {
        Self { ceil, ..self }
    }

    /// The same with this `count_padding`.
    pub fn count_padding(self, count_padding: bool) -> Self {
        Self { count_padding, ..self }
    }

    /// Height and width of the result.
    ///
    /// # Errors
    /// A window that does not fit, a stride of 0, or padding of a whole window, which would be the mean of nothing.
    pub fn output(&self, size: (usize, usize)) -> Result<(usize, usize)> {
        let Self { kernel, stride, padding: p, ceil, .. } = *self;
        if stride == 0 || kernel == 0 {
            bail!("a pool of {kernel} elements a side with a stride of {stride}: both must be at least 1")
        }
        if p.top.max(p.bottom).max(p.left).max(p.right) >= kernel {
            bail!("padding of {p:?} holds whole windows of {kernel} elements a side")
        }
        let along = |size: usize, before: usize, padded: usize| {
            if size == 0 || kernel > padded {
                bail!("a window of {kernel} does not fit into {padded} elements, padding included")
            }
            let last = padded - kernel;
            let windows = if ceil { last.div_ceil(stride) } else { last / stride } + 1;
            // The last window has to start before the padding behind the input.
            Ok(if ceil && (windows - 1) * stride >= size + before { windows - 1 } else { windows })
        };
        let (h, w) = p.around(size);
        Ok((along(size.0, p.top, h)?, along(size.1, p.left, w)?))
    }

    /// Elements along one side that the mean of the window at `index` divides by: those of the input, and of the padding
    /// if that counts.
    pub(crate) fn counted(&self, index: usize, size: usize, before: usize, after: usize) -> usize {
        let start = index * self.stride;
        let end = (start + self.kernel).min(size + before + after);
        match self.count_padding {
            true => end - start,
            false => end.min(size + before) - start.max(before),
        }
    }
}
