//! What operators on a GPU share: how one that is one launch runs, rows, planes, orders of elements, and the choice among
//! several ways.

pub(crate) mod choice;
pub(crate) mod format;
pub(crate) mod plane;
pub(crate) mod rows;

use candle::backend::BackendStorage;
use candle::cuda_backend::{CudaDType, CudaStorage};
use candle::{CpuStorage, CudaDevice, CustomOp1, DType, Layout, Result, Shape, Storage, Tensor};
use cudarc::driver::{CudaSlice, CudaView, DeviceRepr};
use half::{bf16, f16};

use self::rows::Rows;
use crate::cuda::driver::kernels;

/// An operator of one kernel, which there is for every dtype of floats.
pub(crate) trait Kernel {
    /// candle's name for it.
    const NAME: &'static str;

    /// Launches it: it writes all of `y`.
    fn launch<T: CudaDType + DeviceRepr>(&self, call: Call<T>) -> Result<()>;
}

/// The elements that a kernel runs on, of one type.
pub(crate) struct Call<'a, T> {
    pub device: &'a CudaDevice,
    pub dtype: DType,
    /// Those of its first operand.
    pub x: CudaView<'a, T>,
    /// Those of its result.
    pub y: &'a mut CudaSlice<T>,
}

/// Whether there are kernels for a dtype.
pub(crate) fn is_known(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16 | DType::F32 | DType::F64)
}

/// Whether the kernels take these operands: floats of one dtype on one GPU.
pub(crate) fn takes(first: &Tensor, rest: &[Option<&Tensor>]) -> bool {
    let alike = |other: &&Tensor| other.dtype() == first.dtype() && other.device().same_device(first.device());
    is_known(first.dtype()) && first.device().is_cuda() && rest.iter().flatten().all(alike)
}

/// The rows of `x`, if the kernels take it and these vectors, and their sizes go with them.
pub(crate) fn rows_of(x: &Tensor, vectors: &[Option<&Tensor>]) -> Option<Rows> {
    let rows = Rows::of(x.dims())?;
    let fit = vectors.iter().flatten().all(|vector| vector.dims() == [rows.columns()]);
    (fit && takes(x, vectors)).then_some(rows)
}

/// The elements of a tensor, from its first one on.
pub(crate) fn elements<'a, T: CudaDType>(storage: &'a CudaStorage, layout: &Layout) -> Result<CudaView<'a, T>> {
    // An empty one may begin behind the end of what it is a view of.
    let start = if layout.shape().elem_count() == 0 { 0 } else { layout.start_offset() };
    Ok(storage.as_cuda_slice::<T>()?.slice(start..))
}

/// The result, of `shape`, of `kernel` on `x` and what else it holds, which must lie as the kernel takes them.
pub(crate) fn launched<K: Kernel>(kernel: K, x: &Tensor, shape: impl Into<Shape>) -> Result<Tensor> {
    x.apply_op1_no_bwd(&Operator { kernel, shape: shape.into() })
}

/// Calls `f` with the elements of contiguous tensors.
pub(crate) fn with_elements<T: CudaDType, R, const N: usize>(
    tensors: [Option<&Tensor>; N],
    f: impl FnOnce([Option<CudaView<T>>; N]) -> Result<R>,
) -> Result<R> {
    let storages = tensors.map(|tensor| tensor.map(Tensor::storage_and_layout));
    let mut views = [const { None }; N];
    for (view, storage) in views.iter_mut().zip(&storages) {
        let Some((storage, layout)) = storage else { continue };
        let Storage::Cuda(storage) = &**storage else { candle::bail!("an operand is not on the GPU") };
        *view = Some(elements(storage, layout)?);
    }
    f(views)
}

struct Operator<K> {
    kernel: K,
    shape: Shape,
}

impl<K: Kernel> Operator<K> {
    fn run<T: CudaDType + DeviceRepr>(&self, x: &CudaStorage, layout: &Layout) -> Result<CudaStorage> {
        let mut y = kernels::uninit::<T>(&x.device, self.shape.elem_count())?;
        let call = Call { device: &x.device, dtype: x.dtype(), x: elements(x, layout)?, y: &mut y };
        self.kernel.launch(call)?;
        Ok(CudaStorage::wrap_cuda_slice(y, x.device.clone()))
    }
}

impl<K: Kernel> CustomOp1 for Operator<K> {
    fn name(&self) -> &'static str {
        K::NAME
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
        Ok((y, self.shape.clone()))
    }
}
