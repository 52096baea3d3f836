//! Matmuls.

mod backward;
mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(feature = "cuda")]
pub(super) mod launch;
#[cfg(feature = "cuda")]
pub(super) mod parts;
#[cfg(any(feature = "cuda", test))]
mod sum;
#[cfg(feature = "cuda")]
mod sum_cuda;

use candle::{bail, Result, Tensor, D};

pub(crate) use self::backward::linear_backward;
#[cfg(any(feature = "cuda", test))]
pub(crate) use self::sum::{product_sum, scaled_product};
use super::activation::bias_act;
use super::differentiable::{differentiable, is_tracked};
use super::{has_own_kernels, own_or, runs_own, Activation, ProductPrecision};
use crate::cpu::kernels::is_wide;
use crate::cpu::record::apply;
use crate::gradient;

/// Floating-point operations of a matmul with inner dimension `k` and `out` output elements.
pub(super) fn matmul_flops(out: usize, k: usize) -> u64 {
    2u64.saturating_mul(out as u64).saturating_mul(k as u64)
}

/// Matmul of `(.., m, k)` and `(.., k, n)`.
///
/// ```
/// # use candle::{DType, Device::Cpu, Tensor};
/// # use opara_candle::ops;
/// let lhs = Tensor::zeros((4, 2, 3), DType::F32, &Cpu)?;
/// let rhs = Tensor::zeros((4, 3, 5), DType::F32, &Cpu)?;
/// assert_eq!(ops::matmul(&lhs, &rhs)?.dims(), [4, 2, 5]);
/// # Ok::<(), candle::Error>(())
/// ```
///
/// # Errors
/// Shapes that do not agree.
pub fn matmul(lhs: &Tensor, rhs: &Tensor) -> Result<Tensor> {
    let m = lhs.elem_count() / lhs.dim(D::Minus1)?.max(1);
    let flops = matmul_flops(m * rhs.dim(D::Minus1)?, lhs.dim(D::Minus1)?);
    apply("matmul", &[lhs, rhs], flops, |t| product(t[0], t[1]))
}

/// candle's product of operands in any layout.
fn product(lhs: &Tensor, rhs: &Tensor) -> Result<Tensor> {
    let rank = lhs.rank();
    let count = |t: &Tensor| t.dims()[..rank - 2].iter().product::<usize>();
    if rank < 2 || rhs.rank() != rank || count(lhs) != count(rhs) {
        bail!("a product of {:?} and {:?}: they need the same dimensions before the last two", lhs.dims(), rhs.dims())
    }
    let (lhs, rhs) = (with_even_batches(lhs)?, with_even_batches(rhs)?);
    // If batches share one right-hand side, candle takes their rows for the rows of one matrix, wherever they lie.
    let is_shared = (0..rank - 2).all(|dim| rhs.dims()[dim] == 1 || rhs.stride()[dim] == 0) && count(&rhs) > 1;
    let lies_in_order = lhs.stride()[rank - 2..] == [lhs.dims()[rank - 1], 1];
    let lhs = if is_shared && !lies_in_order { lhs.force_contiguous()? } else { lhs };
    if rank <= 4 {
        return lhs.matmul(&rhs);
    }
    // candle takes two dimensions of batches at most.
    let y = lhs.flatten_to(rank - 3)?.matmul(&rhs.flatten_to(rank - 3)?)?;
    y.reshape([&lhs.dims()[..rank - 1], &rhs.dims()[rank - 1..]].concat())
}

/// The operand, or a copy, so that one number leads from each matrix to the next.
fn with_even_batches(x: &Tensor) -> Result<Tensor> {
    let batches = x.rank() - 2;
    let is_even = match (&x.dims()[..batches], &x.stride()[..batches]) {
        ([], _) | ([_], _) | ([1, _] | [_, 1], _) => true,
        (&[_, inner], &[first, second]) => first == second * inner,
        _ => x.is_contiguous(),
    };
    if is_even {
        Ok(x.clone())
    } else {
        x.contiguous()
    }
}

/// `x`, `(.., in)`, times the transpose of `weight`, `(out, in)`, plus `bias`, `(out)`.
///
/// On a GPU the first call of each size benchmarks candle's matmul, the algorithms of cuBLASLt and, in f32 on Hopper,
/// this library's kernels, so it takes longer; later calls in the process use the fastest. No f32 matmul rounds its
/// operands to TF32 unless candle is told to: this library's kernels compute each product as three TF32 products, which
/// keep 22 of the 24 bits, and accumulate in f32 (Ootomo and Yokota, "Recovering single precision accuracy from tensor
/// cores", 2022). On random operands their error is that of cuBLAS; where large terms cancel it is up to three times
/// larger; operands below 2^-112 have fewer digits. Results with operands beyond 4e34, or beyond 1e38 themselves, are
/// recomputed without tensor cores.
///
/// ```
/// # use candle::{DType, Device::Cpu, Tensor};
/// # use opara_candle::ops;
/// let x = Tensor::zeros((2, 10, 16), DType::F32, &Cpu)?; // (.., in)
/// let weight = Tensor::zeros((32, 16), DType::F32, &Cpu)?; // (out, in)
/// let bias = Tensor::zeros(32, DType::F32, &Cpu)?;
/// assert_eq!(ops::linear(&x, &weight, Some(&bias))?.dims(), [2, 10, 32]);
/// # Ok::<(), candle::Error>(())
/// ```
///
/// # Errors
/// Shapes that do not agree.
pub fn linear(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    linear_act(x, weight, bias, Activation::None)
}

