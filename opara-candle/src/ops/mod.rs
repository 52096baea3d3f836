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

/// The call of a function that gives what a kernel for GPUs makes of its arguments: `None` in builds without such kernels.
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
        candle::Result::<Option<candle::Tensor>>::Ok(None)
    }};
}

// An operator with kernels of this library is a folder here, and a line below:
//
// - `mod.rs`: the function for users, which records the operator and says what candle's operators do where no kernel runs,
// - `cpu.rs`: the kernel for the CPU,
// - `cuda.rs`: which operands the kernel for GPUs takes, and in which layout,
// - `launch.rs`: checks that the operands hold what the kernel touches, and launches it; the only file here with `unsafe`,
// - a `.cu` file: the kernel, which the build finds there; its file's name is the module's. Headers are in `cuda/include`.
//
// What such a kernel reads and writes stands in the table in `cuda/kernels`. Operators that are candle's alone are in this
// file.
mod activation;
mod attention;
mod cat;
mod conv;
mod embedding;
pub(crate) mod format;
mod heads;
mod norm;
mod pool;
mod product;
mod softmax;
#[cfg(feature = "cuda")]
mod space_to_depth;
mod view;
mod window;

pub use activation::Activation;
pub use attention::attention;
pub use cat::{cat, cat_sums};
pub use conv::{conv2d, conv2d_weight};
pub use embedding::embedding;
pub use heads::{merge_heads, split_heads};
pub use norm::{add_layer_norm, add_rms_norm, layer_norm, rms_norm};
pub use pool::{avg_pool2d, global_avg_pool2d, max_pool2d, subsample};
pub use product::{linear, linear_act, matmul};
pub use softmax::{add_softmax, softmax_last_dim};
pub use view::{broadcast_as, contiguous, narrow, permute, reshape, squeeze, transpose, unsqueeze};
pub use window::{ConvConfig, Padding, PoolConfig};

use std::sync::atomic::{AtomicBool, Ordering};

use candle::{DType, Device, Result, Tensor};

use crate::cpu::kernels;
use crate::cpu::record::apply;

/// Whether candle's operators stand in for this library's kernels.
static CANDLE_ONLY: AtomicBool = AtomicBool::new(false);

/// From now on, in the whole process, the operators here consist of candle's alone where this library has kernels of its
/// own or a choice among libraries: convolutions, products with a weight and what follows them, pools, concatenations,
/// normalisations, softmax, embeddings. For comparisons. Load models after it. With the feature
/// `testing` alone.
#[cfg(feature = "testing")]
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

/// What of the operators is left to libraries or to several launches on the device, and why.
///
/// # Errors
/// A call of the driver that failed.
#[cfg(feature = "cuda")]
pub(crate) fn lacks(device: &candle::CudaDevice) -> Result<Vec<String>> {
    let lacks = [product::launch::lacks(device)?, attention::launch::lacks(device)?];
    Ok(lacks.into_iter().flatten().collect())
}

/// Records `f` over `inputs` as one operator called `name`.
///
/// `f` must compute its result from the given tensors and from values that are the same at every call.
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
/// Whatever `f` returns.
pub fn custom<F>(name: &'static str, inputs: &[&Tensor], f: F) -> Result<Tensor>
where
    F: Fn(&[&Tensor]) -> Result<Tensor> + Send + Sync + 'static,
{
    apply(name, inputs, 0, f)
}

/// Records a tensor that `f` makes from nothing: positions, masks of ones. Executors make it once, while they are built,
/// unless they are told not to fold constants.
///
/// # Errors
/// Whatever `f` returns.
pub fn constant<F>(name: &'static str, f: F) -> Result<Tensor>
where
    F: Fn() -> Result<Tensor> + Send + Sync + 'static,
{
    apply(name, &[], 0, move |_| f())
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

/// Where dimension `dim` is largest, as u32, without that dimension.
///
/// # Errors
/// A dimension that `x` does not have.
pub fn argmax(x: &Tensor, dim: usize) -> Result<Tensor> {
    apply("argmax", &[x], x.elem_count() as u64, move |t| t[0].argmax(dim))
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

/// `mul * x + add`, element by element.
///
/// # Errors
/// A dtype without the operator.
pub fn affine(x: &Tensor, mul: f64, add: f64) -> Result<Tensor> {
    apply("affine", &[x], 0, move |t| format::unary(t[0], |x| x.affine(mul, add)))
}

/// The same values in another dtype.
///
/// # Errors
/// A conversion that candle does not have.
pub fn to_dtype(x: &Tensor, dtype: DType) -> Result<Tensor> {
    apply("to_dtype", &[x], 0, move |t| t[0].to_dtype(dtype))
}

/// Mean over `dim`, which stays with length one.
///
/// # Errors
/// A dimension that `x` does not have.
pub fn mean_keepdim(x: &Tensor, dim: usize) -> Result<Tensor> {
    apply("mean", &[x], x.elem_count() as u64, move |t| t[0].mean_keepdim(dim))
}

/// Sum over `dim`, which stays with length one.
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
