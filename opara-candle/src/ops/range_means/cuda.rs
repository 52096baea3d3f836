//! Means of ranges of rows in one launch.

use candle::cuda_backend::CudaDType;
use candle::{bail, Result, Tensor, WithDType};
use cudarc::driver::DeviceRepr;

use super::launch::{self, RangeMeans};
use crate::cuda::driver::kernels::{ptx, wide, written};
use crate::cuda::operator::{aligned, takes, tensor_of, with_elements};

/// The mean of the rows of each range. `None` if the kernel does not support the operands.
pub(super) fn range_means(x: &Tensor, ranges: &Tensor) -> Result<Option<Tensor>> {
    let (_, columns) = x.dims2()?;
    let is_whole = columns.is_multiple_of(wide(x.dtype())) && x.elem_count() > 0;
    let is_counted = (1..=launch::MOST).contains(&ranges.dim(0)?) && x.dim(0)? <= u32::MAX as usize;
    if !is_counted || !takes(x, &[]) || !ranges.device().same_device(x.device()) || !is_whole {
        return Ok(None);
    }
    let (x, ranges) = (aligned(x)?, aligned(ranges)?);
    for_kernel_float!(x.dtype(), means_of(&x, &ranges)).transpose()
}

fn means_of<T: CudaDType + WithDType + DeviceRepr>(x: &Tensor, ranges: &Tensor) -> Result<Tensor> {
    let (device, (rows, columns), count) = (x.device().as_cuda_device()?, x.dims2()?, ranges.dim(0)?);
    let means = with_elements::<T, _, 1>([Some(x)], |[x]| {
        with_elements::<u32, _, 1>([Some(ranges)], |[ranges]| {
            let (Some(x), Some(ranges)) = (&x, &ranges) else { bail!("means without operands") };
            written::<f32>(device, count * columns, |y| {
                let y = y.as_view_mut();
                let config = launch::config(columns, wide(T::DTYPE), count);
                RangeMeans { rows, columns, count, x, ranges, y }.launch(
                    device,
                    T::DTYPE.as_str(),
                    ptx::RANGE_MEANS,
                    config,
                )
            })
        })
    })?;
    tensor_of(means, device, (count, columns))
}
