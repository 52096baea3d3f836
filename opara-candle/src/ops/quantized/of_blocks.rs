//! Codes and scales of GGUF's blocks that lie on a GPU.

use candle::backend::BackendStorage;
use candle::cuda_backend::CudaStorage;
use candle::quantized::GgmlDType;
use candle::{bail, CpuStorage, CustomOp1, DType, Layout, Result, Shape, Tensor};
use cudarc::driver::CudaView;
use half::f16;

use crate::cuda::driver::kernels::{blocks, kernels, ptx, written};
use crate::cuda::operator::elements;
use crate::gradient::applied;

kernels! {
    /// Codes of `numel` bytes.
    BlockCodes = "opara_layout_block_codes_" for [u8] {
        bytes: host, numel: u32,
        of: in u8 [bytes],
        codes: out u8 [numel],
    }

    /// Scales, and minima where there are any: `numel` of both.
    BlockScales = "opara_layout_block_scales_" for [f16] {
        bytes: host, numel: u32,
        of: in u8 [bytes],
        scales: out f16 [numel],
    }
}

/// The codes and the scales of blocks, in these shapes.
///
/// # Errors
/// A type without kernels, 2^32 codes or more, or a launch that fails.
pub(super) fn parts(dtype: GgmlDType, bytes: &Tensor, codes: Shape, scales: Shape) -> Result<[Tensor; 2]> {
    let part = |shape, to| applied(bytes, &Part { dtype, shape, to });
    Ok([part(codes, DType::U8)?, part(scales, DType::F16)?])
}

struct Part {
    dtype: GgmlDType,
    shape: Shape,
    /// Of bytes, codes; of halves, scales.
    to: DType,
}

impl Part {
    fn launch(&self, of: &CudaStorage, layout: &Layout) -> Result<CudaStorage> {
        let (device, bytes, numel) = (&of.device, layout.shape().elem_count(), self.shape.elem_count());
        if u32::try_from(numel).is_err() {
            bail!("a weight with {numel} codes is larger than the kernel counts")
        }
        let of: &CudaView<u8> = &elements(of, layout)?;
        let config = blocks(numel);
        let Some(name) = name(self.dtype) else { bail!("no kernel reads blocks of {:?}", self.dtype) };
        let variant = format!("{name}_{}", self.to.as_str());
        if self.to == DType::U8 {
            let codes = written::<u8>(device, numel, |codes| {
                let codes = codes.as_view_mut();
                BlockCodes { bytes, numel, of, codes }.launch(device, &variant, ptx::OF_BLOCKS, config)
            })?;
            return Ok(CudaStorage::wrap_cuda_slice(codes, device.clone()));
        }
        let scales = written::<f16>(device, numel, |scales| {
            let scales = scales.as_view_mut();
            BlockScales { bytes, numel, of, scales }.launch(device, &variant, ptx::OF_BLOCKS, config)
        })?;
        Ok(CudaStorage::wrap_cuda_slice(scales, device.clone()))
    }
}

impl CustomOp1 for Part {
    fn name(&self) -> &'static str {
        "parts of blocks"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        bail!("this operator needs a tensor on a GPU")
    }

    fn cuda_fwd(&self, of: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
        if of.dtype() != DType::U8 {
            bail!("blocks are bytes, not {:?}", of.dtype())
        }
        Ok((self.launch(of, layout)?, self.shape.clone()))
    }
}

/// A type's name in the names of kernels.
fn name(dtype: GgmlDType) -> Option<&'static str> {
    Some(match dtype {
        GgmlDType::Q4_0 => "q4_0",
        GgmlDType::Q4_1 => "q4_1",
        GgmlDType::Q5_0 => "q5_0",
        GgmlDType::Q5_1 => "q5_1",
        GgmlDType::Q8_0 => "q8_0",
        GgmlDType::Q2K => "q2_k",
        GgmlDType::Q3K => "q3_k",
        GgmlDType::Q4K => "q4_k",
        GgmlDType::Q5K => "q5_k",
        GgmlDType::Q6K => "q6_k",
        _ => return None,
    })
}
