//! Products that have a factor, and may begin with a summand, on a GPU: by one call of cuBLASLt, or by a product and what follows.

use candle::cuda_backend::CudaDType;
use candle::{bail, DType, Result, Tensor, WithDType};
use cudarc::driver::DeviceRepr;
use half::{bf16, f16};

use super::cuda::is_reduced;
use crate::cuda::driver::cublaslt::{self, Algorithm, Sum};
use crate::cuda::driver::kernels::written;
use crate::cuda::driver::matmul::ProductSum;
use crate::cuda::operator::choice::{self, Choices};
use crate::cuda::operator::{begin_wide, takes, tensor_of, with_elements};

#[derive(Clone, Copy)]
enum Implementation {
    Apart,
    Together(Algorithm),
}

impl choice::Implementation for Implementation {
    fn name(&self) -> String {
        match self {
            Self::Apart => "apart".into(),
            Self::Together(algorithm) => algorithm.name(),
        }
    }
}

/// The chosen implementation for each size.
static IMPLEMENTATIONS: Choices<ProductSum, Implementation> = Choices::new("product sum");

/// Algorithms of cuBLASLt that are measured.
const ALGORITHMS: usize = 3;

/// The operators of [`sum`](super::sum); `apart` is the same by two launches or more. `None` if cuBLASLt does not compute it.
pub(super) fn product_sum(
    (factor, x): (f32, &Tensor),
    (weight, is_by_rows): (&Tensor, bool),
    bias: Option<&Tensor>,
    to: Option<&Tensor>,
    apart: impl Fn() -> Result<Tensor>,
) -> Result<Option<Tensor>> {
    let ((rows, inner), (first, second)) = (x.dims2()?, weight.dims2()?);
    let (columns, of_weight) = if is_by_rows { (first, second) } else { (second, first) };
    let is_known = matches!(x.dtype(), DType::F16 | DType::BF16) && !is_reduced(x.dtype());
    let agree = of_weight == inner
        && to.is_none_or(|to| to.dims() == [rows, columns])
        && bias.is_none_or(|bias| bias.dims() == [columns]);
    let is_turned = !x.is_contiguous() && x.t()?.is_contiguous();
    let lying = if is_turned { &x.t()? } else { x };
    let operands = [Some(lying), Some(weight), to, bias];
    let present = || operands.into_iter().flatten();
    let fits = takes(lying, &operands[1..]) && present().all(Tensor::is_contiguous);
    if !is_known || !agree || !fits || rows * inner * columns == 0 || !begin_wide(present())? {
        return Ok(None);
    }
    let (has_bias, has_summand) = (bias.is_some(), to.is_some());
    let of = ProductSum { dtype: x.dtype(), rows, inner, columns, is_turned, is_by_rows, has_bias, has_summand };
    let device = x.device().as_cuda_device()?;
    let implementations = || {
        let proposed = cublaslt::algorithms_of_sum(device, &of, ALGORITHMS)?;
        let together = proposed.into_iter().map(|algorithm| (Implementation::Together(algorithm), 1.));
        Ok([(Implementation::Apart, 1.)].into_iter().chain(together).collect())
    };
    let run = |implementation| match (implementation, x.dtype()) {
        (Implementation::Apart, _) => apart(),
        (Implementation::Together(algorithm), DType::F16) => together::<f16>(&of, factor, &algorithm, operands),
        (Implementation::Together(algorithm), _) => together::<bf16>(&of, factor, &algorithm, operands),
    };
    IMPLEMENTATIONS.run(device, of, implementations, || Ok(Implementation::Apart), run).map(Some)
}

fn together<T: CudaDType + WithDType + DeviceRepr>(
    of: &ProductSum,
    factor: f32,
    algorithm: &Algorithm,
    operands: [Option<&Tensor>; 4],
) -> Result<Tensor> {
    let Some(like) = operands[0] else { bail!("a product without an operand") };
    let device = like.device().as_cuda_device()?;
    let y = with_elements::<T, _, 4>(operands, |operands| {
        let [Some(x), Some(weight), to, bias] = &operands else { bail!("a product without an operand") };
        written::<T>(device, of.rows * of.columns, |y| {
            let sum = Sum { factor, x, weight, to: to.as_ref(), bias: bias.as_ref() };
            cublaslt::run_sum(device, of, algorithm, sum, y)
        })
    })?;
    tensor_of(y, device, (of.rows, of.columns))
}

#[cfg(test)]
mod tests {
    use candle::Device;

    use super::*;
    use crate::ops::test_numbers::numbers;
    use crate::test_device::gpu;

