//! Convolutions with bias and activation in one call, by the library and the algorithm that are the fastest.

use candle::{bail, CudaDevice, Result};
use cudarc::cudnn::CudnnDataType;
use cudarc::driver::{CudaSlice, DeviceRepr};

use crate::cuda::driver::convolution::{Convolution, Operands};
use crate::cuda::driver::{cublaslt, cudnn, kernels};
use crate::cuda::operator::choice::Choices;

/// How a convolution is computed.
#[derive(Clone, Copy)]
enum Way {
    Cudnn(cudnn::Algorithm),
    CublasLt(cublaslt::Algorithm),
}

/// The way for each convolution, and whether cuBLASLt may take its operands.
static WAYS: Choices<(Convolution, bool), Way> = Choices::new();

/// The convolution `of` the operands plus the bias, and the activation, into `y`. `C` is what it adds up in.
///
/// # Errors
/// Slices that are too short or of another dtype, or what no library supports.
pub(super) fn convolve<T, C>(
    device: &CudaDevice,
    of: &Convolution,
    operands: &Operands<'_, T>,
    y: &mut CudaSlice<T>,
) -> Result<()>
where
    T: CudnnDataType + DeviceRepr + candle::WithDType,
    C: CudnnDataType,
{
    let Operands { x, weight, bias } = operands;
    let aligned = || [x, weight, bias].iter().all(|operand| cublaslt::is_aligned(kernels::address(operand, device)));
    let matmul = of.matmul().filter(|_| aligned());
    let run = |way| match (way, &matmul) {
        (Way::CublasLt(algorithm), Some(matmul)) => cublaslt::run(device, matmul, &algorithm, x, weight, Some(bias), y),
        (Way::CublasLt(_), None) => bail!("{of:?} is no matmul"),
        (Way::Cudnn(algorithm), _) => cudnn::run::<T, C>(device, of, algorithm, operands, y),
    };
    let ways = || {
        let mut ways: Vec<Way> = cudnn::algorithms::<T, C>(device, of)?.into_iter().map(Way::Cudnn).collect();
        if let Some(matmul) = &matmul {
            ways.extend(cublaslt::algorithms(device, matmul)?.into_iter().map(Way::CublasLt));
        }
        Ok(ways.into_iter().map(|way| (way, 1.)).collect())
    };
    let guess = || Ok(Way::Cudnn(cudnn::guess::<T, C>(device, of)?));
    WAYS.run(device, (*of, matmul.is_some()), ways, guess, run)
}
