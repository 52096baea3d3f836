//! Attention of one query a head on a GPU against the CPU.

use candle::{DType, Result, Tensor};
use opara_candle::ops;

use super::{assert_near, assert_steps_have_eager_bits, both, DTYPES};
use crate::common::{gpu, same_bits, waves};

#[test]
fn one_query_sees_what_it_sees_on_the_cpu() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    // One block for a head, places that do not fill it, and clusters.
    for (dim, keys) in [(8, 3), (64, 1), (64, 128), (64, 256), (96, 100), (64, 257), (128, 700), (256, 90), (32, 5000)]
    {
        let (batch, heads, scale) = (2, 3, (dim as f64).powf(-0.5));
        for (dtype, tolerance) in DTYPES {
            let of = |i: usize, tokens: usize| {
                both(&waves(i, (batch, tokens, 2 * heads, dim))?.affine(2., 0.5)?, dtype, &device)
            };
            let ((q, of_q), (kv, of_kv)) = (of(0, 1)?, of(1, keys)?);
            let view = |x: &Tensor, part: usize| x.transpose(1, 2)?.narrow(1, part * heads, heads);
            // As T5 masks what is hidden, which may be all.
            let hidden = if dtype == DType::F16 { -32752. } else { -1.7e38 };
            let masked = |i, shape: [usize; 4]| waves(i, shape.as_slice())?.gt(0.3)?.to_dtype(DType::F32)? * hidden;
            let biases = [
                None,
                Some(waves(3, (1, heads, 1, keys))?),
                Some(masked(4, [batch, 1, 1, keys])?),
                Some(Tensor::full(hidden as f32, (1, 1), q.device())?),
            ];
            for bias in biases {
                let what = format!("{keys} keys of {dim}, {dtype:?}, {:?}", bias.as_ref().map(Tensor::dims));
                let bias = bias.map(|bias| both(&bias, dtype, &device)).transpose()?;
                let (on_cpu, on_gpu) = (bias.as_ref().map(|b| &b.0), bias.as_ref().map(|b| &b.1));
                let expected = ops::attention(&view(&q, 0)?, &view(&kv, 0)?, &view(&kv, 1)?, on_cpu, scale)?;
                let (q, k, v) = (view(&of_q, 0)?, view(&of_kv, 0)?, view(&of_kv, 1)?);
                let got = ops::attention(&q, &k, &v, on_gpu, scale)?;
                assert_near(&got, &expected, tolerance, &what);
                let alone = |x: &Tensor| x.narrow(0, 0, 1);
                let of_first = on_gpu.map(|bias| if bias.dims()[0] == batch { alone(bias) } else { Ok(bias.clone()) });
                let first =
                    ops::attention(&alone(&q)?, &alone(&k)?, &alone(&v)?, of_first.transpose()?.as_ref(), scale)?;
                assert!(same_bits(&first, &alone(&got)?)?, "{what}: the first item depends on the second");
            }
        }
    }
    Ok(())
}

#[test]
fn a_query_whose_keys_are_all_impossible_sees_nothing() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    for keys in [7, 700] {
        let (q, k) =
            (Tensor::ones((1, 2, 1, 64), DType::F16, &device)?, Tensor::ones((1, 2, keys, 64), DType::F16, &device)?);
        let impossible = Tensor::full(f32::NEG_INFINITY, (1, keys), &device)?.to_dtype(DType::F16)?;
        let got = ops::attention(&q, &k, &k, Some(&impossible), 1.)?.to_dtype(DType::F32)?;
        assert!(got.flatten_all()?.to_vec1::<f32>()?.iter().all(|y| y.is_nan()), "{keys} keys");
    }
    Ok(())
}

/// Attention loads keys, values and bias while the launch before it may still run: not where a launch before it writes them.
#[test]
fn keys_that_a_step_writes_first_are_read_when_they_are_written() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let on_gpu = |i, shape: &[usize], by: f64| (waves(i, shape)? * by)?.to_dtype(DType::F16)?.to_device(&device);
    let weight = on_gpu(3, &[4 * 64, 256], 0.06)?;
    let x = [on_gpu(1, &[1, 1, 256], 1.)?, on_gpu(2, &[1, 4, 1, 64], 1.)?];
    // Of a state, the keys are written, and the values and the bias are not.
    let step = move |x: &[Tensor], state: &Vec<Tensor>| {
        let [position, keys, values, bias] = &state[..] else { unreachable!("the state has four tensors") };
        ops::advance(position, 1)?;
        let q = ops::norm_linear(&x[0], None, &weight, None, None)?;
        ops::write_rows(keys, &ops::mul(&x[1], &ops::reshape(&q, (1, 4, 1, 64))?)?, position)?;
        let q = ops::transpose(&ops::reshape(&q, (1, 1, 4, 64))?, 1, 2)?;
        Ok(vec![ops::attention(&q, keys, values, Some(bias), 0.125)?])
    };
    let (cache, bias) = ([1, 4, 128, 64], on_gpu(7, &[1, 4, 1, 128], 1.)?);
    let start = vec![Tensor::new(&[3u32], &device)?, on_gpu(5, &cache, 1.)?, on_gpu(6, &cache, 1.)?, bias];
    assert_steps_have_eager_bits(step, &x, &start, &[], "keys that are written first")
}
