//! In which order of a tensor's elements convolutions run.

use candle::{DType, Result, Tensor};

/// An order of the elements of `(batch, channels, h, w)` in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Format {
    /// Batch, channels, h, w.
    Nchw,
    /// Batch, h, w, channels.
    Nhwc,
}

impl Format {
    /// The one in which convolutions of a dtype run: tensor cores want channels inside, as cuDNN uses them.
    pub fn of(dtype: DType) -> Self {
        match dtype {
            DType::F16 | DType::BF16 | DType::F32 if cfg!(feature = "cudnn") => Format::Nhwc,
            _ => Format::Nchw,
        }
    }

    /// The elements in this order, as a contiguous tensor of that shape.
    pub fn arrange(self, x: &Tensor) -> Result<Tensor> {
        match self {
            Format::Nchw => x.contiguous(),
            Format::Nhwc => x.permute((0, 2, 3, 1))?.contiguous(),
        }
    }

    /// The tensor `(batch, channels, h, w)` of elements that lie in this order.
    pub fn view(self, arranged: &Tensor) -> Result<Tensor> {
        match self {
            Format::Nchw => Ok(arranged.clone()),
            Format::Nhwc => arranged.permute((0, 3, 1, 2)),
        }
    }
}
