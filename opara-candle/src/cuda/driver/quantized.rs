//! Weights of GGUF's blocks as candle holds them.

use candle::quantized::cuda::QCudaStorage;
use candle::quantized::{GgmlDType, QStorage, QTensor};
use candle::{bail, Result, Tensor};
use cudarc::driver::sys;

use super::memory::{address_of, bytes_of};
use super::{check, Stream};

/// A weight of this shape whose blocks are a copy of `bytes`. candle makes one of bytes of the host alone, which no capture records.
///
/// # Errors
/// Bytes that are not contiguous or not all that such a weight has; no memory left.
pub(crate) fn quantized_tensor(bytes: &Tensor, dtype: GgmlDType, shape: Vec<usize>) -> Result<QTensor> {
    let storage = QCudaStorage::zeros(bytes.device().as_cuda_device()?, shape.iter().product(), dtype)?;
    if bytes_of(bytes) != storage.storage_size_in_bytes() as u64 || !bytes.is_contiguous() {
        bail!("{:?} are not the blocks of a weight of {shape:?} elements of {dtype:?}", bytes.layout())
    }
    let (to, from) = (storage.device_ptr()? as u64, address_of(bytes).map_err(candle::Error::wrap)?);
    let stream = Stream::of(bytes.device()).map_err(candle::Error::wrap)?;
    // SAFETY: `bytes` holds as many bytes as are copied, contiguous, and so does the storage, as was compared. Both are of this device and
    // live in this call; the work that wrote them, and that reads the copy, is ordered on candle's stream.
    check("cuMemcpyDtoDAsync", unsafe {
        sys::cuMemcpyDtoDAsync_v2(to, from, storage.storage_size_in_bytes(), stream.raw())
    })
    .map_err(candle::Error::wrap)?;
    QTensor::new(QStorage::Cuda(storage), shape)
}