    /// Needs a GPU; skips without one.
    #[test]
    fn every_algorithm_computes_the_sum() -> Result<()> {
        let Some(device) = gpu() else { return Ok(()) };
        for (dtype, [rows, inner, columns]) in
            [(DType::BF16, [1000, 768, 304]), (DType::F16, [64, 16, 128]), (DType::BF16, [512, 16, 2048])]
        {
            for (is_by_rows, has_bias) in [(true, true), (true, false), (false, false), (false, true)] {
                let of = ProductSum {
                    dtype,
                    rows,
                    inner,
                    columns,
                    is_turned: false,
                    is_by_rows,
                    has_bias,
                    has_summand: true,
                };
                let weight = numbers(2, if is_by_rows { (columns, inner) } else { (inner, columns) }, dtype)?;
                let (x, to) = (numbers(1, (rows, inner), dtype)?, numbers(3, (rows, columns), dtype)?);
                let bias = numbers(4, (1, columns), dtype)?.flatten_all()?;
                let wide = |t: &Tensor| t.to_dtype(DType::F64);
                let matrix = if is_by_rows { wide(&weight)?.t()? } else { wide(&weight)? };
                let factor = if has_bias { 1. } else { -1.5 };
                let mut expected = ((wide(&x)?.matmul(&matrix)? * f64::from(factor))? + wide(&to)?)?;
                if has_bias {
                    expected = expected.broadcast_add(&wide(&bias)?)?;
                }
                let most = expected.abs()?.max_all()?.to_scalar::<f64>()?;
                let [x, weight, to, bias] = [&x, &weight, &to, &bias].map(|t| t.to_device(&device));
                let (x, weight, to, bias) = (x?, weight?, to?, Some(bias?).filter(|_| has_bias));
                let check = |got: &Tensor| {
                    let error =
                        (wide(&got.to_device(&Device::Cpu)?)? - &expected)?.abs()?.max_all()?.to_scalar::<f64>()?;
                    assert!(error <= 0.01 * most, "{of:?}: off by {error:.1e} of {most}");
                    Ok::<_, candle::Error>(())
                };
                let operands = [Some(&x), Some(&weight), Some(&to), bias.as_ref()];
                for algorithm in cublaslt::algorithms_of_sum(device.as_cuda_device()?, &of, ALGORITHMS)? {
                    check(&match dtype {
                        DType::F16 => together::<f16>(&of, factor, &algorithm, operands)?,
                        _ => together::<bf16>(&of, factor, &algorithm, operands)?,
                    })?;
                }
                check(&crate::ops::product_sum((factor, &x), (&weight, is_by_rows), bias.as_ref(), &to)?)?;
            }
        }
        Ok(())
    }

    /// Needs a GPU; skips without one.
    #[test]
    fn products_have_a_factor_however_they_lie() -> Result<()> {
        let Some(device) = gpu() else { return Ok(()) };
        for (dtype, [rows, inner, columns]) in [(DType::BF16, [512, 2048, 16]), (DType::F16, [2048, 512, 16])] {
            let (x, y) = (numbers(1, (rows, inner), dtype)?, numbers(2, (inner, columns), dtype)?);
            let wide = |t: &Tensor| t.to_device(&Device::Cpu)?.to_dtype(DType::F64);
            let expected = (wide(&x)?.matmul(&wide(&y)?)? * 1.5)?;
            let most = expected.abs()?.max_all()?.to_scalar::<f64>()?;
            let (x, y) = (x.to_device(&device)?, y.to_device(&device)?);
            let turned = x.t()?.contiguous()?.t()?;
            for (is_turned, x) in [(false, &x), (true, &turned)] {
                let lying = if is_turned { x.t()? } else { x.clone() };
                let of = ProductSum {
                    dtype,
                    rows,
                    inner,
                    columns,
                    is_turned,
                    is_by_rows: false,
                    has_bias: false,
                    has_summand: false,
                };
                let check = |got: &Tensor| {
                    let error = (wide(got)? - &expected)?.abs()?.max_all()?.to_scalar::<f64>()?;
                    assert!(error <= 0.01 * most, "{of:?}: off by {error:.1e} of {most}");
                    Ok::<_, candle::Error>(())
                };
                let operands = [Some(&lying), Some(&y), None, None];
                for algorithm in cublaslt::algorithms_of_sum(device.as_cuda_device()?, &of, ALGORITHMS)? {
                    check(&match dtype {
                        DType::F16 => together::<f16>(&of, 1.5, &algorithm, operands)?,
                        _ => together::<bf16>(&of, 1.5, &algorithm, operands)?,
                    })?;
                }
                check(&crate::ops::scaled_product(1.5, x, &y)?)?;
            }
        }
        Ok(())
    }
}
