//! Seeded weights depend only on the seed, the name and the shape.

use candle::{DType, Device, Result, Tensor};
use opara_weights::{seeded, seeded_with_gain};

const CPU: Device = Device::Cpu;

fn values(seed: u64, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
    seeded(seed, DType::F32, &CPU).get(shape, name)?.flatten_all()?.to_vec1()
}

/// The expected values are the output of `seeded.py` for the same arguments.
#[test]
fn agrees_with_the_script() -> Result<()> {
    let script: [(u64, &str, &[usize], &[f32]); 6] = [
        (
            0,
            "embeddings.word_embeddings.weight",
            &[30522, 768],
            &[-0.041902333, 0.025725998, -0.038658455, -0.00060164183],
        ),
        (42, "encoder.layer.0.output.LayerNorm.weight", &[768], &[0.9463902, 1.0220625, 0.95180523, 0.93841696]),
        (42, "bn1.running_var", &[64], &[1.0243617, 1.0900643, 1.0332152, 1.0245124]),
        (u64::MAX, "classifier.bias", &[10], &[-0.084484756, -0.0402825, -0.030346418, 0.06757795]),
        (1, "конв.weight", &[8, 3, 3, 3], &[-0.1860627, -0.006830017, -0.08286373, -0.29532394]),
        (1, "scalar", &[], &[-0.075038634]),
    ];
    for (seed, name, shape, expected) in script {
        assert_eq!(values(seed, name, shape)?[..expected.len()], *expected, "{name}");
    }
    Ok(())
}

#[test]
fn same_seed_and_name_give_the_same_bits_in_any_order() -> Result<()> {
    let shape = [37, 53];
    let (one, two) = (seeded(7, DType::F32, &CPU), seeded(7, DType::F32, &CPU));
    let forth = (one.get(&shape, "a.weight")?, one.pp("b").get(&shape, "weight")?);
    let back = (two.get(&shape, "b.weight")?, two.pp("a").get(&shape, "weight")?);
    let bits = |tensor: &Tensor| -> Result<Vec<u32>> {
        let flat = tensor.flatten_all()?.to_vec1::<f32>()?;
        Ok(flat.into_iter().map(f32::to_bits).collect())
    };
    assert_eq!(bits(&forth.0)?, bits(&back.1)?);
    assert_eq!(bits(&forth.1)?, bits(&back.0)?);
    Ok(())
}

#[test]
fn other_seeds_and_names_give_other_values() -> Result<()> {
    let base = values(7, "a.weight", &[8, 8])?;
    for other in [values(8, "a.weight", &[8, 8])?, values(7, "b.weight", &[8, 8])?] {
        let same = base.iter().zip(&other).filter(|(a, b)| a == b).count();
        assert_eq!(same, 0);
    }
    Ok(())
}

/// Computes the mean and the variance in f64.
fn moments(values: &[f32]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().map(|v| f64::from(*v)).sum::<f64>() / n;
    let square = |v: &f32| (f64::from(*v) - mean).powi(2);
    (mean, values.iter().map(square).sum::<f64>() / n)
}

#[test]
fn matrices_have_variance_one_over_fan_in() -> Result<()> {
    for shape in [&[400, 256][..], &[400, 64, 2, 2]] {
        let values = values(3, "layer.weight", shape)?;
        let (mean, variance) = moments(&values);
        assert!(mean.abs() < 1e-3, "{mean}");
        assert!((variance * 256.0 - 1.0).abs() < 0.02, "{variance}");
        let limit = (3.0f32 / 256.0).sqrt();
        assert!(values.iter().all(|v| v.abs() <= limit));
    }
    Ok(())
}

#[test]
fn vectors_are_scales_variances_or_shifts_by_name() -> Result<()> {
    for (name, mean, low, high) in [
        ("norm.weight", 1.0, 0.9, 1.1),
        ("norm.gamma", 1.0, 0.9, 1.1),
        ("norm.running_var", 1.05, 1.0, 1.1),
        ("norm.running_mean", 0.0, -0.1, 0.1),
        ("norm.bias", 0.0, -0.1, 0.1),
        ("weight", 0.0, -0.1, 0.1),
    ] {
        let values = values(3, name, &[20_000])?;
        assert!((moments(&values).0 - mean).abs() < 2e-3, "{name}");
        assert!(values.iter().all(|v| (low..=high).contains(v)), "{name}");
    }
    Ok(())
}

#[test]
fn the_gain_applies_to_convolution_kernels_only() -> Result<()> {
    let gained = seeded_with_gain(3, 1.5, DType::F32, &CPU);
    for (name, shape, gain) in
        [("conv.weight", &[8, 4, 3, 3][..], 1.5), ("fc.weight", &[8, 4], 1.0), ("bn.bias", &[8], 1.0)]
    {
        let expected: Vec<f32> = values(3, name, shape)?.into_iter().map(|v| v * gain).collect();
        assert_eq!(gained.get(shape, name)?.flatten_all()?.to_vec1::<f32>()?, expected, "{name}");
    }
    Ok(())
}

#[test]
fn other_dtypes_are_rounded_from_f32() -> Result<()> {
    let vb = seeded(5, DType::F32, &CPU);
    let exact = vb.get((16, 16), "w")?;
    for dtype in [DType::F16, DType::BF16, DType::F64] {
        let rounded = vb.clone().set_dtype(dtype).get((16, 16), "w")?;
        assert_eq!(rounded.dtype(), dtype);
        let difference = (rounded.to_dtype(DType::F64)? - exact.to_dtype(dtype)?.to_dtype(DType::F64)?)?;
        assert_eq!(difference.abs()?.sum_all()?.to_scalar::<f64>()?, 0.0);
    }
    Ok(())
}

#[test]
fn any_tensor_exists_but_a_request_needs_a_shape_and_a_float_dtype() -> Result<()> {
    let vb = seeded(5, DType::F32, &CPU);
    assert!(vb.contains_tensor("anything.at.all"));
    assert_eq!(vb.get((0, 4), "empty")?.elem_count(), 0);
    let shapeless = vb.get_unchecked("a.weight").expect_err("no shape");
    assert!(shapeless.to_string().contains("`a.weight`"));
    let whole = vb.set_dtype(DType::U32).get(2, "ids").expect_err("no float");
    assert!(whole.to_string().contains("`ids`"));
    Ok(())
}
