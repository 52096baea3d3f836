//! Pools.

use candle::backend::BackendStorage;
use candle::cuda_backend::{CudaDType, CudaStorage};
use candle::{CpuStorage, CustomOp1, DType, Layout, Result, Shape, Tensor};
use cudarc::driver::DeviceRepr;
use half::{bf16, f16};

use super::format::Format;
use crate::cuda::driver::kernels::{self, Plane};
use crate::ops::format::is_channels_last;
use crate::ops::{PoolConfig, PoolKind};

/// The pool of `x`, in the order in which `x` lies; `None` for dtypes without a kernel.
pub(crate) fn pool(x: &Tensor, kind: PoolKind, config: &PoolConfig) -> Result<Option<Tensor>> {
    if !matches!(x.dtype(), DType::F16 | DType::BF16 | DType::F32 | DType::F64) {
        return Ok(None);
    }
    let format = if is_channels_last(x) { Format::Nhwc } else { Format::Nchw };
    let plane = Plane::new(x.dims4()?, config.output((x.dim(2)?, x.dim(3)?))?, format == Format::Nhwc)?;
    let op = Pool { kind, config: *config, plane };
    Ok(Some(format.view(&format.arrange(x)?.apply_op1_no_bwd(&op)?)?))
}

struct Pool {
    kind: PoolKind,
    config: PoolConfig,
    plane: Plane,
}

impl Pool {
    fn run<T: CudaDType + DeviceRepr>(&self, x: &CudaStorage, layout: &Layout) -> Result<CudaStorage> {
        let input = x.as_cuda_slice::<T>()?.slice(layout.start_offset()..);
        let mut y = kernels::uninit::<T>(&x.device, self.plane.results())?;
        kernels::pool(&x.device, x.dtype(), &self.plane, self.kind, &self.config, &input, &mut y)?;
        Ok(CudaStorage::wrap_cuda_slice(y, x.device.clone()))
    }
}

impl CustomOp1 for Pool {
    fn name(&self) -> &'static str {
        "pool2d"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        candle::bail!("this operator is for tensors on a GPU")
    }

    fn cuda_fwd(&self, x: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
        let y = match x.dtype() {
            DType::F16 => self.run::<f16>(x, layout)?,
            DType::BF16 => self.run::<bf16>(x, layout)?,
            DType::F32 => self.run::<f32>(x, layout)?,
            _ => self.run::<f64>(x, layout)?,
        };
        Ok((y, self.plane.shape().into()))
    }
}
