//! Operators that record themselves.
//!
//! Each is a thin function over candle's operator of the same name. On the CPU, the executor's trace consists of these
//! operators; on CUDA, they give names to the kernels that they launch. Outside a recording, an operator costs one
//! additional thread-local read.
//!
//! A module that computes its result with candle's operators directly runs eagerly on the CPU; the report names the
//! first operator that met such a tensor. [`custom`] wraps operators that are missing here.

/// Calls `$run!` with the element type of a storage, which must be a type that the CPU kernels support.
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

/// Calls a function that runs a GPU kernel. Without the feature `cuda` it gives `None`.
#[cfg(feature = "cuda")]
macro_rules! gpu {
    ($call:expr) => {
        $call
    };
}
#[cfg(not(feature = "cuda"))]
macro_rules! gpu {
    ($($name:ident)::+($($argument:expr),* $(,)?)) => {{
        $(let _ = &$argument;)*
        candle::Result::<Option<_>>::Ok(None)
    }};
}

/// Calls a function that is generic over the type of a float that has gradients on a GPU. Gives `None` for another type, and else the
/// function's result.
#[cfg(feature = "cuda")]
macro_rules! for_kernel_float {
    ($dtype:expr, $run:ident $(::<$id:ty>)? ($($argument:expr),* $(,)?)) => {
        match $dtype {
            candle::DType::F16 => Some($run::<$($id,)? half::f16>($($argument),*)),
            candle::DType::BF16 => Some($run::<$($id,)? half::bf16>($($argument),*)),
            candle::DType::F32 => Some($run::<$($id,)? f32>($($argument),*)),
            _ => None,
        }
    };
}

// An operator with kernels of its own is a folder here, one of `opara-kernels`, and two lines below, in the list of modules and in
// `DECLARED`:
//
// - `mod.rs`: the public function. It records the operator, and falls back to candle's operators where no kernel runs,
// - `cuda.rs`: the operands that the GPU kernel takes, and their layouts,
// - `launch.rs`: declares the kernels (`kernels!`), and chooses variant and grid. Launches, memory effects and the checks of the
//   kernels' code come from the declaration,
// - a `.cu` file in `kernels/src`: the kernel. The build finds it there; the file name is the module name. Headers are in its `include`.
//   The word behind `opara_` in the kernel's name says what it does (`opara_plan::kernel_catalog`),
// - `cpu.rs`, where the CPU has a kernel too,
// - a backward pass: `differentiable` with a function for it, or `recomputed` where candle differentiates the operators that it falls back to.
//
// Operators without kernels of their own are in this file.
mod activation;
mod advance;
mod argmax;
mod assign;
mod attention;
#[cfg(any(feature = "cuda", test))]
mod batch_norm;
mod cached_attention;
mod cat;
#[cfg(feature = "cuda")]
mod causal_attention;
mod column_sums;
mod conv;
mod cross_entropy;
mod differentiable;
#[cfg(feature = "cuda")]
mod double_binary;
#[cfg(feature = "cuda")]
mod double_conv;
mod dropout;
mod embedding;
#[cfg(feature = "cuda")]
mod error_totals;
mod few_rows;
pub(crate) mod format;
mod gemv;
mod group_norm;
mod heads;
#[cfg(feature = "cuda")]
mod lacks;
#[cfg(any(feature = "cuda", test))]
mod log_softmax;
mod matmul;
mod moe;
#[cfg(feature = "cuda")]
mod new_tokens;
mod norm;
#[cfg(feature = "cuda")]
mod one_query;
pub(crate) mod optimizer;
mod pad;
mod pool;
mod quantized;
mod range_means;
mod rotary;
mod sample;
#[cfg(any(feature = "cuda", test))]
mod small_product;
mod softmax;
#[cfg(feature = "cuda")]
#[cfg_attr(not(feature = "cudnn"), allow(dead_code, reason = "cuDNN's builds choose it"))]
mod space_to_depth;
#[cfg(feature = "cuda")]
mod tables;
#[cfg(all(test, feature = "cuda"))]
mod test_numbers;
mod upsample;
mod view;
mod window;
mod write_rows;

