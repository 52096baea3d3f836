//! Dropout on a GPU, in one launch.

use candle::cuda_backend::CudaDType;
use candle::{bail, DType, Result, Tensor};
use cudarc::driver::DeviceRepr;

use super::config::Dropout;
use super::launch;
use crate::cuda::driver::kernels::{blocks, ptx};
use crate::cuda::operator::{is_known, launched, with_elements, Call, Kernel};

/// `None` if the kernel does not support the operands.
pub(super) fn dropout(x: &Tensor, of: Dropout, step: &Tensor) -> Result<Option<Tensor>> {
    let is_counted = (1..=i32::MAX as usize).contains(&x.elem_count());
    let is_step = step.dtype() == DType::F64 && step.elem_count() == 1 && step.device().same_device(x.device());
    if !is_known(x.dtype()) || !is_counted || !is_step {
        return Ok(None);
    }
    launched(Launch { numel: x.elem_count(), of, step: step.clone() }, &x.contiguous()?, x.shape()).map(Some)
}

struct Launch {
    numel: usize,
    of: Dropout,
    step: Tensor,
}

impl Kernel for Launch {
    const NAME: &'static str = "dropout";

    fn launch<T: CudaDType + DeviceRepr>(&self, Call { device, dtype, x, y }: Call<T>) -> Result<()> {
        let &Self { numel, of, .. } = self;
        let (below, factor) = (of.below() as usize, of.factor());
        let (seed, site) = (of.seed_words().map(|word| word as usize), of.site as usize);
        with_elements::<f64, _, 1>([Some(&self.step)], |[step]| {
            let Some(step) = &step else { bail!("a dropout without a step") };
            launch::Dropout { numel, seed, site, below, factor, step, x: &x, y: y.as_view_mut() }.launch(
                device,
                dtype.as_str(),
                ptx::DROPOUT,
                blocks(numel.div_ceil(4)),
            )
        })
    }
}
