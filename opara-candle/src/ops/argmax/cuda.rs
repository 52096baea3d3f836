//! The index of the largest element of each row, on a GPU.

use candle::backend::BackendStorage;
use candle::cuda_backend::CudaDType;
use candle::{bail, CpuStorage, CudaStorage, CustomOp1, DType, Layout, Result, Shape, Tensor};
use cudarc::driver::DeviceRepr;
use half::{bf16, f16};

use super::launch;
use crate::cuda::driver::kernels::{ptx, wide, written};
use crate::cuda::operator::rows::Rows;
use crate::cuda::operator::{elements, rows_of};

/// `None` leaves the operands to candle's operator, which also reports errors.
pub(super) fn argmax(x: &Tensor) -> Result<Option<Tensor>> {
    if rows_of(x, &[]).is_none() {
        return Ok(None);
    }
    x.contiguous()?.apply_op1_no_bwd(&Argmax).map(Some)
}

struct Argmax;

impl Argmax {
    fn run<T: CudaDType + DeviceRepr>(&self, x: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
        let Some((_, outer)) = layout.dims().split_last() else { bail!("an argmax of a single number") };
        let Some(rows) = Rows::of(layout.dims()) else { bail!("too many rows") };
        let of = elements::<T>(x, layout)?;
        let (rows, columns, dtype) = (rows.rows(), rows.columns(), x.dtype());
        let y = written(&x.device, rows, |y| {
            if rows * columns == 0 {
                return Ok(());
            }
            let config = launch::block_of_row(rows, columns, wide(dtype));
            launch::Argmax { rows, columns, x: &of, y: y.as_view_mut() }.launch(
                &x.device,
                dtype.as_str(),
                ptx::ARGMAX,
                config,
            )
        })?;
        Ok((CudaStorage::wrap_cuda_slice(y, x.device.clone()), outer.into()))
    }
}

impl CustomOp1 for Argmax {
    fn name(&self) -> &'static str {
        "argmax"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        bail!("this operator is for tensors on a GPU")
    }

    fn cuda_fwd(&self, x: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
        match x.dtype() {
            DType::F16 => self.run::<f16>(x, layout),
            DType::BF16 => self.run::<bf16>(x, layout),
            DType::F32 => self.run::<f32>(x, layout),
            _ => self.run::<f64>(x, layout),
        }
    }
}
