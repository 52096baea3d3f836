//! Matmul with a weight, on a GPU: by cuBLAS, cuBLASLt or this library's kernels, which may apply the epilogue in the
//! same launch.

use candle::cuda_backend::{self, CudaDType};
use candle::{DType, Result, Tensor};
use cudarc::driver::DeviceRepr;

use super::launch::{self, Tile};
use crate::cuda::driver::cublaslt::{self, Algorithm};
use crate::cuda::driver::matmul::Matmul;
use crate::cuda::operator::choice::{self, Choices};
use crate::cuda::operator::{begin_wide, launched, takes, with_elements, Call, Kernel};
use crate::ops::small_product::cuda::is_small;
use crate::ops::{small_product, Activation, ProductPrecision};

/// An implementation of a matmul and its epilogue.
#[derive(Clone, Copy)]
enum Implementation {
    /// candle's matmul: cuBLAS chooses the kernel.
    Candle,
    CublasLt(Matmul, Algorithm),
    /// This library's kernel, with the whole epilogue.
    Ours(Tile),
    /// The same without tensor cores.
    Small,
}

impl choice::Implementation for Implementation {
    fn name(&self) -> String {
        match self {
            Self::Candle => "candle".into(),
            Self::CublasLt(of, algorithm) => format!("{of:?} by {}", algorithm.name()),
            Self::Ours(tile) => format!("{tile:?}"),
            Self::Small => "small".into(),
        }
    }
}

/// The relative speed-up over cuBLAS's own choice that another kernel needs. A kernel that wins by less when it runs
/// alone most likely does so by filling the whole GPU, at the expense of parallel branches: BERT in f32, with three
/// matmuls side by side, took 1466 us with every winner and 1248 us with this margin.
const MARGIN: f64 = 0.25;

/// So many of cuBLASLt's algorithms are measured for a matmul. Each is a kernel that is loaded for that, which takes a millisecond. Of
/// 153 matmuls none had its fastest one behind these, with the margin that they need (H100).
const ALGORITHMS: usize = 3;

/// So many for a large one: of the second and third ones none is as much faster.
const ALGORITHMS_OF_LARGE: usize = 1;

/// The chosen implementation of each matmul.
static IMPLEMENTATIONS: Choices<Matmul, Implementation> = Choices::new("matmul");

/// `activation(x * weight^T + bias)` with the fastest implementation. `None` if none supports the operands: the caller
/// then runs candle's operators, which also report errors. `matmul` is candle's `x * weight^T`; `finish` is the
/// epilogue as launches of its own. No implementation rounds f32 to TF32.
pub(super) fn linear(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    activation: Activation,
    precision: ProductPrecision,
    matmul: impl Fn() -> Result<Tensor>,
    finish: impl Fn(Tensor) -> Result<Tensor>,
) -> Result<Option<Tensor>> {
    let bias = bias.map(Tensor::contiguous).transpose()?;
    if !fits(x, weight, bias.as_ref())? {
        return Ok(None);
    }
    let (columns, inner) = weight.dims2()?;
    let plain = Matmul {
        dtype: x.dtype(),
        precision,
        rows: x.elem_count() / inner,
        inner,
        columns,
        bias: false,
        activation: Activation::None,
    };
    let whole = Matmul { bias: bias.is_some(), activation, ..plain };
    let device = x.device().as_cuda_device()?;
    let shape = [&x.dims()[..x.rank() - 1], &[columns]].concat();
    let run = |implementation| {
        let of = match implementation {
            Implementation::Candle => return finish(matmul()?),
            Implementation::CublasLt(of, _) => of,
            Implementation::Small => {
                let small =
                    small_product(&x.reshape(((), inner))?, weight, bias.as_ref(), [Activation::None, activation])?;
                return small.map_or_else(|| finish(matmul()?), |y| y.reshape(shape.as_slice()));
            }
            Implementation::Ours(_) => whole,
        };
        let bias = bias.clone().filter(|_| of.bias);
        let y = launched(Linear { of, implementation, weight: weight.clone(), bias }, x, shape.as_slice())?;
        match of == plain {
            true => finish(y),
            false => Ok(y),
        }
    };
    let implementations = || {
        let mut implementations = vec![(Implementation::Candle, 1.)];
        // If cuBLASLt cannot apply the epilogue, `finish` does. If it can, its plain product and `finish` are never the fastest.
        let is_one_call = whole != plain && cublaslt::knows(activation);
        let of = if is_one_call { whole } else { plain };
        let most = if of.is_large() { ALGORITHMS_OF_LARGE } else { ALGORITHMS };
        let proposed = cublaslt::algorithms(device, &of, most)?.into_iter().enumerate();
        // The first algorithm is cuBLAS's own choice: it needs no margin if it saves the launch of the epilogue.
        let factor = |rank| if rank == 0 && is_one_call { 1. } else { 1. + MARGIN };
        implementations
            .extend(proposed.map(|(rank, algorithm)| (Implementation::CublasLt(of, algorithm), factor(rank))));
        let tiles = launch::tiles_for(device, &whole)?.into_iter().filter(|tile| tile.suits(&whole));
        implementations.extend(tiles.map(|tile| (Implementation::Ours(tile), 1. + MARGIN)));
        if is_small(&x.reshape(((), inner))?, weight)? {
            implementations.push((Implementation::Small, 1. + MARGIN));
        }
        Ok(implementations)
    };
    IMPLEMENTATIONS.run(device, whole, implementations, || Ok(Implementation::Candle), run).map(Some)
}

