//! Operators that record themselves.
//!
//! Each is a thin function over candle's operator of the same name. On the CPU the executor's trace consists of these;
//! on CUDA they name the kernels that they launch. Outside a recording they cost one thread-local read.
//!
//! A module whose result depends on candle operators called directly runs eagerly on the CPU, and the report names the
//! operator that met the first such tensor. [`custom`] wraps anything that is missing here.

/// `$run!` of the type of a storage's elements, which must be one that this library's kernels for the CPU take.
macro_rules! of_floats {
    ($storage:expr, $run:ident, $operator:literal) => {
        match $storage {
            candle::CpuStorage::F32(_) => $run!(f32),
            candle::CpuStorage::F64(_) => $run!(f64),
            candle::CpuStorage::F16(_) => $run!(half::f16),
            candle::CpuStorage::BF16(_) => $run!(half::bf16),
            _ => candle::bail!(concat!("no ", $operator, " of this dtype on the CPU")),
        }
    };
}

mod activation;
mod conv;
pub(crate) mod format;
mod pool;
mod softmax;
mod window;

pub use activation::Activation;
pub use conv::{conv2d, conv2d_weight};
pub(crate) use pool::PoolKind;
pub use pool::{avg_pool2d, max_pool2d};
pub(crate) use softmax::RowStarts;
pub use softmax::{add_softmax, softmax_last_dim};
pub use window::{ConvConfig, Padding, PoolConfig};

use std::sync::atomic::{AtomicBool, Ordering};

use candle::{bail, DType, Device, Module, Result, Shape, Tensor, D};

use crate::cpu::kernels;
use crate::cpu::record::apply;
use crate::cuda;

/// Whether candle's operators stand in for this library's kernels.
static CANDLE_ONLY: AtomicBool = AtomicBool::new(false);

/// From now on, in the whole process, the operators here consist of candle's alone where this library has kernels of its
/// own: convolutions, pools, concatenations, normalisations, softmax, and what follows a product. For comparisons. Load models
/// after it.
pub fn use_candle_only(yes: bool) {
    CANDLE_ONLY.store(yes, Ordering::Relaxed);
}

/// Whether kernels of this library may be used.
fn has_own_kernels() -> bool {
    !CANDLE_ONLY.load(Ordering::Relaxed)
}

/// Whether kernels of this library for GPUs may be used on `x`.
fn runs_own(x: &Tensor) -> bool {
    has_own_kernels() && x.device().is_cuda()
}

/// What this library's kernel for GPUs makes of `x`, if it may run and takes its operands, else what candle's operators do.
fn own_or(
    x: &Tensor,
    own: impl FnOnce() -> Result<Option<Tensor>>,
    composed: impl FnOnce() -> Result<Tensor>,
) -> Result<Tensor> {
    own_on(x, || Ok(None), own)?.map_or_else(composed, Ok)
}

/// What this library's kernels for the CPU or for GPUs make of `x`, if they may run and take its operands.
fn own_on(
    x: &Tensor,
    cpu: impl FnOnce() -> Result<Option<Tensor>>,
    gpu: impl FnOnce() -> Result<Option<Tensor>>,
) -> Result<Option<Tensor>> {
    match x.device() {
        _ if !has_own_kernels() => Ok(None),
        Device::Cpu if kernels::supports(x.dtype()) => cpu(),
        Device::Cuda(_) => gpu(),
        _ => Ok(None),
    }
}

/// Floating-point operations of a matrix product with inner dimension `k` and `out` elements.
fn product_flops(out: usize, k: usize) -> u64 {
    2 * out as u64 * k as u64
}

