//! Pools.

use candle::cuda_backend::CudaDType;
use candle::{Result, Tensor};
use cudarc::driver::DeviceRepr;

use super::format::Format;
use super::launch::{is_known, launch, Call, Kernel};
use crate::cuda::driver::kernels::{self, Plane};
use crate::ops::format::is_channels_last;
use crate::ops::{PoolConfig, PoolKind};

/// The pool of `x`, in the order in which `x` lies; `None` for dtypes without a kernel.
pub(crate) fn pool(x: &Tensor, kind: PoolKind, config: &PoolConfig) -> Result<Option<Tensor>> {
    if !is_known(x.dtype()) {
        return Ok(None);
    }
    let format = if is_channels_last(x) { Format::Nhwc } else { Format::Nchw };
    let plane = Plane::new(x.dims4()?, config.output((x.dim(2)?, x.dim(3)?))?, format == Format::Nhwc)?;
    let kernel = Pool { kind, config: *config, plane };
    Ok(Some(format.view(&launch(kernel, &format.arrange(x)?, plane.shape())?)?))
}

struct Pool {
    kind: PoolKind,
    config: PoolConfig,
    plane: Plane,
}

impl Kernel for Pool {
    const NAME: &'static str = "pool2d";

    fn launch<T: CudaDType + DeviceRepr>(&self, Call { device, dtype, x, y }: Call<T>) -> Result<()> {
        kernels::pool(device, dtype, &self.plane, self.kind, &self.config, &x, y)
    }
}
