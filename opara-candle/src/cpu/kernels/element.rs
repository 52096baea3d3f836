//! Element types, their accumulator types, and SIMD vectors of accumulators.

use std::cell::Cell;

use candle::{bail, CpuStorage, DType, Layout, Result, WithDType};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use pulp::{Arch, Simd, WithSimd};

use super::functions;

/// An element of a tensor.
pub(crate) trait Element: WithDType {
    /// The accumulator type.
    type Sum: Sum;

    /// Converts `from` to `to`, which has the same length.
    fn widen(from: &[Self], to: &mut [Self::Sum]);

    /// Converts every `stride`-th element of `from`, until `to` is full.
    fn widen_strided(from: &[Self], stride: usize, to: &mut [Self::Sum]);

    /// Rounds `from` to `to`, which has the same length.
    fn narrow(from: &[Self::Sum], to: &mut [Self]);

    /// These elements as accumulators; `None` if they need a conversion.
    fn as_sums(from: &[Self]) -> Option<&[Self::Sum]>;

    /// These elements as accumulators; `None` if they need a conversion.
    fn as_sums_mut(to: &mut [Self]) -> Option<&mut [Self::Sum]>;

    /// The converted elements: `from` itself if no conversion is needed, otherwise written to `scratch`.
    fn widened<'a>(from: &'a [Self], scratch: &'a mut Vec<Self::Sum>) -> &'a [Self::Sum];
}

/// An accumulator type and its SIMD operations.
pub(crate) trait Sum: WithDType + Default + PartialOrd {
    /// A SIMD vector.
    type Vector<S: Simd>: Copy;

    const NEG_INFINITY: Self;

    fn exp(self) -> Self;

    /// Gaussian error linear unit, exact.
    fn gelu_erf(self) -> Self;

    /// Gaussian error linear unit, tanh approximation.
    fn gelu(self) -> Self;

    /// `x` times the logistic function of `x`.
    fn silu(self) -> Self;

    /// Calls `f` with a scratch slice of `n` elements, whose values are arbitrary. The memory is reused by later calls
    /// on this thread.
    fn scratch<R>(n: usize, f: impl FnOnce(&mut [Self]) -> R) -> R;

    /// Elements per vector.
    fn lanes<S: Simd>() -> usize;

    fn splat<S: Simd>(simd: S, x: Self) -> Self::Vector<S>;

    /// `a * b + c`, rounded once.
    fn mul_add<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>, c: Self::Vector<S>) -> Self::Vector<S>;

    /// The whole vectors of a slice; the rest is left out.
    fn vectors<S: Simd>(x: &[Self]) -> &[Self::Vector<S>];

    /// The whole vectors of a slice; the rest is left out.
    fn vectors_mut<S: Simd>(x: &mut [Self]) -> &mut [Self::Vector<S>];
}

/// Maximum scratch elements that a thread keeps between kernels.
const KEPT: usize = 1 << 20;

/// Elements of the widest vector on any machine.
pub(crate) const WIDEST: usize = 16;

