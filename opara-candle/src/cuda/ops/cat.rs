//! Concatenation in one launch.

use candle::cuda_backend::CudaDType;
use candle::{Result, Tensor};
use cudarc::driver::DeviceRepr;

use super::format::Format;
use super::launch::{elements, is_known, launch, Call, Kernel};
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
    if !is_known(first.dtype())
        || rest.is_empty()
        || parts.len() > kernels::MOST_PARTS
        || dim >= first.rank()
        || !rest.iter().all(alike)
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
    let kernel = Cat { rest: arranged[1..].to_vec(), rows, widths };
    Ok(Some(format.view(&launch(kernel, &arranged[0], shape)?)?))
}

struct Cat {
    /// The parts but the first.
    rest: Vec<Tensor>,
    rows: usize,
    /// Elements of each part in a row.
    widths: Vec<usize>,
}

impl Kernel for Cat {
    const NAME: &'static str = "cat";

    fn launch<T: CudaDType + DeviceRepr>(&self, Call { device, x, y, .. }: Call<T>) -> Result<()> {
        let storages: Vec<_> = self.rest.iter().map(Tensor::storage_and_layout).collect();
        let mut parts = vec![x];
        for (storage, layout) in &storages {
            let candle::Storage::Cuda(storage) = &**storage else { candle::bail!("a part is not on the GPU") };
            parts.push(elements(storage, layout)?);
        }
        kernels::cat(device, self.rows, &self.widths, &parts, y)
    }
}
