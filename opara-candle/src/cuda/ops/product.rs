//! Products with a weight: candle's, or one of cuBLASLt's, which may do in the same launch what follows.

use candle::cuda_backend::{self, CudaDType};
use candle::{DType, Result, Tensor};
use cudarc::driver::DeviceRepr;

use super::launch::{launch, takes, with_elements, Call, Kernel};
use crate::cuda::driver::address_of;
use crate::cuda::driver::choice::Choices;
use crate::cuda::driver::cublaslt::{self, Algorithm, Product};
use crate::ops::Activation;

/// How a product is computed, with what follows it.
#[derive(Clone, Copy)]
enum Way {
    /// By cuBLAS's own choice.
    Candle,
    CublasLt(Product, Algorithm),
}

/// By how much of its own time a kernel must be faster than what cuBLAS chooses by itself. Those that win alone by less most
/// likely do so by taking the whole GPU, which branches beside them pay for: BERT in f32 took 1466 us with all that win, and
/// 1248 without.
const MARGIN: f64 = 0.25;

/// The way for each product, of which as much as cuBLASLt can do in one call.
static WAYS: Choices<Product, Way> = Choices::new();

/// `activation(x * weight^T + bias)` in the way that is the fastest; `None` where candle's operators have to do it, or have to
/// refuse. `product` is candle's `x * weight^T`, and `finish` does what follows.
pub(crate) fn linear(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    activation: Activation,
    product: impl Fn() -> Result<Tensor>,
    finish: impl Fn(Tensor) -> Result<Tensor>,
) -> Result<Option<Tensor>> {
    let bias = bias.map(Tensor::contiguous).transpose()?;
    if !fits(x, weight, bias.as_ref())? {
        return Ok(None);
    }
    let (columns, inner) = weight.dims2()?;
    let plain = Product {
        dtype: x.dtype(),
        tf32: false,
        rows: x.elem_count() / inner,
        inner,
        columns,
        bias: false,
        relu: false,
    };
    let whole = match activation {
        Activation::None | Activation::Relu => {
            Product { bias: bias.is_some(), relu: activation == Activation::Relu, ..plain }
        }
        _ => plain,
    };
    let device = x.device().as_cuda_device()?;
    let shape = [&x.dims()[..x.rank() - 1], &[columns]].concat();
    let run = |way| match way {
        Way::Candle => finish(product()?),
        Way::CublasLt(of, algorithm) => {
            let bias = bias.clone().filter(|_| of.bias);
            let y = launch(Linear { of, algorithm, weight: weight.clone(), bias }, x, shape.as_slice())?;
            match of == plain {
                true => finish(y),
                false => Ok(y),
            }
        }
    };
    let ways = || {
        let mut ways = vec![(Way::Candle, 1.)];
        for of in if whole == plain { vec![plain] } else { vec![plain, whole] } {
            let proposed = cublaslt::algorithms(device, &of)?.into_iter().enumerate();
            // The first one is cuBLAS's own choice, and counts where it saves the launch that would follow.
            let factor = |rank| if rank == 0 && of != plain { 1. } else { 1. + MARGIN };
            ways.extend(proposed.map(|(rank, algorithm)| (Way::CublasLt(of, algorithm), factor(rank))));
        }
        Ok(ways)
    };
    WAYS.run(device, whole, ways, || Ok(Way::Candle), run).map(Some)
}

/// Whether cuBLASLt computes what candle does of these operands.
fn fits(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<bool> {
    let (columns, inner) = weight.dims2()?;
    let is_reduced = match x.dtype() {
        DType::F32 => cuda_backend::gemm_reduced_precision_f32(),
        DType::F16 => cuda_backend::gemm_reduced_precision_f16(),
        DType::BF16 => cuda_backend::gemm_reduced_precision_bf16(),
        _ => true,
    };
    let go_together = x.dims().last() == Some(&inner) && bias.is_none_or(|bias| bias.dims() == [columns]);
    if is_reduced || !takes(x, &[Some(weight), bias]) || !go_together || x.elem_count() == 0 || columns == 0 {
        return Ok(false);
    }
    for operand in [Some(x), Some(weight), bias].into_iter().flatten() {
        if !operand.is_contiguous() || !cublaslt::is_aligned(address_of(operand).map_err(candle::Error::wrap)?) {
            return Ok(false);
        }
    }
    Ok(true)
}

struct Linear {
    of: Product,
    algorithm: Algorithm,
    weight: Tensor,
    bias: Option<Tensor>,
}

impl Kernel for Linear {
    const NAME: &'static str = "linear";

    fn launch<T: CudaDType + DeviceRepr>(&self, Call { device, x, y, .. }: Call<T>) -> Result<()> {
        with_elements([Some(&self.weight), self.bias.as_ref()], |[weight, bias]| {
            let Some(weight) = weight else { candle::bail!("there is a weight") };
            cublaslt::run(device, &self.of, &self.algorithm, &x, &weight, bias.as_ref(), y)
        })
    }
}
