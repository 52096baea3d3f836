//! Operators of steps on a GPU: the same results as on the CPU, bit for bit. Without a GPU, or without the `cuda` feature,
//! each test says that it skips.

use crate::common::{assert_same, gpu, waves, CPU};
use candle::{DType, Device, Result, Tensor};
use opara_candle::ops::{self, Sampler, Sampling};

#[test]
fn rows_are_written_as_on_the_cpu() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::F64, DType::U8, DType::U32, DType::I64] {
        for width in [1, 3, 8, 64] {
            let run = |device: &Device| -> Result<Tensor> {
                let new = (waves(1, (3, 2, 2, width))?.abs()? * 100.)?.to_dtype(dtype)?.to_device(device)?;
                let new = new.transpose(0, 1)?;
                let buffer = Tensor::zeros((2, 3, 7, width), dtype, device)?;
                let at = |at: &[u32]| Tensor::new(at, device);
                ops::write_rows(&buffer, &new, &at(&[1])?)?;
                ops::write_rows(&buffer, &new, &at(&[5, u32::MAX, 3])?)?;
                ops::write_rows(&buffer, &new.narrow(2, 1, 1)?, &at(&[6, 0])?.reshape((2, 1))?)?;
                ops::write_rows(&buffer, &new, &at(&[0, 1, 2, 3, 4, 5])?.reshape((2, 3))?)?;
                Ok(buffer)
            };
            assert_same(&[run(&device)?], &[run(CPU)?], format_args!("{dtype:?}, {width} wide"));
        }
    }
    let buffer = Tensor::zeros((4, 2), DType::F32, &device)?;
    let rows = Tensor::ones((3, 2), DType::F32, &device)?;
    ops::write_rows(&buffer, &rows, &Tensor::new(&[2u32], &device)?)?;
    assert_eq!(buffer.to_vec2::<f32>()?, [[0., 0.], [0., 0.], [1., 1.], [1., 1.]], "beyond the end nothing is written");
    ops::write_rows(&buffer, &rows, &Tensor::new(&[u32::MAX - 1], &device)?)?;
    assert_eq!(buffer.sum_all()?.to_scalar::<f32>()?, 4.);
    Ok(())
}

#[test]
fn counters_advance_and_tensors_are_assigned_as_on_the_cpu() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let run = |device: &Device| -> Result<Vec<Tensor>> {
        let (a, b) = (Tensor::new(&[0u32, 7, u32::MAX], device)?, Tensor::new(&[-3i64, i64::MAX], device)?);
        ops::advance(&a.narrow(0, 1, 2)?, 2)?;
        ops::advance(&b, 1)?;
        let c = Tensor::zeros((3, 2), DType::F32, device)?;
        ops::assign(&c.narrow(0, 1, 2)?, &waves(2, (2, 2))?.to_device(device)?.t()?)?;
        Ok(vec![a, b, c])
    };
    assert_same(&run(&device)?, &run(CPU)?, "counters");
    Ok(())
}

#[test]
fn argmax_is_that_of_the_cpu() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::F64] {
        for columns in [1, 5, 32, 1000, 32_128, 151_936] {
            let mut values = waves(3, (3, columns))?.flatten_all()?.to_vec1::<f32>()?;
            // Equal elements far apart, and NaN in the last row.
            let middle = columns / 2;
            for at in [middle, columns - 1, columns + columns / 3, 2 * columns - 1] {
                values[at] = 9.;
            }
            values[2 * columns + middle] = f32::NAN;
            values[3 * columns - 1] = f32::NAN;
            let x = Tensor::from_vec(values, (3, columns), CPU)?.to_dtype(dtype)?;
            for x in [x.clone(), x.narrow(1, columns / 4, columns - columns / 4)?] {
                let got = ops::argmax(&x.to_device(&device)?, 1)?;
                assert_same(&[got], &[ops::argmax(&x, 1)?], format_args!("{dtype:?}, {columns} columns"));
            }
        }
    }
    Ok(())
}

/// Parameters of every kind for this many rows.
fn parameters(rows: usize) -> Vec<Sampling> {
    let one = |row: usize| {
        let of = Sampling {
            temperature: 0.2 + 0.3 * (row % 5) as f32,
            seed: row as u64 * 0x1234_5678_9abc,
            ..Sampling::default()
        };
        match row % 8 {
            0 => Sampling::default(),
            1 => of,
            2 => Sampling { top_k: 1 + row as u32, ..of },
            3 => Sampling { top_p: 0.7, ..of },
            4 => Sampling { min_p: 0.05, ..of },
            5 => Sampling { top_k: 40, top_p: 0.9, min_p: 0.01, ..of },
            6 => Sampling { repetition_penalty: 1.3, top_p: 0.95, ..of },
            _ => Sampling { temperature: 30., top_p: 0.999, ..of },
        }
    };
    (0..rows).map(one).collect()
}