pub use crate::activation::Activation;
#[cfg(any(feature = "cuda", test))]
pub(crate) use activation::{activation_gradient, bias_act};
pub use advance::advance;
pub use argmax::argmax;
pub use assign::assign;
pub use attention::{attention, has_ranged_attention, ranged_attention};
#[cfg(any(feature = "cuda", test))]
pub(crate) use attention::{attention_backward_of_scores, attention_of_scores, AttentionGradients, Bias, Scores};
#[cfg(any(feature = "cuda", test))]
pub(crate) use batch_norm::{batch_moments, batch_norm, batch_norm_backward};
pub use cached_attention::{cached_attention, CachedAttention, NewTokens, PAGE};
pub use cat::{cat, cat_sums};
#[cfg(any(feature = "cuda", test))]
pub(crate) use column_sums::{activation_derivative, column_sums, in_sums};
#[cfg(any(feature = "cuda", test))]
pub(crate) use conv::conv2d_gradients;
pub use conv::{add_conv2d, conv2d, conv2d_weight};
pub use cross_entropy::{cross_entropy, CrossEntropy};
#[cfg(feature = "cuda")]
pub(crate) use double_binary::double_binary;
#[cfg(feature = "cuda")]
pub(crate) use double_conv::double_conv;
pub use dropout::{dropout, Dropout};
pub use embedding::embedding;
#[cfg(any(feature = "cuda", test))]
pub(crate) use embedding::embedding_backward;
#[cfg(feature = "cuda")]
pub(crate) use error_totals::{error_totals, ErrorTotals};
pub use gemv::{alike_rows, gated, norm_gated, norm_linear, norm_linear_act};
pub use group_norm::group_norm;
pub use heads::{merge_heads, split_heads};
#[cfg(feature = "cuda")]
pub(crate) use lacks::lacks;
#[cfg(any(feature = "cuda", test))]
pub(crate) use log_softmax::{log_softmax_at, log_softmax_at_backward};
pub use matmul::{linear, linear_act, linear_packed, matmul, PackedWeight};
#[cfg(any(feature = "cuda", test))]
pub(crate) use matmul::{linear_in, product_sum, scaled_product};
pub use moe::{moe, top_k};
pub use opara_plan::rewrite::ProductPrecision;

pub use norm::{add_layer_norm, add_rms_norm, layer_norm, rms_norm, RmsScale};
#[cfg(any(feature = "cuda", test))]
pub(crate) use norm::{layer_norm_backward, rms_norm_backward, LayerNormGradients};
pub use pad::pad;
pub use pool::{avg_pool2d, global_avg_pool2d, max_pool2d, subsample};
#[cfg(any(feature = "cuda", test))]
pub(crate) use pool::{plane_sums, pool_gradient};
#[cfg(test)]
pub(crate) use quantized::TYPES as BLOCK_TYPES;
pub use quantized::{quantized_embedding, quantized_gated, quantized_linear, QuantizedWeight};
pub use range_means::range_means;
pub use rotary::{rope, rope_i};
pub use sample::{mark_seen, sample, Sampler, Sampling, BARRED, NO_TOKEN, SEEN};
#[cfg(any(feature = "cuda", test))]
pub(crate) use small_product::{small_gradients, small_product, SmallGradients};
#[cfg(any(feature = "cuda", test))]
pub(crate) use softmax::softmax_backward;
pub use softmax::{add_softmax, softmax_last_dim};
#[cfg(feature = "cuda")]
pub(crate) use tables::{average, turned, Average};
pub use upsample::upsample_nearest2d;
pub use view::{broadcast_as, contiguous, narrow, permute, reshape, squeeze, transpose, unsqueeze};
pub use window::{ConvConfig, Padding, PoolConfig};
pub use write_rows::write_rows;

use std::sync::atomic::{AtomicBool, Ordering};

use candle::{DType, Device, Result, Tensor};