/// Records `f` over `inputs` as one operator called `name`.
///
/// `f` must compute its result from the given tensors and from values that are the same at every call.
///
/// # Errors
/// Whatever `f` returns.
pub fn custom<F>(name: &'static str, inputs: &[&Tensor], f: F) -> Result<Tensor>
where
    F: Fn(&[&Tensor]) -> Result<Tensor> + Send + Sync + 'static,
{
    apply(name, inputs, 0, f)
}

/// Records a tensor that `f` makes from nothing: positions, masks of ones. It is made anew at every replay on the CPU.
///
/// # Errors
/// Whatever `f` returns.
pub fn constant<F>(name: &'static str, f: F) -> Result<Tensor>
where
    F: Fn() -> Result<Tensor> + Send + Sync + 'static,
{
    apply(name, &[], 0, move |_| f())
}

/// Matrix product of `(.., m, k)` and `(.., k, n)`.
///
/// # Errors
/// Shapes that do not agree.
pub fn matmul(lhs: &Tensor, rhs: &Tensor) -> Result<Tensor> {
    let m = lhs.elem_count() / lhs.dim(D::Minus1)?.max(1);
    let flops = product_flops(m * rhs.dim(D::Minus1)?, lhs.dim(D::Minus1)?);
    apply("matmul", &[lhs, rhs], flops, |t| t[0].matmul(t[1]))
}

/// `x` of shape `(.., in)` times the transpose of `weight` of shape `(out, in)`, plus `bias` of shape `(out)`.
///
/// # Errors
/// Shapes that do not agree.
pub fn linear(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    linear_act(x, weight, bias, Activation::None)
}

/// `activation` of what [`linear`] gives: one launch after the product on a GPU.
///
/// # Errors
/// Shapes that do not agree.
pub fn linear_act(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, activation: Activation) -> Result<Tensor> {
    let (out, k) = weight.dims2()?;
    let flops = product_flops(x.elem_count() / k.max(1) * out, k);
    let run = move |t: &[&Tensor]| {
        let (x, bias) = (t[0], t.get(2).copied());
        // Of a contiguous operand candle makes one product. Of others it makes one for each item of the batch, or refuses
        // them; transposed matrices it takes as they are.
        let as_it_is = x.is_contiguous() || x.rank() == 2 && x.t()?.is_contiguous() || !runs_own(x);
        let x = if as_it_is { x.clone() } else { x.contiguous()? };
        let y = candle_nn::Linear::new(t[1].clone(), None).forward(&x)?;
        if bias.is_none() && activation == Activation::None {
            return Ok(y);
        }
        let composed = || match bias {
            Some(bias) => activation.forward(&y.broadcast_add(bias)?),
            None => activation.forward(&y),
        };
        own_or(&y, || cuda::ops::bias_act(&y, bias, activation), composed)
    };
    match bias {
        Some(bias) => apply("linear", &[x, weight, bias], flops, run),
        None => apply("linear", &[x, weight], flops, run),
    }
}

/// `(x + bias) * scale`, of shape `(batch, seq, heads * dim)`, as `(batch, heads, seq, dim)`, contiguous as [`matmul`]
/// wants it: what follows the product that makes the queries, keys or values of attention.
///
/// # Errors
/// Shapes that do not agree, or heads that do not divide the last dimension.
pub fn split_heads(x: &Tensor, bias: Option<&Tensor>, heads: usize, scale: f64) -> Result<Tensor> {
    let (_, _, hidden) = x.dims3()?;
    if heads == 0 || hidden % heads != 0 {
        bail!("{heads} heads do not divide {hidden} elements")
    }
    let run = move |t: &[&Tensor]| {
        let (x, bias) = (t[0], t.get(1).copied());
        let composed = || {
            let (batch, seq, hidden) = x.dims3()?;
            let x = bias.map_or_else(|| Ok(x.clone()), |bias| x.broadcast_add(bias))?;
            let x = x.reshape((batch, seq, heads, hidden / heads))?.transpose(1, 2)?;
            // Scaling makes a contiguous tensor, too.
            if scale == 1. {
                x.contiguous()
            } else {
                x.affine(scale, 0.)
            }
        };
        own_or(x, || cuda::ops::split_heads(x, bias, heads, scale), composed)
    };
    match bias {
        Some(bias) => apply("split_heads", &[x, bias], 0, run),
        None => apply("split_heads", &[x], 0, run),
    }
}

/// `(batch, heads, seq, dim)` as `(batch, seq, heads * dim)`: undoes [`split_heads`].
///
/// # Errors
/// A tensor of another rank.
pub fn merge_heads(x: &Tensor) -> Result<Tensor> {
    x.dims4()?;
    apply("merge_heads", &[x], 0, |t| {
        let (batch, heads, seq, dim) = t[0].dims4()?;
        let merged = t[0].transpose(1, 2)?;
        // Places are to heads what heads are to places.
        let own = || match merged.is_contiguous() {
            true => Ok(None),
            false => cuda::ops::split_heads(&t[0].reshape((batch, heads, seq * dim))?, None, seq, 1.),
        };
        own_or(t[0], own, || Ok(merged.clone()))?.reshape((batch, seq, heads * dim))
    })
}

/// Rows of `table`, shape `(n, hidden)`, that `ids` names: shape of `ids` with `hidden` appended.
///
/// # Errors
/// Ids that are not integers or out of range.
pub fn embedding(table: &Tensor, ids: &Tensor) -> Result<Tensor> {
    let hidden = table.dim(1)?;
    apply("embedding", &[table, ids], 0, move |t| {
        let mut shape = t[1].dims().to_vec();
        shape.push(hidden);
        t[0].index_select(&t[1].flatten_all()?, 0)?.reshape(shape)
    })
}

/// The indices of dimension `dim` that `ids`, of shape `(n)`, names: that dimension has length `n` then.
///
/// # Errors
/// Ids that are not integers or out of range.
pub fn index_select(x: &Tensor, ids: &Tensor, dim: usize) -> Result<Tensor> {
    apply("index_select", &[x, ids], 0, move |t| t[0].index_select(t[1], dim))
}

/// `on_true` where `condition`, of integers, is not zero, else `on_false`; all three have one shape.
///
/// # Errors
/// Shapes or dtypes that do not agree.
pub fn where_cond(condition: &Tensor, on_true: &Tensor, on_false: &Tensor) -> Result<Tensor> {
    apply("where_cond", &[condition, on_true, on_false], 0, |t| t[0].where_cond(t[1], t[2]))
}

/// Where dimension `dim` is largest, as u32, without that dimension.
///
/// # Errors
/// A dimension that `x` does not have.
pub fn argmax(x: &Tensor, dim: usize) -> Result<Tensor> {
    apply("argmax", &[x], x.elem_count() as u64, move |t| t[0].argmax(dim))
}

/// Layer normalisation over the last dimension, with a scale and a shift of that length.
///
/// # Errors
/// Shapes that do not agree.
pub fn layer_norm(x: &Tensor, scale: &Tensor, shift: &Tensor, eps: f32) -> Result<Tensor> {
    apply("layer_norm", &[x, scale, shift], 8 * x.elem_count() as u64, move |t| {
        let own = || cuda::ops::layer_norm(t[0], None, None, t[1], t[2], eps);
        own_or(t[0], own, || candle_nn::ops::layer_norm(&t[0].contiguous()?, t[1], t[2], eps))
    })
}

/// Layer normalisation of `x + bias + residual` over the last dimension, which is the length of `bias`, `scale` and
/// `shift`: what follows the product at the end of each half of a Transformer's layer. On a GPU the sum is not rounded.
///
/// # Errors
/// Shapes that do not agree.
pub fn add_layer_norm(
    x: &Tensor,
    bias: Option<&Tensor>,
    residual: &Tensor,
    scale: &Tensor,
    shift: &Tensor,
    eps: f32,
) -> Result<Tensor> {
    let run = move |t: &[&Tensor]| {
        let (x, residual, scale, shift, bias) = (t[0], t[1], t[2], t[3], t.get(4).copied());
        let composed = || {
            let x = bias.map_or_else(|| Ok(x.clone()), |bias| x.broadcast_add(bias))?;
            candle_nn::ops::layer_norm(&(x + residual)?.contiguous()?, scale, shift, eps)
        };
        own_or(x, || cuda::ops::layer_norm(x, bias, Some(residual), scale, shift, eps), composed)
    };
    let flops = 10 * x.elem_count() as u64;
    match bias {
        Some(bias) => apply("add_layer_norm", &[x, residual, scale, shift, bias], flops, run),
        None => apply("add_layer_norm", &[x, residual, scale, shift], flops, run),
    }
}

/// Root-mean-square normalisation over the last dimension, with a scale of that length.
///
/// # Errors
/// Shapes that do not agree.
pub fn rms_norm(x: &Tensor, scale: &Tensor, eps: f32) -> Result<Tensor> {
    apply("rms_norm", &[x, scale], 5 * x.elem_count() as u64, move |t| {
        let own = || cuda::ops::rms_norm(t[0], t[1], eps);
        own_or(t[0], own, || candle_nn::ops::rms_norm(&t[0].contiguous()?, t[1], eps))
    })
}

/// `x + residual` and its root-mean-square normalisation over the last dimension, which is the length of `scale`: what
/// stands between two parts of a Transformer that normalises before each. One launch on a GPU.
///
/// # Errors
/// Shapes that do not agree.
pub fn add_rms_norm(x: &Tensor, residual: &Tensor, scale: &Tensor, eps: f32) -> Result<(Tensor, Tensor)> {
    if let Some(both) = own_on(x, || Ok(None), || cuda::ops::add_rms_norm(x, residual, scale, eps))? {
        return Ok((both.get(0)?, both.get(1)?));
    }
    let sum = add(x, residual)?;
    let normed = rms_norm(&sum, scale, eps)?;
    Ok((sum, normed))
}

/// Concatenation along `dim`.
///
/// # Errors
/// Shapes that do not agree.
pub fn cat(parts: &[&Tensor], dim: usize) -> Result<Tensor> {
    apply("cat", parts, 0, move |t| {
        let composed = || Tensor::cat(t, dim);
        t.first().map_or_else(composed, |first| own_or(first, || cuda::ops::cat(t, dim), composed))
    })
}

/// `(batch, channels, h, w)` with zeros around it.
///
/// # Errors
/// A tensor of another rank.
pub fn pad(x: &Tensor, padding: Padding) -> Result<Tensor> {
    let Padding { top, bottom, left, right } = padding;
    x.dims4()?;
    apply("pad", &[x], 0, move |t| t[0].pad_with_zeros(2, top, bottom)?.pad_with_zeros(3, left, right))
}

/// The same elements in another shape.
///
/// # Errors
/// Another number of elements.
pub fn reshape(x: &Tensor, shape: impl Into<Shape>) -> Result<Tensor> {
    let shape = shape.into();
    apply("reshape", &[x], 0, move |t| t[0].reshape(&shape))
}

/// `mul * x + add`, element by element.
///
/// # Errors
/// A dtype without the operator.
pub fn affine(x: &Tensor, mul: f64, add: f64) -> Result<Tensor> {
    apply("affine", &[x], 0, move |t| format::unary(t[0], |x| x.affine(mul, add)))
}

/// `len` indices of dimension `dim` from `start` on; a view.
///
/// # Errors
/// A range outside the dimension.
pub fn narrow(x: &Tensor, dim: usize, start: usize, len: usize) -> Result<Tensor> {
    apply("narrow", &[x], 0, move |t| t[0].narrow(dim, start, len))
}

/// The same elements repeated along dimensions of length one, and along new ones on the left; a view.
///
/// # Errors
/// A shape that `x` does not broadcast to.
pub fn broadcast_as(x: &Tensor, shape: impl Into<Shape>) -> Result<Tensor> {
    let shape = shape.into();
    apply("broadcast_as", &[x], 0, move |t| t[0].broadcast_as(&shape))
}

/// Two dimensions exchanged; a view.
///
/// # Errors
/// A dimension that `x` does not have.
pub fn transpose(x: &Tensor, dim1: usize, dim2: usize) -> Result<Tensor> {
    apply("transpose", &[x], 0, move |t| t[0].transpose(dim1, dim2))
}

/// Dimensions in another order; a view.
///
/// # Errors
/// An order that is no permutation.
pub fn permute(x: &Tensor, order: &[usize]) -> Result<Tensor> {
    let order = order.to_vec();
    apply("permute", &[x], 0, move |t| t[0].permute(order.as_slice()))
}

/// The same values in another dtype.
///
/// # Errors
/// A conversion that candle does not have.
pub fn to_dtype(x: &Tensor, dtype: DType) -> Result<Tensor> {
    apply("to_dtype", &[x], 0, move |t| t[0].to_dtype(dtype))
}

/// A dimension of length one before `dim`; a view.
///
/// # Errors
/// A dimension that `x` does not have.
pub fn unsqueeze(x: &Tensor, dim: usize) -> Result<Tensor> {
    apply("unsqueeze", &[x], 0, move |t| t[0].unsqueeze(dim))
}

/// Without dimension `dim` of length one; a view.
///
/// # Errors
/// A dimension that `x` does not have.
pub fn squeeze(x: &Tensor, dim: usize) -> Result<Tensor> {
    apply("squeeze", &[x], 0, move |t| t[0].squeeze(dim))
}

/// Mean over `dim`, which stays with length one.
///
/// # Errors
/// A dimension that `x` does not have.
pub fn mean_keepdim(x: &Tensor, dim: usize) -> Result<Tensor> {
    apply("mean", &[x], x.elem_count() as u64, move |t| t[0].mean_keepdim(dim))
}

/// Mean of each channel of `(batch, channels, h, w)`: `(batch, channels)`.
///
/// # Errors
/// A tensor of another rank.
pub fn global_avg_pool2d(x: &Tensor) -> Result<Tensor> {
    x.dims4()?;
    apply("global_avg_pool2d", &[x], x.elem_count() as u64, pool::global_mean)
}

/// Sum over `dim`, which stays with length one.
///
/// # Errors
/// A dimension that `x` does not have.
pub fn sum_keepdim(x: &Tensor, dim: usize) -> Result<Tensor> {
    apply("sum", &[x], x.elem_count() as u64, move |t| t[0].sum_keepdim(dim))
}

/// A contiguous tensor of the same values; the same tensor where it is one already.
///
/// # Errors
/// Those of the copy.
pub fn contiguous(x: &Tensor) -> Result<Tensor> {
    apply("contiguous", &[x], 0, |t| t[0].contiguous())
}

macro_rules! unary {
    ($($(#[$doc:meta])* $name:ident => $f:expr;)*) => {$(
        $(#[$doc])*
        ///
        /// # Errors
        /// A dtype without the operator.
        pub fn $name(x: &Tensor) -> Result<Tensor> {
            apply(stringify!($name), &[x], 0, |t| format::unary(t[0], $f))
        }
    )*};
}

unary! {
    /// `max(x, 0)`.
    relu => Tensor::relu;
    /// Gaussian error linear unit, by the error function.
    gelu_erf => Tensor::gelu_erf;
    /// Gaussian error linear unit, by the hyperbolic tangent.
    gelu => Tensor::gelu;
    /// `x * sigmoid(x)`.
    silu => Tensor::silu;
    /// `1 / (1 + exp(-x))`.
    sigmoid => candle_nn::ops::sigmoid;
    /// Hyperbolic tangent.
    tanh => Tensor::tanh;
    /// `x * x`.
    sqr => Tensor::sqr;
}

macro_rules! binary {
    ($($(#[$doc:meta])* $name:ident => $f:ident;)*) => {$(
        $(#[$doc])*
        /// Shapes broadcast.
        ///
        /// # Errors
        /// Shapes or dtypes that do not agree.
        pub fn $name(lhs: &Tensor, rhs: &Tensor) -> Result<Tensor> {
            apply(stringify!($name), &[lhs, rhs], 0, |t| format::binary(t[0], t[1], Tensor::$f))
        }
    )*};
}

binary! {
    /// `lhs + rhs`.
    add => broadcast_add;
    /// `lhs - rhs`.
    sub => broadcast_sub;
    /// `lhs * rhs`.
    mul => broadcast_mul;
    /// `lhs / rhs`.
    div => broadcast_div;
    /// One where both are the same, else zero, as u8.
    eq => broadcast_eq;
}
