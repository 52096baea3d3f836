//! Concatenation in one launch.

use candle::backend::BackendStorage;
use candle::cuda_backend::{CudaDType, CudaStorage};
use candle::{CpuStorage, CustomOp1, DType, Layout, Result, Shape, Tensor};
use cudarc::driver::DeviceRepr;
use half::{bf16, f16};

use super::format::Format;
use crate::cuda::driver::kernels;
use crate::ops::format::is_channels_last;

/// The parts one after the other along `dim`; `None` where candle's operator has to do it.
pub(crate) fn cat(parts: &[&Tensor], dim: usize) -> Result<Option<Tensor>> {
    let Some((first, rest)) = parts.split_first() else { return Ok(None) };
    let alike = |part: &&Tensor| {
        let sizes = part.dims().iter().zip(first.dims()).enumerate();
        part.rank() == first.rank()
            && part.dtype() == first.dtype()
            && part.device().same_device(first.device())
            && sizes.into_iter().all(|(at, (a, b))| at == dim || a == b)
    };
    let floats = matches!(first.dtype(), DType::F16 | DType::BF16 | DType::F32 | DType::F64);
    if !floats || rest.is_empty() || parts.len() > kernels::MOST_PARTS || dim >= first.rank() || !rest.iter().all(alike)
    {
        return Ok(None);
    }
    // Where some lie otherwise, the result is laid out like most, as far as that can be seen here: like any with channels
    // inside.
    let (format, dim) = match (parts.iter().any(|part| is_channels_last(part)), dim) {
        (true, 1) => (Format::Nhwc, 3),
        (true, 0) => (Format::Nhwc, 0),
        (true, inner) => (Format::Nhwc, inner - 1),
        (false, dim) => (Format::Nchw, dim),
    };
    let arranged = parts.iter().map(|part| format.arrange(part)).collect::<Result<Vec<_>>>()?;
    let widths = arranged.iter().map(|part| part.dims()[dim..].iter().product()).collect::<Vec<usize>>();
    let rows = arranged[0].dims()[..dim].iter().product::<usize>();
    if rows * widths.iter().sum::<usize>() == 0 {
        return Ok(None);
    }
    let mut shape = arranged[0].dims().to_vec();
    shape[dim] = arranged.iter().map(|part| part.dims()[dim]).sum();
    let op = Cat { rest: arranged[1..].to_vec(), rows, widths, shape: shape.into() };
    Ok(Some(format.view(&arranged[0].apply_op1_no_bwd(&op)?)?))
}

struct Cat {
    /// The parts but the first.
    rest: Vec<Tensor>,
    rows: usize,
    /// Elements of each part in a row.
    widths: Vec<usize>,
    shape: Shape,
}

impl Cat {
    fn run<T: CudaDType + DeviceRepr>(&self, first: &CudaStorage, layout: &Layout) -> Result<CudaStorage> {
        let storages: Vec<_> = self.rest.iter().map(Tensor::storage_and_layout).collect();
        let mut parts = vec![first.as_cuda_slice::<T>()?.slice(layout.start_offset()..)];
        for (storage, layout) in &storages {
            let candle::Storage::Cuda(storage) = &**storage else { candle::bail!("a part is not on the GPU") };
            parts.push(storage.as_cuda_slice::<T>()?.slice(layout.start_offset()..));
        }
        let mut y = kernels::uninit::<T>(&first.device, self.shape.elem_count())?;
        kernels::cat(&first.device, self.rows, &self.widths, &parts, &mut y)?;
        Ok(CudaStorage::wrap_cuda_slice(y, first.device.clone()))
    }
}

impl CustomOp1 for Cat {
    fn name(&self) -> &'static str {
        "cat"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        candle::bail!("this operator is for tensors on a GPU")
    }

    fn cuda_fwd(&self, first: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
        let y = match first.dtype() {
            DType::F16 => self.run::<f16>(first, layout)?,
            DType::BF16 => self.run::<bf16>(first, layout)?,
            DType::F32 => self.run::<f32>(first, layout)?,
            _ => self.run::<f64>(first, layout)?,
        };
        Ok((y, self.shape.clone()))
    }
}
