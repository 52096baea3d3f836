//! Operators against definitions written out in double precision.

mod answers;
mod every;
mod in_place;
mod products;
mod rows;
mod sample;
mod table;
mod windows;

use candle::{DType, Device::Cpu, Result, Tensor};

/// Values between -1 and 1, no two neighbours alike.
fn values(seed: usize, shape: &[usize], dtype: DType) -> Result<Tensor> {
    let n: usize = shape.iter().product();
    let values = (0..n).map(|i| (((i + 31 * seed) * 2_654_435_761) % 2_000_003) as f64 / 1_000_001.5 - 1.);
    Tensor::from_iter(values, &Cpu)?.reshape(shape)?.to_dtype(dtype)
}

fn doubles(t: &Tensor) -> Result<Vec<f64>> {
    if t.elem_count() == 0 {
        // candle panics where an empty view begins behind its tensor.
        return Ok(Vec::new());
    }
    t.to_dtype(DType::F64)?.flatten_all()?.to_vec1()
}

/// The tolerance between two orders of summation in this dtype, for sums of about 1.
fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 1e-12,
        DType::F32 => 1e-5,
        DType::F16 => 2e-3,
        _ => 1.6e-2,
    }
}

#[track_caller]
fn assert_close(got: &Tensor, expected: &[f64]) {
    let tolerance = tolerance(got.dtype());
    let got = doubles(got).expect("it can be read");
    assert_eq!(got.len(), expected.len());
    for (i, (&got, &expected)) in got.iter().zip(expected).enumerate() {
        let close = (got - expected).abs() <= tolerance * expected.abs().max(1.);
        assert!(close || got == expected || got.is_nan() && expected.is_nan(), "element {i}: {got} is not {expected}");
    }
}

#[track_caller]
fn assert_same_bits(a: &Tensor, b: &Tensor) {
    assert_eq!((a.dims(), a.dtype()), (b.dims(), b.dtype()));
    let bits = |t: &Tensor| doubles(t).expect("it can be read").into_iter().map(f64::to_bits).collect::<Vec<_>>();
    assert_eq!(bits(a), bits(b));
}
