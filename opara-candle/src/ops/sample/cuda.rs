//! Tokens drawn on a GPU.

use candle::backend::BackendStorage;
use candle::cuda_backend::{CudaDType, CudaStorageSlice};
use candle::{bail, CpuStorage, CudaStorage, CustomOp1, DType, Layout, Result, Shape, Tensor};
use cudarc::driver::DeviceRepr;
use half::{bf16, f16};

use super::launch;
use crate::cuda::driver::kernels::{blocks, ptx, written};
use crate::cuda::operator::{elements, with_elements};

/// All operands are contiguous.
pub(super) fn sample(
    logits: &Tensor,
    parameters: &Tensor,
    positions: &Tensor,
    seen: Option<&Tensor>,
) -> Result<Option<Tensor>> {
    let sample = Sample { parameters: parameters.clone(), positions: positions.clone(), seen: seen.cloned() };
    logits.apply_op1_no_bwd(&sample).map(Some)
}

struct Sample {
    parameters: Tensor,
    positions: Tensor,
    seen: Option<Tensor>,
}

impl Sample {
    fn run<T: CudaDType + DeviceRepr>(&self, logits: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
        let (rows, vocab) = layout.shape().dims2()?;
        let device = &logits.device;
        let own = (rows > 1 && self.positions.elem_count() == rows).into();
        launch::check(rows, vocab)?;
        let y = with_elements::<u32, _, 2>([Some(&self.parameters), Some(&self.positions)], |numbers| {
            let [Some(parameters), Some(positions)] = numbers else { bail!("there are parameters and positions") };
            with_elements::<u8, _, 1>([self.seen.as_ref()], |[seen]| {
                let (of, dtype) = (elements::<T>(logits, layout)?, logits.dtype());
                written(device, rows, |y| {
                    if rows * vocab == 0 {
                        return Ok(());
                    }
                    let (logits, parameters, positions) = (&of, &parameters, &positions);
                    let (seen, y) = (seen.as_ref(), y.as_view_mut());
                    launch::Sample { rows, vocab, own, logits, parameters, positions, seen, y }.launch(
                        device,
                        dtype.as_str(),
                        ptx::SAMPLE,
                        launch::config(device, rows)?,
                    )
                })
            })
        })?;
        Ok((CudaStorage::wrap_cuda_slice(y, device.clone()), rows.into()))
    }
}

impl CustomOp1 for Sample {
    fn name(&self) -> &'static str {
        "sample"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        bail!("this operator is for tensors on a GPU")
    }

    fn cuda_fwd(&self, logits: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
        match logits.dtype() {
            DType::F16 => self.run::<f16>(logits, layout),
            DType::BF16 => self.run::<bf16>(logits, layout),
            _ => self.run::<f32>(logits, layout),
        }
    }
}

/// Marks a token of each row.
pub(super) fn mark(seen: &mut CudaStorage, sl: &Layout, tokens: &CudaStorage, tl: &Layout) -> Result<()> {
    let CudaStorageSlice::U8(marks) = &mut seen.slice else { bail!("u8 is marked") };
    let (rows, vocab) = sl.shape().dims2()?;
    launch::check(rows, vocab)?;
    if rows * vocab == 0 {
        return Ok(());
    }
    let (of, seen) = (elements::<u32>(tokens, tl)?, marks.slice_mut(sl.start_offset()..));
    launch::Mark { rows, vocab, tokens: &of, seen }.launch(&tokens.device, "u8", ptx::SAMPLE, blocks(rows))
}
