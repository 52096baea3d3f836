//! Convolution with bias and activation in one library call, with the fastest library and algorithm.

use candle::{bail, CudaDevice, Result};
use cudarc::cudnn::CudnnDataType;
use cudarc::driver::{CudaSlice, DeviceRepr};

use crate::cuda::driver::convolution::{Convolution, Operands};
use crate::cuda::driver::{cublaslt, cudnn, kernels};
use crate::cuda::operator::choice::{self, Choices};

/// An implementation of a convolution.
#[derive(Clone, Copy)]
enum Implementation {
    Cudnn(cudnn::Algorithm),
    CublasLt(cublaslt::Algorithm),
}

impl choice::Implementation for Implementation {
    fn name(&self) -> String {
        match self {
            Self::Cudnn(algorithm) => format!("{algorithm:?}"),
            Self::CublasLt(algorithm) => algorithm.name(),
        }
    }
}

/// The chosen implementation of each convolution. The flag: are the operands aligned for cuBLASLt?
static IMPLEMENTATIONS: Choices<(Convolution, bool), Implementation> = Choices::new("convolution");

/// Convolution, bias and activation of the operands, into `y`. `C` is the accumulator type.
///
/// # Errors
/// Slices that are too short or of another dtype, or a convolution that no library supports.
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
    let Operands { x, weight, bias, .. } = operands;
    let aligned = || [x, weight, bias].iter().all(|operand| cublaslt::is_aligned(kernels::address(operand, device)));
    let matmul = of.as_matmul().filter(|_| aligned());
    let run = |implementation| match (implementation, &matmul) {
        (Implementation::CublasLt(algorithm), Some(matmul)) => {
            cublaslt::run(device, matmul, &algorithm, x, weight, Some(bias), y)
        }
        (Implementation::CublasLt(_), None) => bail!("{of:?} is not a 1 x 1 convolution: cuBLASLt cannot run it"),
        (Implementation::Cudnn(algorithm), _) => cudnn::run::<T, C>(device, of, algorithm, operands, y),
    };
    let implementations = || {
        let mut implementations: Vec<Implementation> =
            cudnn::algorithms::<T, C>(device, of)?.into_iter().map(Implementation::Cudnn).collect();
        if let Some(matmul) = &matmul {
            implementations.extend(cublaslt::algorithms(device, matmul)?.into_iter().map(Implementation::CublasLt));
        }
        Ok(implementations.into_iter().map(|implementation| (implementation, 1.)).collect())
    };
    let guess = || Ok(Implementation::Cudnn(cudnn::guess::<T, C>(device, of)?));
    IMPLEMENTATIONS.run(device, (*of, matmul.is_some()), implementations, guess, run)
}