use crate::cpu::kernels;
use crate::cpu::record::apply;
#[cfg(feature = "cuda")]
use crate::cuda::driver::kernels::declared::Declared;

/// The declarations of this library's kernels, except generated ones.
#[cfg(feature = "cuda")]
pub(crate) const DECLARED: &[&[Declared]] = &[
    activation::launch::DECLARED,
    advance::launch::DECLARED,
    argmax::launch::DECLARED,
    attention::gradient_launch::DECLARED,
    attention::launch::DECLARED,
    attention::tiles::DECLARED,
    batch_norm::launch::DECLARED,
    cached_attention::launch::DECLARED,
    cat::launch::DECLARED,
    causal_attention::launch::DECLARED,
    column_sums::launch::DECLARED,
    conv::gradient_launch::DECLARED,
    conv::launch::DECLARED,
    cross_entropy::launch::DECLARED,
    double_binary::launch::DECLARED,
    double_conv::launch::DECLARED,
    dropout::launch::DECLARED,
    embedding::launch::DECLARED,
    error_totals::launch::DECLARED,
    gemv::launch::DECLARED,
    gemv::many::DECLARED,
    gemv::warpgroup::DECLARED,
    group_norm::launch::DECLARED,
    heads::launch::DECLARED,
    log_softmax::launch::DECLARED,
    matmul::launch::DECLARED,
    moe::launch::DECLARED,
    new_tokens::launch::DECLARED,
    norm::gradient_launch::DECLARED,
    norm::launch::DECLARED,
    one_query::launch::DECLARED,
    optimizer::launch::DECLARED,
    pool::launch::DECLARED,
    quantized::floats::DECLARED,
    quantized::launch::DECLARED,
    quantized::of_blocks::DECLARED,
    quantized::warpgroup::DECLARED,
    range_means::launch::DECLARED,
    sample::launch::DECLARED,
    small_product::launch::DECLARED,
    softmax::launch::DECLARED,
    space_to_depth::launch::DECLARED,
    tables::launch::DECLARED,
    upsample::launch::DECLARED,
    write_rows::launch::DECLARED,
];

/// Do candle's operators replace this library's kernels?
static CANDLE_ONLY: AtomicBool = AtomicBool::new(false);

/// From now on, in the whole process, the operators here use candle's operators only, instead of this library's kernels
/// and its choice among libraries: convolutions, matmuls with a weight and their epilogues, pools, concatenations,
/// norms, softmax, embeddings. For comparisons; load models after the call. Needs the feature `testing`.
#[cfg(feature = "testing")]
pub fn use_candle_only(yes: bool) {
    CANDLE_ONLY.store(yes, Ordering::Relaxed);
}

/// May kernels of this library be used?
fn has_own_kernels() -> bool {
    !CANDLE_ONLY.load(Ordering::Relaxed)
}

/// May GPU kernels of this library be used on `x`?
fn runs_own(x: &Tensor) -> bool {
    has_own_kernels() && x.device().is_cuda()
}

/// Runs this library's GPU kernel on `x`, or candle's operators if there is no kernel for the operands.
fn own_or<T>(x: &Tensor, own: impl FnOnce() -> Result<Option<T>>, composed: impl FnOnce() -> Result<T>) -> Result<T> {
    own_on(x, || Ok(None), own)?.map_or_else(composed, Ok)
}

/// Runs this library's CPU or GPU kernel on `x`. `None` if there is no kernel for the operands.
fn own_on<T>(
    x: &Tensor,
    cpu: impl FnOnce() -> Result<Option<T>>,
    gpu: impl FnOnce() -> Result<Option<T>>,
) -> Result<Option<T>> {
    match x.device() {
        _ if !has_own_kernels() => Ok(None),
        Device::Cpu if kernels::supports(x.dtype()) => cpu(),
        Device::Cuda(_) => gpu(),
        _ => Ok(None),
    }
}