/// `activation` of [`linear`]'s result. On a GPU it is part of the matmul's launch, or one launch after it.
///
/// # Errors
/// Shapes that do not agree.
pub fn linear_act(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, activation: Activation) -> Result<Tensor> {
    linear_in(ProductPrecision::High, x, weight, bias, activation)
}

/// [`linear_act`], of f32 with this precision or a higher one.
///
/// # Errors
/// Shapes that do not agree.
pub(crate) fn linear_in(
    precision: ProductPrecision,
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    activation: Activation,
) -> Result<Tensor> {
    let precision = precision.max(ProductPrecision::High);
    let (out, k) = weight.dims2()?;
    let flops = matmul_flops(x.elem_count() / k.max(1) * out, k);
    let forward = move |t: &[&Tensor], activation: Activation| {
        let (x, weight, bias) = (t[0], t[1], t.get(2).copied());
        let as_it_is = x.is_contiguous() || x.rank() == 2 && (x.t()?.is_contiguous() || !runs_own(x));
        let x = if as_it_is { x.clone() } else { x.contiguous()? };
        let matmul = || {
            if x.rank() == 2 {
                return x.matmul(&weight.t()?);
            }
            let (out, k) = weight.dims2()?;
            let Some((&inner, outer)) = x.dims().split_last() else { bail!("a scalar has no rows to multiply") };
            if inner != k {
                bail!("rows of {:?} do not match a weight of {:?}", x.dims(), weight.dims())
            }
            let rows = x.reshape((outer.iter().product::<usize>(), k))?;
            rows.matmul(&weight.t()?)?.reshape([outer, &[out]].concat())
        };
        let finish = |y: Tensor| {
            if bias.is_none() && activation == Activation::None {
                return Ok(y);
            }
            bias_act(&y, bias, activation)
        };
        let own = || gpu!(cuda::linear(&x, weight, bias, activation, precision, matmul, finish));
        own_or(&x, own, || finish(matmul()?))
    };
    let run = move |t: &[&Tensor]| {
        // The derivative of an activation needs its operand.
        let is_split = activation != Activation::None && is_tracked(t);
        let pass = |t: &[&Tensor]| match is_split {
            true => {
                let z = forward(t, Activation::None)?;
                Ok((bias_act(&z, None, activation)?, vec![z]))
            }
            false => Ok((forward(t, activation)?, Vec::new())),
        };
        differentiable("linear", t, pass, move |passed| {
            let [x, weight, ..] = passed.operands else { bail!("a product without a weight") };
            let needs = [0, 1, 2].map(|at| passed.needs(at));
            let of = linear_backward(x, weight, (passed.saved.first(), activation), passed.gradient, needs)?;
            Ok(of.into())
        })
    };
    match bias {
        Some(bias) => apply("linear", &[x, weight, bias], flops, run),
        None => apply("linear", &[x, weight], flops, run),
    }
}

/// A weight of [`linear`] as this library's kernel for the CPU reads it: a few rows side by side. It is made once, when a layer is
/// loaded.
#[derive(Debug, Clone)]
pub struct PackedWeight {
    panels: Tensor,
    out: usize,
}

impl PackedWeight {
    /// A copy of `weight`, `(out, in)`, in f32 or f64 on a CPU. `None` on other devices and of other types, whose products read the
    /// weight as it is.
    ///
    /// # Errors
    /// A weight of another rank, or without elements.
    pub fn new(weight: &Tensor) -> Result<Option<Self>> {
        let (out, _) = weight.dims2()?;
        if weight.elem_count() == 0 {
            bail!("a weight of {:?} has no elements", weight.dims())
        }
        let is_read_packed = weight.device().is_cpu() && is_wide(weight.dtype()) && has_own_kernels();
        if !is_read_packed {
            return Ok(None);
        }
        let panels = cpu::packed(weight)?;
        // A variable of its own, since the weight's may be dropped.
        let panels = match weight.track_op() {
            true => gradient::with_error(&("linear_packed", gradient::own_variable(weight.device())?), panels)?,
            false => panels,
        };
        Ok(Some(Self { panels, out }))
    }
}

/// [`linear_act`] with a packed weight: bias and activation are applied to what the kernel has in registers. Its functions keep
/// the accuracy of f32: the exponential is right to 2 units in the last place.
///
/// ```
/// # use candle::{DType, Device::Cpu, Tensor};
/// # use opara_candle::ops::{self, Activation, PackedWeight};
/// let x = Tensor::zeros((2, 10, 16), DType::F32, &Cpu)?; // (.., in)
/// let weight = Tensor::zeros((32, 16), DType::F32, &Cpu)?; // (out, in)
/// if let Some(packed) = PackedWeight::new(&weight)? {
///     assert_eq!(ops::linear_packed(&x, &packed, None, Activation::GeluErf)?.dims(), [2, 10, 32]);
/// }
/// # Ok::<(), candle::Error>(())
/// ```
///
/// # Errors
/// Shapes or types that do not agree.
pub fn linear_packed(
    x: &Tensor,
    weight: &PackedWeight,
    bias: Option<&Tensor>,
    activation: Activation,
) -> Result<Tensor> {
    let PackedWeight { panels, out } = weight;
    let (out, flops) = (*out, matmul_flops(x.elem_count(), *out));
    let run = move |t: &[&Tensor]| cpu::linear(t[0], t[1], out, t.get(2).copied(), activation);
    match bias {
        Some(bias) => apply("linear", &[x, panels, bias], flops, run),
        None => apply("linear", &[x, panels], flops, run),
    }
}