macro_rules! sum {
    ($($t:ty, $functions:ident, $vector:ident, $lanes:ident, $splat:ident, $mul_add:ident, $vectors:ident, $vectors_mut:ident;)*) => {$(
        impl Sum for $t {
            type Vector<S: Simd> = S::$vector;

            const NEG_INFINITY: Self = <$t>::NEG_INFINITY;

            #[inline(always)]
            fn exp(self) -> Self {
                $functions::exp(self)
            }

            #[inline(always)]
            fn gelu_erf(self) -> Self {
                $functions::gelu_erf(self)
            }

            #[inline(always)]
            fn gelu(self) -> Self {
                $functions::gelu(self)
            }

            #[inline(always)]
            fn silu(self) -> Self {
                $functions::silu(self)
            }

            fn scratch<R>(n: usize, f: impl FnOnce(&mut [Self]) -> R) -> R {
                thread_local! {
                    static SCRATCH: Cell<Vec<$t>> = const { Cell::new(Vec::new()) };
                }
                // Taken out of the cell: if this thread starts another kernel while it waits for others, that one
                // allocates its own.
                let mut scratch = SCRATCH.take();
                if scratch.len() < n {
                    scratch.resize(n, 0.);
                }
                let result = f(&mut scratch[..n]);
                if scratch.len() <= KEPT {
                    SCRATCH.set(scratch);
                }
                result
            }

            #[inline(always)]
            fn lanes<S: Simd>() -> usize {
                S::$lanes
            }

            #[inline(always)]
            fn splat<S: Simd>(simd: S, x: Self) -> S::$vector {
                simd.$splat(x)
            }

            #[inline(always)]
            fn mul_add<S: Simd>(simd: S, a: S::$vector, b: S::$vector, c: S::$vector) -> S::$vector {
                simd.$mul_add(a, b, c)
            }

            #[inline(always)]
            fn vectors<S: Simd>(x: &[Self]) -> &[S::$vector] {
                S::$vectors(x).0
            }

            #[inline(always)]
            fn vectors_mut<S: Simd>(x: &mut [Self]) -> &mut [S::$vector] {
                S::$vectors_mut(x).0
            }
        }
    )*};
}

sum! {
    f32, functions, f32s, F32_LANES, splat_f32s, mul_add_f32s, as_simd_f32s, as_mut_simd_f32s;
    f64, doubles, f64s, F64_LANES, splat_f64s, mul_add_f64s, as_simd_f64s, as_mut_simd_f64s;
}

/// Those of candle and the standard library.
mod doubles {
    pub fn exp(x: f64) -> f64 {
        x.exp()
    }

    pub fn gelu_erf(x: f64) -> f64 {
        0.5 * x * (1. + candle::cpu::erf::erf_f64(x * std::f64::consts::FRAC_1_SQRT_2))
    }

    pub fn gelu(x: f64) -> f64 {
        let u = std::f64::consts::FRAC_2_SQRT_PI * std::f64::consts::FRAC_1_SQRT_2 * x * (1. + 0.044715 * x * x);
        0.5 * x * (1. + u.tanh())
    }

    pub fn silu(x: f64) -> f64 {
        x / (1. + (-x).exp())
    }
}

/// Reduces `x` with `join` from `start`, the neutral element, several elements at a time.
#[inline(always)]
pub(crate) fn joined<S: Sum>(x: &[S], start: S, join: impl Fn(S, S) -> S) -> S {
    lanes_of(x, start, &join).into_iter().fold(start, join)
}

/// The sum of the elements' squares.
#[inline(always)]
pub(crate) fn sum_of_squares<S: Sum>(x: &[S]) -> S {
    lanes_of(x, S::default(), &|sum, x| sum + x * x).into_iter().fold(S::default(), |a, b| a + b)
}

/// [`joined`] for a `join` whose order does not matter, such as the maximum: halves the lanes, which takes 4 steps one after
/// another instead of 16.
#[inline(always)]
pub(crate) fn joined_in_any_order<S: Sum>(x: &[S], start: S, join: impl Fn(S, S) -> S) -> S {
    let mut of = lanes_of(x, start, &join);
    let mut lanes = WIDEST;
    while lanes > 1 {
        lanes /= 2;
        for i in 0..lanes {
            of[i] = join(of[i], of[i + lanes]);
        }
    }
    of[0]
}

/// Reduces the elements of each lane.
#[inline(always)]
fn lanes_of<S: Sum>(x: &[S], start: S, join: &impl Fn(S, S) -> S) -> [S; WIDEST] {
    let (chunks, rest) = x.as_chunks::<WIDEST>();
    let mut of = [start; WIDEST];
    // Loops over arrays: the compiler does not vectorise loops over slices of unknown length.
    for chunk in chunks {
        for (of, &x) in of.iter_mut().zip(chunk) {
            *of = join(*of, x);
        }
    }
    for (of, &x) in of.iter_mut().zip(rest) {
        *of = join(*of, x);
    }
    of
}