/// Records `f` over `inputs` as one operator called `name`.
///
/// `f` must compute its result from the given tensors and from values that never change.
///
/// ```
/// # use candle::{DType, Device::Cpu, Tensor};
/// # use opara_candle::ops;
/// let softplus = |x: &Tensor| ops::custom("softplus", &[x], |t| (t[0].exp()? + 1.)?.log());
/// assert_eq!(softplus(&Tensor::zeros((2, 3), DType::F32, &Cpu)?)?.dims(), [2, 3]);
/// # Ok::<(), candle::Error>(())
/// ```
///
/// # Errors
/// The error that `f` returns.
pub fn custom<F>(name: &'static str, inputs: &[&Tensor], f: F) -> Result<Tensor>
where
    F: Fn(&[&Tensor]) -> Result<Tensor> + Send + Sync + 'static,
{
    apply(name, inputs, 0, f)
}

/// Records a tensor that `f` makes without inputs: position ids, masks of ones. Executors compute it once, while they
/// are built, unless constant folding is off.
///
/// # Errors
/// The error that `f` returns.
pub fn constant<F>(name: &'static str, f: F) -> Result<Tensor>
where
    F: Fn() -> Result<Tensor> + Send + Sync + 'static,
{
    apply(name, &[], 0, move |_| f())
}

/// Selects the indices `ids`, shape `(n)`, along dimension `dim`, which then has length `n`.
///
/// # Errors
/// Ids that are not integers or out of range.
pub fn index_select(x: &Tensor, ids: &Tensor, dim: usize) -> Result<Tensor> {
    apply("index_select", &[x, ids], 0, move |t| t[0].contiguous()?.index_select(&t[1].contiguous()?, dim))
}

/// `on_true` where the integer `condition` is not zero, otherwise `on_false`. All three have the same shape.
///
/// ```
/// # use candle::{DType, Device::Cpu, Tensor};
/// # use opara_candle::ops;
/// let (condition, x) = (Tensor::new(&[1u8, 0], &Cpu)?, Tensor::new(&[1f32, 2.], &Cpu)?);
/// assert_eq!(ops::where_cond(&condition, &x, &x.zeros_like()?)?.to_vec1::<f32>()?, [1., 0.]);
/// # Ok::<(), candle::Error>(())
/// ```
///
/// # Errors
/// Shapes or dtypes that do not agree.
pub fn where_cond(condition: &Tensor, on_true: &Tensor, on_false: &Tensor) -> Result<Tensor> {
    apply("where_cond", &[condition, on_true, on_false], 0, |t| t[0].where_cond(t[1], t[2]))
}

/// `mul * x + add`, element by element.
///
/// # Errors
/// A dtype without the operator.
pub fn affine(x: &Tensor, mul: f64, add: f64) -> Result<Tensor> {
    apply("affine", &[x], 0, move |t| format::unary(t[0], |x| x.affine(mul, add)))
}

/// Converts to another dtype.
///
/// # Errors
/// A conversion that candle does not have.
pub fn to_dtype(x: &Tensor, dtype: DType) -> Result<Tensor> {
    apply("to_dtype", &[x], 0, move |t| t[0].to_dtype(dtype))
}

/// The mean over `dim`, which keeps length one.
///
/// # Errors
/// A dimension that `x` does not have.
pub fn mean_keepdim(x: &Tensor, dim: usize) -> Result<Tensor> {
    apply("mean", &[x], x.elem_count() as u64, move |t| t[0].mean_keepdim(dim))
}

/// The sum over `dim`, which keeps length one.
///
/// # Errors
/// A dimension that `x` does not have.
pub fn sum_keepdim(x: &Tensor, dim: usize) -> Result<Tensor> {
    apply("sum", &[x], x.elem_count() as u64, move |t| t[0].sum_keepdim(dim))
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
    /// Gaussian error linear unit, exact (with the error function).
    gelu_erf => Tensor::gelu_erf;
    /// Gaussian error linear unit, tanh approximation.
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
    /// One where both are equal, otherwise zero, as u8.
    eq => broadcast_eq;
}
