//! The sizes of a convolution in f64.

/// The sizes of a convolution. Pairs are of rows and columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sizes {
    pub batch: usize,
    pub groups: usize,
    /// Channels of the result in each group, and of the operand.
    pub out: usize,
    pub inner: usize,
    /// Sizes of the operand's images, of the result's, and of the window.
    pub from: (usize, usize),
    pub to: (usize, usize),
    pub kernel: (usize, usize),
    pub stride: (usize, usize),
    pub dilation: (usize, usize),
    /// Rows above, and columns to the left. What else is outside of the images counts as zeros, too.
    pub padding: (usize, usize),
}
