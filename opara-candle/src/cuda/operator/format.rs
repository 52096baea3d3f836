//! The memory layout that convolutions run in.

use candle::{DType, Result, Tensor};

/// A memory layout of `(batch, channels, h, w)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Format {
    /// (batch, channels, h, w).
    Nchw,
    /// (batch, h, w, channels).
    Nhwc,
}

impl Format {
    /// The layout for convolutions of a dtype: NHWC where cuDNN uses tensor cores.
    pub fn of(dtype: DType) -> Self {
        match dtype {
            DType::F16 | DType::BF16 | DType::F32 if cfg!(feature = "cudnn") => Format::Nhwc,
            _ => Format::Nchw,
        }
    }

    /// The elements in this layout, as a contiguous tensor with that layout's shape.
    pub fn arrange(self, x: &Tensor) -> Result<Tensor> {
        match self {
            Format::Nchw => x.contiguous(),
            Format::Nhwc => x.permute((0, 2, 3, 1))?.contiguous(),
        }
    }

    /// The tensor `(batch, channels, h, w)` of elements in this layout.
    pub fn view(self, arranged: &Tensor) -> Result<Tensor> {
        match self {
            Format::Nchw => Ok(arranged.clone()),
            Format::Nhwc => arranged.permute((0, 3, 1, 2)),
        }
    }
}