/// Do cuBLASLt and this library's kernels compute the same as candle for these operands?
pub(super) fn fits(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<bool> {
    let (columns, inner) = weight.dims2()?;
    let go_together = x.dims().last() == Some(&inner) && bias.is_none_or(|bias| bias.dims() == [columns]);
    if is_reduced(x.dtype()) || !takes(x, &[Some(weight), bias]) || !go_together || x.elem_count() == 0 || columns == 0
    {
        return Ok(false);
    }
    let operands = || [Some(x), Some(weight), bias].into_iter().flatten();
    Ok(operands().all(Tensor::is_contiguous) && begin_wide(operands())?)
}

/// Whether candle's products of this type may sum in less than f32, which no other implementation does, or there are none.
pub(super) fn is_reduced(dtype: DType) -> bool {
    match dtype {
        DType::F32 => cuda_backend::gemm_reduced_precision_f32(),
        DType::F16 => cuda_backend::gemm_reduced_precision_f16(),
        DType::BF16 => cuda_backend::gemm_reduced_precision_bf16(),
        _ => true,
    }
}

/// The product by an algorithm of cuBLASLt, whose operands [fit](fits).
pub(super) fn by_algorithm(
    of: Matmul,
    algorithm: Algorithm,
    x: &Tensor,
    weight: &Tensor,
    shape: &[usize],
) -> Result<Tensor> {
    let implementation = Implementation::CublasLt(of, algorithm);
    launched(Linear { of, implementation, weight: weight.clone(), bias: None }, x, shape)
}

struct Linear {
    of: Matmul,
    implementation: Implementation,
    weight: Tensor,
    bias: Option<Tensor>,
}

impl Kernel for Linear {
    const NAME: &'static str = "linear";

    fn launch<T: CudaDType + DeviceRepr>(&self, Call { device, x, y, .. }: Call<T>) -> Result<()> {
        with_elements([Some(&self.weight), self.bias.as_ref()], |[weight, bias]| {
            let Some(weight) = weight else { candle::bail!("a matmul without a weight") };
            match &self.implementation {
                Implementation::Candle | Implementation::Small => candle::bail!("another function launches it"),
                Implementation::CublasLt(_, algorithm) => {
                    cublaslt::run(device, &self.of, algorithm, &x, &weight, bias.as_ref(), y)
                }
                Implementation::Ours(tile) => launch::matmul(device, &self.of, *tile, &x, &weight, bias.as_ref(), y),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use candle::{Device, Module};

    use super::*;
    use crate::ops::test_numbers::numbers;
    use crate::test_device::gpu;

    /// A product of f32 that this library's kernels compute, without an epilogue.
    fn in_f32([rows, inner, columns]: [usize; 3]) -> Matmul {
        Matmul {
            dtype: DType::F32,
            precision: ProductPrecision::High,
            rows,
            inner,
            columns,
            bias: false,
            activation: Activation::None,
        }
    }

    /// Needs a GPU; skips without one.
    #[test]
    fn f32_matmul_kernels_agree_with_f64() -> Result<()> {
        let Some(device) = gpu() else { return Ok(()) };
        let numbers = |seed: usize, shape: (usize, usize)| numbers(seed, shape, DType::F32);
        for (rows, inner, columns) in [(1, 4, 4), (70, 36, 52), (128, 64, 128), (200, 20, 132), (300, 768, 1000)] {
            let (x, weight, bias) =
                (numbers(1, (rows, inner))?, numbers(2, (columns, inner))?, numbers(3, (1, columns))?);
            let matmul = x.to_dtype(DType::F64)?.matmul(&weight.to_dtype(DType::F64)?.t()?)?;
            let with = [Activation::None, Activation::Relu, Activation::Gelu, Activation::GeluErf, Activation::Silu];
            for (bias, activation) in
                with.iter().flat_map(|&activation| [(None, activation), (Some(&bias), activation)])
            {
                let of = Matmul { bias: bias.is_some(), activation, ..in_f32([rows, inner, columns]) };
                let sum = match bias {
                    Some(bias) => matmul.broadcast_add(&bias.to_dtype(DType::F64)?)?,
                    None => matmul.clone(),
                };
                let expected = activation.forward(&sum)?;
                for tile in launch::tiles_for(device.as_cuda_device()?, &of)? {
                    let bias = bias.map(|bias| bias.flatten_all()?.to_device(&device)).transpose()?;
                    let kernel = Linear {
                        of,
                        implementation: Implementation::Ours(tile),
                        weight: weight.to_device(&device)?,
                        bias,
                    };
                    let y = launched(kernel, &x.to_device(&device)?, (rows, columns))?.to_device(&Device::Cpu)?;
                    let error = (y.to_dtype(DType::F64)? - &expected)?.abs()?.max_all()?.to_scalar::<f64>()?;
                    let most = expected.abs()?.max_all()?.to_scalar::<f64>()?.max(1.);
                    assert!(error <= 2e-6 * most, "{of:?} by {tile:?}: off by {error:.1e} of {most}");
                }
            }
        }
        Ok(())
    }

    /// Needs a GPU; skips without one.
    #[test]
    fn nan_in_an_operand_reaches_its_row_or_column_only() -> Result<()> {
        let Some(device) = gpu() else { return Ok(()) };
        let (rows, inner, columns) = (70, 40, 56);
        let of = in_f32([rows, inner, columns]);
        let ones = |shape: (usize, usize), nan: Option<(usize, u32)>| {
            let of = |i| nan.filter(|&(at, _)| at == i).map_or(1., |(_, bits)| f32::from_bits(bits));
            Tensor::from_iter((0..shape.0 * shape.1).map(of), &device)?.reshape(shape)
        };
        // The usual NaN, and one that only its last bit tells from an infinity.
        for nan in [0x7fff_ffff, 0x7f80_0001] {
            for (of_x, of_weight) in [(Some((5 * inner + 3, nan)), None), (None, Some((7 * inner + 9, nan)))] {
                let (x, weight) = (ones((rows, inner), of_x)?, ones((columns, inner), of_weight)?);
                for tile in launch::tiles_for(device.as_cuda_device()?, &of)? {
                    let kernel =
                        Linear { of, implementation: Implementation::Ours(tile), weight: weight.clone(), bias: None };
                    let y = launched(kernel, &x, (rows, columns))?.to_vec2::<f32>()?;
                    for (row, column) in (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column))) {
                        let is_nan = if of_x.is_some() { row == 5 } else { column == 7 };
                        let (got, what) = (y[row][column], if of_x.is_some() { "x" } else { "the weight" });
                        assert_eq!(got.is_nan(), is_nan, "{got} at {row}, {column}: {nan:x} in {what}, {tile:?}");
                    }
                }
            }
        }
        Ok(())
    }

    /// Every kernel, not only the fastest one. Needs a GPU; skips without one.
    #[test]
    fn extreme_operands_give_the_results_of_plain_f32() -> Result<()> {
        let Some(device) = gpu() else { return Ok(()) };
        let (rows, inner, columns) = (70, 140, 56);
        let of = in_f32([rows, inner, columns]);
        let quarters = |shape: (usize, usize), at: usize, extreme: f32| {
            let of = |i| if i == at { extreme } else { 0.25 + (i % 7) as f32 / 64. };
            Tensor::from_iter((0..shape.0 * shape.1).map(of), &device)?.reshape(shape)
        };
        for extreme in [4.2e34, 1e35, 3e38, -3e38, f32::MAX, f32::INFINITY, f32::NEG_INFINITY] {
            for (of_x, of_weight) in [(extreme, 0.25), (0.25, extreme), (extreme, extreme)] {
                let x = quarters((rows, inner), 66 * inner + 135, of_x)?;
                let weight = quarters((columns, inner), 50 * inner + 135, of_weight)?;
                let expected = x.matmul(&weight.t()?)?.to_vec2::<f32>()?;
                for tile in launch::tiles_for(device.as_cuda_device()?, &of)? {
                    let kernel =
                        Linear { of, implementation: Implementation::Ours(tile), weight: weight.clone(), bias: None };
                    let y = launched(kernel, &x, (rows, columns))?.to_vec2::<f32>()?;
                    for (at, (got, expected)) in y.iter().flatten().zip(expected.iter().flatten()).enumerate() {
                        let is_alike = got == expected || (got / expected - 1.).abs() < 1e-5;
                        assert!(is_alike, "{got:e} at {at}, not {expected:e}: {of_x:e}, {of_weight:e}, {tile:?}");
                    }
                }
            }
        }
        Ok(())
    }
}
