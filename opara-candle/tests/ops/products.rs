//! The CPU's kernels for products with a packed weight and for attention, in f32 and for many shapes, against definitions in
//! double precision.

use candle::{DType, Device::Cpu, Result, Tensor, D};
use opara_candle::ops::{self, Activation, PackedWeight};

use crate::{assert_same_bits, doubles, values};

const CASES: usize = 200;

/// A size from 1 to `most`, another one for each case and number.
fn size(case: usize, number: usize, most: usize) -> usize {
    1 + (case * 7_919 + number * 104_729 + case * case * 31) % most
}

/// What rounding may change of a sum of `terms` products of numbers below 1.
fn rounding(terms: usize) -> f64 {
    4. * f64::from(f32::EPSILON) * (terms as f64 + 4.)
}

fn wide(x: &Tensor) -> Result<Tensor> {
    x.contiguous()?.to_dtype(DType::F64)
}

#[track_caller]
fn assert_within(got: &Tensor, expected: &Tensor, tolerance: f64) -> Result<()> {
    assert_eq!((got.dtype(), got.dims()), (DType::F32, expected.dims()));
    for (got, expected) in doubles(got)?.into_iter().zip(doubles(expected)?) {
        let close = (got - expected).abs() <= tolerance * expected.abs().max(1.);
        assert!(close, "{got} is not {expected}, to {tolerance}");
    }
    Ok(())
}

#[test]
fn packed_products_are_those_of_double_precision() -> Result<()> {
    let activations = [Activation::None, Activation::Relu, Activation::Gelu, Activation::GeluErf, Activation::Silu];
    for case in 0..CASES {
        let (rows, out, k) = (size(case, 1, 69), size(case, 2, 149), size(case, 3, 299));
        let of = |seed, shape: &[usize]| values(seed, shape, DType::F32);
        let (x, weight, bias) = (of(1, &[rows, k])?, of(2, &[out, k])?, of(3, &[out])?);
        let (activation, bias) = (activations[case % activations.len()], (case % 2 == 0).then_some(&bias));
        let product = wide(&x)?.matmul(&wide(&weight)?.t()?)?;
        let sum = bias.map_or(Ok(product.clone()), |bias| product.broadcast_add(&wide(bias)?))?;
        let expected = match activation {
            Activation::Relu => sum.relu(),
            Activation::Gelu => sum.gelu(),
            Activation::GeluErf => sum.gelu_erf(),
            Activation::Silu => sum.silu(),
            _ => Ok(sum),
        }?;
        let packed = PackedWeight::new(&weight)?.expect("weights of f32 are packed on a CPU");
        let got = ops::linear_packed(&x, &packed, bias, activation)?;
        assert_within(&got, &expected, rounding(k))?;
        // The layouts do not matter.
        let columns = PackedWeight::new(&weight.t()?.contiguous()?.t()?)?.expect("it is packed");
        assert_same_bits(&ops::linear_packed(&x.t()?.contiguous()?.t()?, &columns, bias, activation)?, &got);
        // The bits of a row do not depend on the rows beside it.
        let first = ops::linear_packed(&x.narrow(0, 0, 1)?, &packed, bias, activation)?;
        assert_same_bits(&first, &got.narrow(0, 0, 1)?.contiguous()?);
    }
    Ok(())
}

#[test]
fn packed_products_refuse_other_shapes() -> Result<()> {
    let packed = PackedWeight::new(&values(1, &[5, 3], DType::F32)?)?.expect("it is packed");
    let of = |shape: &[usize]| values(2, shape, DType::F32);
    assert!(ops::linear_packed(&of(&[2, 4])?, &packed, None, Activation::None).is_err());
    assert!(ops::linear_packed(&of(&[2, 3])?, &packed, Some(&of(&[4])?), Activation::None).is_err());
    assert_eq!(ops::linear_packed(&of(&[0, 2, 3])?, &packed, None, Activation::None)?.dims(), [0, 2, 5]);
    assert!(PackedWeight::new(&of(&[0, 3])?).is_err());
    assert!(PackedWeight::new(&values(1, &[5, 3], DType::F16)?)?.is_none());
    Ok(())
}

