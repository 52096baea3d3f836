//! Shared parts of the GPU operators: running a kernel as a candle operator, rows, planes, memory layouts, and
//! autotuning.

pub(crate) mod choice;
mod fastest;
pub(crate) mod format;
pub(crate) mod head_rows;
pub(crate) mod places;
pub(crate) mod plane;
pub(crate) mod rows;
pub(crate) mod tables;

use candle::backend::BackendStorage;
use candle::cuda_backend::{CudaDType, CudaStorage};
use candle::{CpuStorage, CudaDevice, CustomOp1, DType, Layout, Result, Shape, Storage, Tensor};
use cudarc::driver::{CudaSlice, CudaView, DeviceRepr};
use half::{bf16, f16};

use self::rows::Rows;
use crate::cuda::driver::{address_of, kernels};
use crate::gradient::{applied, made};

/// An operator that is one kernel, with a variant for each float dtype.
pub(crate) trait Kernel {
    /// The operator's name for candle.
    const NAME: &'static str;

    /// Launches the kernel, which must write all of `y`.
    fn launch<T: CudaDType + DeviceRepr>(&self, call: Call<T>) -> Result<()>;
}

/// The arguments of one launch.
pub(crate) struct Call<'a, T> {
    pub device: &'a CudaDevice,
    pub dtype: DType,
    /// Elements of the first operand.
    pub x: CudaView<'a, T>,
    /// Elements of the result.
    pub y: &'a mut CudaSlice<T>,
}

/// Are there kernels for this dtype?
pub(crate) fn is_known(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16 | DType::F32 | DType::F64)
}

/// Do the kernels support these operands: floats of one dtype on one GPU?
pub(crate) fn takes(first: &Tensor, rest: &[Option<&Tensor>]) -> bool {
    let alike = |other: &&Tensor| other.dtype() == first.dtype() && other.device().same_device(first.device());
    is_known(first.dtype()) && first.device().is_cuda() && rest.iter().flatten().all(alike)
}

/// Do all begin at a multiple of 16 bytes, as vectors do?
///
/// # Errors
/// A tensor that is not on a GPU.
pub(crate) fn begin_wide<'a>(tensors: impl IntoIterator<Item = &'a Tensor>) -> Result<bool> {
    for tensor in tensors {
        if !address_of(tensor).map_err(candle::Error::wrap)?.is_multiple_of(16) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// A contiguous tensor that begins at a multiple of 16 bytes, as vectors do: a copy where a view does not.
///
/// # Errors
/// A tensor that is not on a GPU, and a failed copy.
pub(crate) fn aligned(x: &Tensor) -> Result<Tensor> {
    let x = x.contiguous()?;
    if begin_wide([&x])? {
        Ok(x)
    } else {
        x.force_contiguous()
    }
}

/// The rows of `x`, if the kernels support the operands and each vector has one element per column.
pub(crate) fn rows_of(x: &Tensor, vectors: &[Option<&Tensor>]) -> Option<Rows> {
    let rows = Rows::of(x.dims())?;
    let fit = vectors.iter().flatten().all(|vector| vector.dims() == [rows.columns()]);
    (fit && takes(x, vectors)).then_some(rows)
}

/// The elements of a tensor, starting with its first one.
pub(crate) fn elements<'a, T: CudaDType>(storage: &'a CudaStorage, layout: &Layout) -> Result<CudaView<'a, T>> {
    // An empty view may start past the end of its tensor.
    let start = if layout.shape().elem_count() == 0 { 0 } else { layout.start_offset() };
    Ok(storage.as_cuda_slice::<T>()?.slice(start..))
}

/// Runs `kernel` on `x`, in the memory layout that the kernel expects. The result has the given shape.
pub(crate) fn launched<K: Kernel>(kernel: K, x: &Tensor, shape: impl Into<Shape>) -> Result<Tensor> {
    applied(x, &Operator { kernel, shape: shape.into() })
}

/// A kernel's result as a tensor.
pub(crate) fn tensor_of<T: CudaDType>(
    slice: CudaSlice<T>,
    device: &CudaDevice,
    shape: impl Into<Shape>,
) -> Result<Tensor> {
    made(Storage::Cuda(CudaStorage::wrap_cuda_slice(slice, device.clone())), shape)
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
        let (device, dtype, elements) = (&x.device, x.dtype(), elements(x, layout)?);
        let y = kernels::written::<T>(device, self.shape.elem_count(), |y| {
            self.kernel.launch(Call { device, dtype, x: elements, y })
        })?;
        Ok(CudaStorage::wrap_cuda_slice(y, x.device.clone()))
    }
}

impl<K: Kernel> CustomOp1 for Operator<K> {
    fn name(&self) -> &'static str {
        K::NAME
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        candle::bail!("this operator needs a tensor on a GPU")
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
