//! Convolution with bias and activation in one library call, with the fastest library and algorithm.

use candle::{bail, CudaDevice, Result};
use cudarc::cudnn::CudnnDataType;
use cudarc::driver::{CudaSlice, DeviceRepr};

use super::launch;
use crate::cuda::driver::convolution::{Convolution, Operands};
use crate::cuda::driver::{cublaslt, cudnn};
use crate::cuda::operator::choice::{self, Choices};
use crate::ops::matmul::launch::{tiles_for, Tile};

/// An implementation of a convolution.
#[derive(Clone, Copy)]
enum Implementation {
    Cudnn(cudnn::Algorithm),
    CublasLt(cublaslt::Algorithm),
    /// This library's kernel, of f32 operands as several numbers of TF32.
    Ours(Tile),
}

impl choice::Implementation for Implementation {
    fn name(&self) -> String {
        match self {
            Self::Cudnn(algorithm) => format!("{algorithm:?}"),
            Self::CublasLt(algorithm) => algorithm.name(),
            Self::Ours(tile) => format!("{tile:?}"),
        }
    }
}

/// So many of cuBLASLt's algorithms are measured for a convolution of 1 by 1. Each is a kernel that is loaded for that, which takes a
/// millisecond. Of 128 such convolutions 11 had their fastest one behind these, faster by 2 % on average (H100).
const ALGORITHMS: usize = 6;

/// So many for a large one: with these Stable Diffusion, ResNet-50 and ConvNeXt take as long at batch 8 as with six.
const ALGORITHMS_OF_LARGE: usize = 2;

/// The chosen implementation of each convolution. The flag: are the operands aligned for others than cuDNN?
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
    let are_aligned = operands.are_aligned(device);
    let matmul = of.as_matmul().filter(|_| are_aligned);
    let run = |implementation| match (implementation, &matmul) {
        (Implementation::CublasLt(algorithm), Some(matmul)) => {
            cublaslt::run(device, matmul, &algorithm, x, weight, Some(bias), y)
        }
        (Implementation::CublasLt(_), None) => bail!("{of:?} is not a 1 x 1 convolution: cuBLASLt cannot run it"),
        (Implementation::Ours(tile), _) => launch::of_windows(device, of, tile, operands, y),
        (Implementation::Cudnn(algorithm), _) => cudnn::run::<T, C>(device, of, algorithm, operands, y),
    };
    let implementations = || {
        let mut implementations: Vec<Implementation> =
            cudnn::algorithms::<T, C>(device, of)?.into_iter().map(Implementation::Cudnn).collect();
        if let Some(matmul) = &matmul {
            let most = if matmul.is_large() { ALGORITHMS_OF_LARGE } else { ALGORITHMS };
            let proposed = cublaslt::algorithms(device, matmul, most)?;
            implementations.extend(proposed.into_iter().map(Implementation::CublasLt));
        }
        if let Some(of) = of.of_windows().filter(|_| are_aligned) {
            let tiles = tiles_for(device, &of)?.into_iter().filter(|tile| tile.suits(&of));
            implementations.extend(tiles.map(Implementation::Ours));
        }
        Ok(implementations.into_iter().map(|implementation| (implementation, 1.)).collect())
    };
    let guess = || Ok(Implementation::Cudnn(cudnn::guess::<T, C>(device, of)?));
    IMPLEMENTATIONS.run(device, (*of, are_aligned), implementations, guess, run)
}

#[cfg(test)]
mod tests {
    use candle::{DType, Tensor};

    use super::*;
    use crate::cuda::driver::kernels;
    use crate::cuda::operator::with_elements;
    use crate::ops::test_numbers::numbers;
    use crate::ops::{self, ConvConfig, ProductPrecision};
    use crate::test_device::gpu;

    /// Every kernel, not only the fastest one, beside f64: plain numbers, some that cannot be split, and NaN. Needs a GPU; skips
    /// without one.
    #[test]
    fn kernels_of_windows_agree_with_f64() -> Result<()> {
        let Some(device) = gpu() else { return Ok(()) };
        let cuda = device.as_cuda_device()?;
        let numbers = |seed: usize, shape: [usize; 4]| numbers(seed, shape.to_vec(), DType::F32);
        for ([channels, out], [kh, kw], [top, left], stride, dilation) in [
            ([64, 72], [1, 1], [0, 0], 1, 1),
            ([4, 8], [3, 3], [1, 1], 1, 1),
            ([20, 68], [3, 3], [1, 1], 2, 1),
            ([36, 12], [1, 7], [0, 3], 1, 1),
            ([132, 64], [5, 3], [4, 2], 3, 2),
        ] {
            for extreme in [1., 1e35, f32::INFINITY, f32::NAN] {
                let x = numbers(1, [2, 11, 9, channels])?;
                // In the middle of the second image.
                let at = Tensor::arange(0u32, x.elem_count() as u32, &candle::Device::Cpu)?
                    .eq((17 * 9 + 4) as u32 * channels as u32)?;
                let x =
                    at.reshape(x.dims())?.where_cond(&Tensor::full(extreme, x.dims(), &candle::Device::Cpu)?, &x)?;
                let weight = numbers(2, [out, kh, kw, channels])?;
                let bias = numbers(3, [out, 1, 1, 1])?.flatten_all()?;
                let [reference_x, reference_weight] =
                    [&x, &weight].map(|t| t.to_dtype(DType::F64)?.permute((0, 3, 1, 2)));
                let config = ConvConfig::default().padding((top, left)).stride(stride).dilation(dilation);
                let reference_bias = bias.to_dtype(DType::F64)?;
                let y = ops::conv2d(&reference_x?, &reference_weight?, Some(&reference_bias), &config)?;
                let (_, _, oh, ow) = y.dims4()?;
                let residual = numbers(4, [2, oh, ow, out])?;
                let expected =
                    (y.permute((0, 2, 3, 1))? + residual.to_dtype(DType::F64)?)?.flatten_all()?.to_vec1::<f64>()?;
                let of = Convolution {
                    dtype: DType::F32,
                    channels_last: true,
                    x: [2, channels, 11, 9],
                    weight: [out, channels, kh, kw],
                    y: [2, out, oh, ow],
                    padding: [top, left],
                    stride,
                    dilation,
                    groups: 1,
                    residual: true,
                    relu: false,
                    precision: ProductPrecision::High,
                };
                let on_gpu = |t: &Tensor| t.to_device(&device);
                let (x, weight, bias, residual) = (on_gpu(&x)?, on_gpu(&weight)?, on_gpu(&bias)?, on_gpu(&residual)?);
                for tile in tiles_for(cuda, &of.of_windows().expect("rows of channels"))? {
                    let y = with_elements([&x, &weight, &bias, &residual].map(Some), |views| {
                        let [Some(x), Some(weight), Some(bias), residual] = views else { bail!("all are given") };
                        let operands = Operands { x, weight, bias, residual };
                        kernels::written::<f32>(cuda, expected.len(), |y| {
                            launch::of_windows(cuda, &of, tile, &operands, y)
                        })
                    })?;
                    let got = cuda.clone_dtoh(&y)?;
                    for (at, (&got, &expected)) in got.iter().zip(&expected).enumerate() {
                        let is_alike = match expected.is_finite() {
                            true => (f64::from(got) - expected).abs() <= 2e-6 * expected.abs().max(10.),
                            false => !got.is_finite(),
                        };
                        assert!(is_alike, "{got:e} at {at}, not {expected:e}: {of:?} by {tile:?} with {extreme:e}");
                    }
                }
            }
        }
        Ok(())
    }
}