#[test]
fn attention_is_that_of_double_precision() -> Result<()> {
    for case in 0..CASES {
        let (batch, heads, queries) = (size(case, 4, 2), size(case, 5, 3), size(case, 6, 19));
        let (keys, dim) = (size(case, 7, 69), size(case, 8, 39));
        let of = |seed, rows| values(seed, &[batch, rows, heads, dim], DType::F32)?.transpose(1, 2);
        let (q, k, v) = (of(1, queries)?, of(2, keys)?, of(3, keys)?);
        let bias = match case % 3 {
            0 => None,
            1 => Some(values(4, &[batch, 1, 1, keys], DType::F32)?),
            _ => Some(values(4, &[batch, heads, queries, keys], DType::F32)?),
        };
        let scores = (wide(&q)?.matmul(&wide(&k)?.t()?)? * 0.3)?;
        let scores = bias.as_ref().map_or(Ok(scores.clone()), |bias| scores.broadcast_add(&wide(bias)?))?;
        let powers = scores.exp()?;
        let weights = powers.broadcast_div(&powers.sum_keepdim(D::Minus1)?)?;
        let got = ops::attention(&q, &k, &v, bias.as_ref(), 0.3)?;
        assert_within(&got, &weights.matmul(&wide(&v)?)?, rounding(dim + keys))?;
        let together = ops::attention(&q.contiguous()?, &k.contiguous()?, &v.contiguous()?, bias.as_ref(), 0.3)?;
        assert_same_bits(&together, &got);
    }
    Ok(())
}

#[test]
fn heads_of_queries_share_keys_and_values() -> Result<()> {
    for dtype in [DType::F32, DType::F64, DType::F16] {
        let of = |seed, heads, rows| values(seed, &[2, rows, heads, 8], dtype)?.transpose(1, 2);
        let (q, k, v) = (of(1, 6, 5)?, of(2, 2, 19)?, of(3, 2, 19)?);
        let mask = values(4, &[2, 6, 1, 19], dtype)?;
        let each = |x: &Tensor| x.unsqueeze(2)?.broadcast_as((2, 2, 3, 19, 8))?.contiguous()?.reshape((2, 6, 19, 8));
        let apart = ops::attention(&q, &each(&k)?, &each(&v)?, Some(&mask), 0.3)?;
        assert_same_bits(&ops::attention(&q, &k, &v, Some(&mask), 0.3)?, &apart);
        assert!(ops::attention(&q.narrow(1, 0, 5)?, &k, &v, None, 0.3).is_err(), "5 heads cannot share 2");
    }
    Ok(())
}

/// Padding is masked by the lowest number of the type or by an infinity: what is behind it does not matter.
#[test]
fn masked_keys_have_no_weight() -> Result<()> {
    let of = |seed, rows| values(seed, &[1, 2, rows, 8], DType::F32);
    let (q, k, v) = (of(1, 5)?, of(2, 40)?, of(3, 40)?);
    let seen = ops::attention(&q, &k.narrow(2, 0, 33)?, &v.narrow(2, 0, 33)?, None, 1.)?;
    for masked in [f32::MIN, f32::NEG_INFINITY] {
        let mask: Vec<f32> = (0..40).map(|key| if key < 33 { 0. } else { masked }).collect();
        let got = ops::attention(&q, &k, &v, Some(&Tensor::new(mask, &Cpu)?), 1.)?;
        assert_within(&got, &seen, rounding(40))?;
    }
    let all = Tensor::full(f32::NEG_INFINITY, 40, &Cpu)?;
    assert!(doubles(&ops::attention(&q, &k, &v, Some(&all), 1.)?)?.iter().all(|x| x.is_nan()), "as plain arithmetic");
    Ok(())
}
