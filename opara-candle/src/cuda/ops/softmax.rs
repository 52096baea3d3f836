//! Softmax of rows.

use candle::cuda_backend::CudaDType;
use candle::{Result, Tensor};
use cudarc::driver::DeviceRepr;

use super::launch::{launch, rows_of, takes, with_elements, Call, Kernel};
use crate::cuda::driver::kernels::{self, Rows};
use crate::ops::RowStarts;

/// Softmax of `x + bias`, the bias being of the same shape; `None` where candle's operators have to do it, or have to
/// refuse.
pub(crate) fn softmax(x: &Tensor, bias: Option<&Tensor>) -> Result<Option<Tensor>> {
    let Some(rows) = rows_of(x, &[]).filter(|_| takes(x, &[bias])) else { return Ok(None) };
    let bias = match bias {
        None => None,
        Some(bias) => match RowStarts::of(bias.layout()) {
            Some(starts) => Some((bias.clone(), starts)),
            None => return Ok(None),
        },
    };
    if x.elem_count() == 0 {
        return Ok(Some(x.clone()));
    }
    launch(Softmax { rows, bias }, &x.contiguous()?, x.shape()).map(Some)
}

struct Softmax {
    rows: Rows,
    bias: Option<(Tensor, RowStarts)>,
}

impl Kernel for Softmax {
    const NAME: &'static str = "softmax";

    fn launch<T: CudaDType + DeviceRepr>(&self, Call { device, dtype, x, y }: Call<T>) -> Result<()> {
        let Self { rows, bias } = self;
        with_elements([bias.as_ref().map(|(bias, _)| bias)], |[elements]| {
            let starts = bias.as_ref().map(|(_, starts)| *starts);
            kernels::softmax(device, dtype, *rows, &x, elements.as_ref().zip(starts), y)
        })
    }
}
