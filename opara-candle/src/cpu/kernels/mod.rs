//! Convolutions and pools on the CPU.
//!
//! Bits do not depend on the number of threads: how work is cut into tiles follows from shapes alone, and each element of
//! a result is one thread's, summed in one order.

mod conv;
mod pool;

pub(crate) use conv::{conv2d, Conv};
pub(crate) use pool::pool2d;

use candle::{bail, CpuStorage, DType, Layout, Result, WithDType};
use half::{bf16, f16};

/// An element of a tensor, and what sums of it are kept in.
pub(crate) trait Element: WithDType {
    type Sum: Sum;

    fn widen(self) -> Self::Sum;
    fn narrow(sum: Self::Sum) -> Self;
}

/// What is summed in.
pub(crate) trait Sum: WithDType {
    const ZERO: Self;
}

impl Sum for f32 {
    const ZERO: Self = 0.;
}

impl Sum for f64 {
    const ZERO: Self = 0.;
}

macro_rules! element {
    ($($t:ty, $sum:ty, $widen:expr, $narrow:expr;)*) => {$(
        impl Element for $t {
            type Sum = $sum;

            fn widen(self) -> $sum {
                $widen(self)
            }

            fn narrow(sum: $sum) -> Self {
                $narrow(sum)
            }
        }
    )*};
}

element! {
    f32, f32, |x| x, |x| x;
    f64, f64, |x| x, |x| x;
    f16, f32, f16::to_f32, f16::from_f32;
    bf16, f32, bf16::to_f32, bf16::from_f32;
}

/// Whether the kernels here take tensors of this dtype.
pub(crate) fn supports(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F64 | DType::F16 | DType::BF16)
}

/// The elements of a contiguous tensor.
pub(crate) fn elements<'a, T: WithDType>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [T]> {
    let elements = T::cpu_storage_as_slice(storage)?;
    match layout.contiguous_offsets() {
        Some((start, end)) => Ok(&elements[start..end]),
        None => bail!("a kernel was given a tensor of {:?} that is not contiguous", layout.dims()),
    }
}
