//! Totals of errors on a GPU: how far two results are from double precision.

pub(super) mod launch;

use candle::cuda_backend::CudaDType;
use candle::{DType, Result, Tensor};
use cudarc::driver::DeviceRepr;
use half::{bf16, f16};

use self::launch::OfBlocks;
use crate::cuda::operator::with_elements;

/// Totals over all elements.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct ErrorTotals {
    /// Elements where all are finite: only those count below.
    pub count: f64,
    /// The sum of the squares of double precision's.
    pub squares: f64,
    /// Elements of the other result that are finite where neither candle's nor double precision's is, or not finite and not what
    /// candle's is.
    pub wrong: f64,
    /// The sums of squared errors, candle's first.
    pub squared_errors: [f64; 2],
    /// The largest errors, candle's first.
    pub largest: [f64; 2],
}

/// The errors of candle's result and of another one of the same type, in units of `unit * max(|r|, rms r)`, where `r` is the result in
/// double precision. `None` if they are not on a GPU, or of other types.
///
/// # Errors
/// Results of different lengths, and a failed launch.
pub(crate) fn error_totals(unit: f64, [reference, candle, other]: [&Tensor; 3]) -> Result<Option<ErrorTotals>> {
    let are_alike = reference.dtype() == DType::F64 && candle.dtype() == other.dtype();
    if !are_alike || ![reference, candle, other].iter().all(|result| result.device().is_cuda()) {
        return Ok(None);
    }
    let totals = match candle.dtype() {
        DType::F16 => of_type::<f16>,
        DType::BF16 => of_type::<bf16>,
        DType::F32 => of_type::<f32>,
        DType::F64 => of_type::<f64>,
        _ => return Ok(None),
    };
    totals(unit, [reference, candle, other]).map(Some)
}

fn of_type<T: CudaDType + DeviceRepr>(unit: f64, results: [&Tensor; 3]) -> Result<ErrorTotals> {
    let (len, dtype) = (results[0].elem_count(), results[1].dtype());
    let [reference, candle, other] = results.map(Tensor::contiguous);
    let (reference, candle, other) = (reference?, candle?, other?);
    let device = reference.device().as_cuda_device()?;
    let OfBlocks { moments, errors } = with_elements([Some(&reference)], |of_reference| {
        with_elements::<T, _, 2>([Some(&candle), Some(&other)], |of_results| {
            let ([Some(reference)], [Some(candle), Some(other)]) = (of_reference, of_results) else {
                candle::bail!("a result has no elements")
            };
            // A tensor may be the beginning of a larger one.
            let [candle, other] = [candle, other].map(|result| result.slice(..len.min(result.len())));
            let reference = reference.slice(..len.min(reference.len()));
            launch::error_totals(device, dtype, unit, &reference, [&candle, &other])
        })
    })?;
    let mut totals = ErrorTotals::default();
    for [count, squares, wrong] in moments {
        totals.count += count;
        totals.squares += squares;
        totals.wrong += wrong;
    }
    for [of_candle, of_other, largest_of_candle, largest_of_other] in errors {
        totals.squared_errors[0] += of_candle;
        totals.squared_errors[1] += of_other;
        totals.largest[0] = totals.largest[0].max(largest_of_candle);
        totals.largest[1] = totals.largest[1].max(largest_of_other);
    }
    Ok(totals)
}
