//! Every operator and type, and combinations of operators.

use candle::{DType, Device, Result, Tensor};
use half::{bf16, f16};
use opara_candle::OparaExecutor;

use super::{fused, random};
use crate::common::{assert_same, gpu};

/// Every number of a 16-bit type; for f32 every 1031st bit pattern, including infinities and NaNs.
fn all_numbers(dtype: DType, device: &Device) -> Result<Tensor> {
    match dtype {
        DType::F16 => Tensor::from_iter((0..=u16::MAX).map(f16::from_bits), device),
        DType::BF16 => Tensor::from_iter((0..=u16::MAX).map(bf16::from_bits), device),
        _ => Tensor::from_iter((0..u32::MAX / 1031).map(|i| f32::from_bits(i * 1031 + 1)), device),
    }
}

type Unary = (&'static str, fn(&Tensor) -> Result<Tensor>);

const UNARY: &[Unary] = &[
    ("sqr", Tensor::sqr),
    ("sqrt", Tensor::sqrt),
    ("neg", Tensor::neg),
    ("abs", Tensor::abs),
    ("recip", Tensor::recip),
    ("relu", Tensor::relu),
    ("exp", Tensor::exp),
    ("log", Tensor::log),
    ("sin", Tensor::sin),
    ("cos", Tensor::cos),
    ("tanh", Tensor::tanh),
    ("silu", Tensor::silu),
    ("gelu", Tensor::gelu),
    ("gelu_erf", Tensor::gelu_erf),
    ("sign", Tensor::sign),
    ("sigmoid", candle_nn::ops::sigmoid),
    ("affine", |x| x.affine(1.7, -0.3)),
    ("to f16", |x| x.to_dtype(DType::F16)),
    ("to bf16", |x| x.to_dtype(DType::BF16)),
    ("to f32", |x| x.to_dtype(DType::F32)),
];

#[test]
fn every_unary_operator_keeps_its_bits() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    for dtype in [DType::F16, DType::BF16, DType::F32] {
        let x = all_numbers(dtype, &device)?;
        for &(name, operator) in UNARY {
            let of = format!("{name} of {dtype:?}");
            let function = move |t: &[Tensor]| Ok(vec![operator(&t[0])?.neg()?]);
            let fast = OparaExecutor::builder().build_fn(function, std::slice::from_ref(&x))?;
            // A cast to the same type is no launch.
            let alone = operator(&x.narrow(0, 0, 1)?)?.dtype() == dtype && name.starts_with("to ");
            let report = fast.report();
            assert_eq!((report.counts().fused, &report.reason()), (usize::from(!alone), &None), "{of}: {report}");
            assert!(report.is_verified(), "{of}");
        }
    }
    Ok(())
}

#[test]
fn every_binary_operator_keeps_its_bits() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    type Binary = fn(&Tensor, &Tensor) -> Result<Tensor>;
    let operators: [(&str, Binary); 6] = [
        ("add", Tensor::broadcast_add),
        ("sub", Tensor::broadcast_sub),
        ("mul", Tensor::broadcast_mul),
        ("div", Tensor::broadcast_div),
        ("maximum", Tensor::broadcast_maximum),
        ("minimum", Tensor::broadcast_minimum),
    ];
    for dtype in [DType::F16, DType::BF16, DType::F32] {
        // For 16-bit types, every number combined with some of each sign and magnitude; for f32, some with some.
        let x = all_numbers(dtype, &device)?;
        let count = x.elem_count();
        let step = count / 1024;
        let some = x.narrow(0, 0, step * 1024)?.reshape((1024, step))?.narrow(1, step / 3, 1)?.reshape((1, 1024))?;
        let x = if dtype == DType::F32 { some.reshape((1024, 1))? } else { x.reshape((count, 1))?.contiguous()? };
        let inputs = [x, some.contiguous()?];
        for (name, operator) in operators {
            let function = move |t: &[Tensor]| Ok(vec![operator(&t[0], &t[1])?.neg()?]);
            let fast = OparaExecutor::builder().verify(false).build_fn(function, &inputs)?;
            fused(&fast, 1);
            let (got, expected) = (&fast.call(&inputs)?[0], &function(&inputs)?[0]);
            // Compared on the device, since there are millions of elements. Zeros of different signs are distinguished
            // by their reciprocals.
            let same = got.eq(expected)?.mul(&got.recip()?.eq(&expected.recip()?)?)?;
            let nan = got.ne(got)?.mul(&expected.ne(expected)?)?;
            let differing = same.maximum(&nan)?.eq(0u8)?.to_dtype(DType::F32)?.sum_all()?.to_scalar::<f32>()?;
            assert_eq!(differing, 0., "{name} of {dtype:?}");
        }
    }
    Ok(())
}

/// candle's multiplication and addition are two kernels, and round twice.
#[test]
fn a_multiplication_and_an_addition_are_rounded_separately() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    type Product = fn(&Tensor) -> Result<Tensor>;
    let products: [Product; 6] = [
        |x| x * x.affine(0.3, 0.7)?,
        Tensor::sqr,
        Tensor::gelu,
        Tensor::gelu_erf,
        |x| candle_nn::ops::softmax_last_dim(x),
        |x| candle_nn::ops::rms_norm(x, &x.narrow(0, 0, 1)?.squeeze(0)?.contiguous()?, 1e-5),
    ];
    let sums: [fn(&Tensor, &Tensor) -> Result<Tensor>; 4] = [
        |x, y| x + y,
        |x, y| y - x,
        |x, _| candle_nn::ops::softmax_last_dim(x),
        |x, y| {
            candle_nn::ops::layer_norm(
                x,
                &y.narrow(0, 1, 1)?.squeeze(0)?.contiguous()?,
                &y.narrow(0, 0, 1)?.squeeze(0)?.contiguous()?,
                1e-5,
            )
        },
    ];
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let x = random((64, 1000), &device)?.to_dtype(dtype)?;
        let y = random((64, 1000), &device)?.to_dtype(dtype)?;
        for product in products {
            for sum in sums {
                let function = move |t: &[Tensor]| Ok(vec![sum(&product(&t[0])?, &t[1])?]);
                let fast = OparaExecutor::builder().build_fn(function, &[x.clone(), y.clone()])?;
                let report = fast.report();
                assert!(report.counts().fused >= 1 && report.reason().is_none(), "{report}");
            }
        }
    }
    Ok(())
}

#[test]
fn many_elements_and_a_single_one() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let function = |t: &[Tensor]| Ok(vec![(t[0].sqr()? + &t[0])?.gelu_erf()?]);
    for shape in [(1, 1), (1, 127), (4096, 4099)] {
        let x = random(shape, &device)?;
        let fast = OparaExecutor::builder().build_fn(function, std::slice::from_ref(&x))?;
        fused(&fast, 2);
        assert_same(&fast.call(std::slice::from_ref(&x))?, &function(&[x])?, format_args!("{shape:?}"));
    }
    Ok(())
}
