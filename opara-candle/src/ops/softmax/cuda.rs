//! Softmax of rows in one launch.

use candle::cuda_backend::CudaDType;
use candle::{Result, Tensor};
use cudarc::driver::DeviceRepr;

use super::bias::RowStarts;
use super::launch;
use crate::cuda::operator::rows::Rows;
use crate::cuda::operator::{launched, rows_of, takes, with_elements, Call, Kernel};

/// Softmax of `x + bias`; the bias has the same shape, and comes with the starts of its rows. `None` if the kernel does
/// not support the operands: the caller then runs candle's operators, which also report errors.
pub(super) fn softmax(x: &Tensor, bias: Option<&(Tensor, RowStarts)>) -> Result<Option<Tensor>> {
    let takes = || takes(x, &[bias.map(|(bias, _)| bias)]);
    let Some(rows) = rows_of(x, &[]).filter(|_| takes()) else { return Ok(None) };
    if x.elem_count() == 0 {
        return Ok(Some(x.clone()));
    }
    launched(Softmax { rows, bias: bias.cloned() }, &x.contiguous()?, x.shape()).map(Some)
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
            launch::softmax(device, dtype, *rows, &x, elements.as_ref().zip(starts), y)
        })
    }
}