/// Elements per vector on this machine.
pub(crate) fn lanes<A: Sum>() -> usize {
    struct Lanes<A>(std::marker::PhantomData<A>);
    impl<A: Sum> WithSimd for Lanes<A> {
        type Output = usize;

        #[inline(always)]
        fn with_simd<S: Simd>(self, _: S) -> usize {
            A::lanes::<S>()
        }
    }
    Arch::new().dispatch(Lanes::<A>(std::marker::PhantomData))
}

macro_rules! own_sum {
    ($($t:ty),*) => {$(
        impl Element for $t {
            type Sum = $t;

            #[inline(always)]
            fn widen(from: &[Self], to: &mut [Self]) {
                to.copy_from_slice(from);
            }

            #[inline(always)]
            fn widen_strided(from: &[Self], stride: usize, to: &mut [Self]) {
                if stride == 2 {
                    // Stride 2 is the usual case, and is vectorised; the last element may have no neighbour.
                    let (pairs, _) = from.as_chunks::<2>();
                    let n = to.len().min(pairs.len());
                    for (to, [from, _]) in to[..n].iter_mut().zip(&pairs[..n]) {
                        *to = *from;
                    }
                    if n < to.len() {
                        to[n] = from[2 * n];
                    }
                    return;
                }
                for (to, from) in to.iter_mut().zip(from.iter().step_by(stride)) {
                    *to = *from;
                }
            }

            #[inline(always)]
            fn narrow(from: &[Self], to: &mut [Self]) {
                to.copy_from_slice(from);
            }

            #[inline(always)]
            fn as_sums(from: &[Self]) -> Option<&[Self]> {
                Some(from)
            }

            #[inline(always)]
            fn as_sums_mut(to: &mut [Self]) -> Option<&mut [Self]> {
                Some(to)
            }

            fn widened<'a>(from: &'a [Self], _: &'a mut Vec<Self>) -> &'a [Self] {
                from
            }
        }
    )*};
}

macro_rules! half {
    ($($t:ty),*) => {$(
        impl Element for $t {
            type Sum = f32;

            fn widen(from: &[Self], to: &mut [f32]) {
                from.convert_to_f32_slice(to);
            }

            fn widen_strided(from: &[Self], stride: usize, to: &mut [f32]) {
                for (to, from) in to.iter_mut().zip(from.iter().step_by(stride)) {
                    *to = from.to_f32();
                }
            }

            fn narrow(from: &[f32], to: &mut [Self]) {
                to.convert_from_f32_slice(from);
            }

            fn as_sums(_: &[Self]) -> Option<&[f32]> {
                None
            }

            fn as_sums_mut(_: &mut [Self]) -> Option<&mut [f32]> {
                None
            }

            fn widened<'a>(from: &'a [Self], scratch: &'a mut Vec<f32>) -> &'a [f32] {
                scratch.resize(from.len(), 0.);
                from.convert_to_f32_slice(scratch);
                scratch
            }
        }
    )*};
}

own_sum!(f32, f64);
half!(f16, bf16);

/// Do the CPU kernels support tensors of this dtype?
pub(crate) fn supports(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F64 | DType::F16 | DType::BF16)
}

/// Is this a type that accumulates in itself?
pub(crate) fn is_wide(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F64)
}

/// The elements of a contiguous tensor.
///
/// # Errors
/// A tensor of another dtype, or one that is not contiguous.
pub(crate) fn elements<'a, T: WithDType>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [T]> {
    let elements = T::cpu_storage_as_slice(storage)?;
    if layout.shape().elem_count() == 0 {
        // An empty view may start past the end of its tensor.
        return Ok(&[]);
    }
    match layout.contiguous_offsets() {
        Some((start, end)) => Ok(&elements[start..end]),
        None => bail!("this kernel needs a contiguous tensor, and this one of {:?} is not", layout.dims()),
    }
}