#[test]
fn tokens_equal_the_cpus() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let mut drawn = std::collections::BTreeSet::new();
    for (rows, vocab) in [(1, 7), (16, 50), (24, 1000), (16, 32_128), (8, 151_936), (3, 2047)] {
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            let logits = (waves(vocab, (rows, vocab))? * 6.)?.to_dtype(dtype)?;
            let mark =
                |i: usize| u8::from((i * 7919).is_multiple_of(11)) | if i.is_multiple_of(5) { ops::BARRED } else { 0 };
            let marks: Vec<u8> = (0..rows * vocab).map(mark).collect();
            let seen = Tensor::from_vec(marks, (rows, vocab), CPU)?;
            for round in 0..6u32 {
                let run = |device: &Device| -> Result<Vec<Tensor>> {
                    let bars: Vec<bool> = (0..rows).map(|row| round > 3 && row % 3 > 0).collect();
                    let sampler = Sampler::barring(&parameters(rows), &bars, device)?;
                    let positions = match round % 2 {
                        0 => Tensor::new(&[round], device)?,
                        _ => Tensor::arange(round, round + rows as u32, device)?,
                    };
                    let (logits, seen) = (logits.to_device(device)?, seen.to_device(device)?.copy()?);
                    let tokens = ops::sample(&logits, &sampler, &positions, Some(&seen))?;
                    ops::mark_seen(&seen, &tokens)?;
                    Ok(vec![tokens, seen])
                };
                let (got, expected) = (run(&device)?, run(CPU)?);
                assert_same(&got, &expected, format_args!("{rows} rows of {vocab} {dtype:?}, round {round}"));
                drawn.extend(expected[0].to_vec1::<u32>()?);
            }
        }
    }
    assert!(drawn.len() > 300, "many tokens are drawn: {}", drawn.len());
    Ok(())
}

/// All weights of one kind: the first digit is the same for many tokens.
#[test]
fn flat_and_spiked_logits_are_drawn_from_as_on_the_cpu() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let (rows, vocab) = (16, 4096);
    let spiked: Vec<f32> = (0..rows * vocab).map(|i| if i % vocab == 17 { 50. } else { (i % 3) as f32 }).collect();
    let masked: Vec<f32> = (0..rows * vocab).map(|i| if i % 5 == 0 { 1. } else { f32::NEG_INFINITY }).collect();
    // Every other row has no token: by NaN, by infinity, or by minus infinity alone.
    let spoiled = |(i, v): (usize, &f32)| match (i / vocab % 2, i / vocab / 2 % 3, i % vocab) {
        (1, 0, 4000) => f32::NAN,
        (1, 1, 4000) => f32::INFINITY,
        (1, 2, _) => f32::NEG_INFINITY,
        _ => *v,
    };
    let spoiled: Vec<f32> = spiked.iter().enumerate().map(spoiled).collect();
    // Where all others are barred, so is the row.
    let marks = Tensor::from_vec(
        (0..rows * vocab).map(|i| ops::BARRED * u8::from(i / vocab > 3)).collect(),
        (rows, vocab),
        CPU,
    )?;
    for (values, is_spoiled) in [(vec![0.25; rows * vocab], false), (spiked, false), (masked, false), (spoiled, true)] {
        let run = |device: &Device, bars: bool| -> Result<Tensor> {
            let logits = Tensor::from_vec(values.clone(), (rows, vocab), CPU)?.to_device(device)?;
            let positions = Tensor::arange(0, rows as u32, device)?;
            let sampler = Sampler::barring(&parameters(rows), &vec![bars; rows], device)?;
            ops::sample(&logits, &sampler, &positions, Some(&marks.to_device(device)?))
        };
        for bars in [false, true] {
            let expected = run(CPU, bars)?;
            assert_same(&[run(&device, bars)?], std::slice::from_ref(&expected), "flat and spiked logits");
            for (row, token) in expected.to_vec1::<u32>()?.into_iter().enumerate() {
                assert_eq!(token == ops::NO_TOKEN, is_spoiled && row % 2 == 1 || bars && row > 3, "row {row}");
            }
        }
    }
    Ok(())
}
