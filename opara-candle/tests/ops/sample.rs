//! Sampling, compared with a definition in double precision.

use candle::{DType, Device::Cpu, Result, Tensor};
use opara_candle::ops::{self, Sampler, Sampling};

use super::{doubles, values};

/// The tokens that may be drawn, with their probabilities.
fn candidates(logits: &[f64], seen: &[u8], of: &Sampling) -> Vec<(usize, f64)> {
    let penalty = f64::from(of.repetition_penalty);
    let penalised = |(&v, &seen): (&f64, &u8)| match (seen, v > 0.) {
        (0, _) => v,
        (_, true) => v / penalty,
        (_, false) => v * penalty,
    };
    let scaled = |v: f64| v / f64::from(of.temperature);
    let mut left: Vec<(usize, f64)> = logits.iter().zip(seen).map(penalised).map(scaled).enumerate().collect();
    left.sort_by(|a, b| b.1.total_cmp(&a.1));
    if of.top_k > 0 {
        left.truncate(of.top_k as usize);
    }
    let normalised = |left: &[(usize, f64)]| {
        let sum: f64 = left.iter().map(|(_, z)| (z - left[0].1).exp()).sum();
        left.iter().map(|&(token, z)| (token, (z - left[0].1).exp() / sum)).collect::<Vec<_>>()
    };
    let mut sum = 0.;
    let is_needed = |(_, p): &&(usize, f64)| {
        let before = sum;
        sum += p;
        before < f64::from(of.top_p)
    };
    let until = normalised(&left).iter().take_while(is_needed).count();
    left.truncate(until.max(1));
    let largest = left[0].1;
    left.retain(|(_, z)| (z - largest).exp() >= f64::from(of.min_p));
    normalised(&left)
}

const VOCAB: usize = 50;

fn logits() -> Result<Tensor> {
    values(5, &[1, VOCAB], DType::F32)? * 4.
}

/// The number of draws of each token at this many positions.
fn draws(logits: &Tensor, of: &Sampling, seen: Option<&Tensor>, positions: u32) -> Result<Vec<u32>> {
    let rows = logits.broadcast_as((positions as usize, VOCAB))?;
    let seen = seen.map(|seen| seen.broadcast_as((positions as usize, VOCAB))?.contiguous()).transpose()?;
    let sampler = Sampler::new(&vec![*of; positions as usize], &Cpu)?;
    let all = Tensor::arange(0u32, positions, &Cpu)?;
    let mut counts = vec![0; VOCAB];
    for token in ops::sample(&rows, &sampler, &all, seen.as_ref())?.to_vec1::<u32>()? {
        counts[token as usize] += 1;
    }
    Ok(counts)
}

#[test]
fn tokens_are_drawn_as_often_as_they_are_probable() -> Result<()> {
    const POSITIONS: u32 = 40_000;
    let warm = Sampling { temperature: 0.9, seed: 1 << 40 | 77, ..Sampling::default() };
    let marks: Vec<u8> = (0..VOCAB).map(|token| u8::from(token % 3 == 0)).collect();
    for of in [
        warm,
        Sampling { top_k: 7, ..warm },
        Sampling { top_p: 0.6, ..warm },
        Sampling { min_p: 0.1, ..warm },
        Sampling { top_k: 20, top_p: 0.9, min_p: 0.05, seed: 3, ..warm },
        Sampling { temperature: 1.7, repetition_penalty: 1.8, ..warm },
        Sampling { temperature: 0.05, ..warm },
        Sampling { top_k: 1, ..warm },
    ] {
        let seen = (of.repetition_penalty != 1.).then(|| Tensor::from_slice(&marks, (1, VOCAB), &Cpu)).transpose()?;
        let none = [0; VOCAB];
        let expected = candidates(&doubles(&logits()?)?, if seen.is_some() { &marks } else { &none }, &of);
        let mut counts = draws(&logits()?, &of, seen.as_ref(), POSITIONS)?;
        for (token, p) in expected {
            let count = f64::from(std::mem::take(&mut counts[token]));
            let mean = p * f64::from(POSITIONS);
            // Five deviations of a binomial distribution. The seed is fixed: this does not change from run to run.
            let deviation = (mean * (1. - p)).sqrt();
            assert!((count - mean).abs() <= 5. * deviation + 1., "{of:?}: token {token}: {count} for {mean}");
        }
        assert_eq!(counts, [0; VOCAB], "{of:?}: tokens that take no part");
    }
    Ok(())
}

#[test]
fn a_row_does_not_depend_on_its_neighbours() -> Result<()> {
    let of = |seed: u64| Sampling { temperature: 1.1, top_p: 0.95, seed, ..Sampling::default() };
    let rows = (values(6, &[4, VOCAB], DType::F32)? * 3.)?;
    let alone = |row: usize, seed: u64, position: u32| -> Result<u32> {
        let sampler = Sampler::new(&[of(seed)], &Cpu)?;
        let logits = rows.narrow(0, row, 1)?;
        Ok(ops::sample(&logits, &sampler, &Tensor::new(&[position], &Cpu)?, None)?.to_vec1::<u32>()?[0])
    };
    let mut differ = 0;
    for position in 0..50 {
        let order = [2usize, 0, 3, 1];
        let logits = rows.index_select(&Tensor::new(&order.map(|row| row as u32), &Cpu)?, 0)?;
        let sampler = Sampler::new(&order.map(|row| of(row as u64)), &Cpu)?;
        let positions = Tensor::new(&order.map(|row| position + row as u32), &Cpu)?;
        let together = ops::sample(&logits, &sampler, &positions, None)?.to_vec1::<u32>()?;
        for (row, token) in order.into_iter().zip(together) {
            assert_eq!(token, alone(row, row as u64, position + row as u32)?);
            differ += usize::from(token != alone(row, row as u64 + 9, position + row as u32)?);
        }
    }
    assert!(differ > 50, "another seed draws other tokens: {differ}");
    Ok(())
}

#[test]
fn greedy_and_non_finite_logits() -> Result<()> {
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    let logits = Tensor::new(&[[1f32, 5., 5., 0.], [0., nan, 9., nan], [1., inf, inf, 2.], [-inf; 4]], &Cpu)?;
    let position = Tensor::zeros(1, DType::U32, &Cpu)?;
    for temperature in [0., 1.] {
        let of = Sampling { temperature, top_k: 1, ..Sampling::default() };
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            let logits = logits.to_dtype(dtype)?;
            let tokens = ops::sample(&logits, &Sampler::new(&[of; 4], &Cpu)?, &position, None)?.to_vec1::<u32>()?;
            // Tokens equal to the last of the top k are drawn, too.
            assert!(tokens[0] == 1 || temperature == 1. && tokens[0] == 2);
            assert_eq!(tokens[1..], [ops::NO_TOKEN; 3]);
        }
    }
    Ok(())
}

#[test]
fn tokens_that_were_seen_are_marked_and_penalised() -> Result<()> {
    let seen = Tensor::zeros((2, 4), DType::U8, &Cpu)?;
    ops::mark_seen(&seen, &Tensor::new(&[2u32, 9], &Cpu)?)?;
    assert_eq!(seen.to_vec2::<u8>()?, [[0, 0, 1, 0], [0; 4]], "beyond the vocabulary nothing is marked");
    let of = Sampling { repetition_penalty: 2., ..Sampling::default() };
    let sampler = Sampler::new(&[of; 2], &Cpu)?;
    let (logits, position) = (Tensor::new(&[[0f32, 2., 3., 1.]; 2], &Cpu)?, Tensor::zeros(1, DType::U32, &Cpu)?);
    assert_eq!(ops::sample(&logits, &sampler, &position, Some(&seen))?.to_vec1::<u32>()?, [1, 2]);
    sampler.set(0, &Sampling::default())?;
    assert_eq!(ops::sample(&logits, &sampler, &position, Some(&seen))?.to_vec1::<u32>()?, [2, 2]);
    Ok(())
}

#[test]
fn tokens_that_are_barred_are_drawn_as_if_their_logits_were_minus_infinity() -> Result<()> {
    let logits = logits()?;
    let barred: Vec<bool> = (0..VOCAB).map(|token| token % 4 == 0).collect();
    let seen: Vec<u8> = (0..VOCAB).map(|token| u8::from(token % 3 == 0)).collect();
    let marks: Vec<u8> =
        seen.iter().zip(&barred).map(|(seen, bar)| seen | if *bar { ops::BARRED } else { 0 }).collect();
    let hidden: Vec<f32> = logits.flatten_all()?.to_vec1::<f32>()?;
    let hidden: Vec<f32> =
        hidden.iter().zip(&barred).map(|(v, bar)| if *bar { f32::NEG_INFINITY } else { *v }).collect();
    let (hidden, seen) = (Tensor::from_vec(hidden, (1, VOCAB), &Cpu)?, Tensor::from_vec(seen, (1, VOCAB), &Cpu)?);
    let marks = Tensor::from_vec(marks, (1, VOCAB), &Cpu)?;
    let warm = Sampling { temperature: 0.9, seed: 77, ..Sampling::default() };
    for of in [
        Sampling::default(),
        warm,
        Sampling { top_k: 7, ..warm },
        Sampling { top_p: 0.6, min_p: 0.05, ..warm },
        Sampling { temperature: 1.7, repetition_penalty: 1.8, ..warm },
    ] {
        for position in 0..100u32 {
            let position = Tensor::new(&[position], &Cpu)?;
            let draw = |logits: &Tensor, bars: bool, marks: &Tensor| -> Result<u32> {
                let sampler = Sampler::barring(&[of], &[bars], &Cpu)?;
                Ok(ops::sample(logits, &sampler, &position, Some(marks))?.to_vec1::<u32>()?[0])
            };
            assert_eq!(draw(&logits, true, &marks)?, draw(&hidden, false, &seen)?, "{of:?}");
            assert_eq!(
                draw(&logits, false, &marks)?,
                draw(&logits, false, &seen)?,
                "{of:?}: the row does not bar them"
            );
        }
    }
    assert!(Sampler::barring(&[warm], &[], &Cpu).is_err());
    Ok(())
}

#[test]
fn parameters_and_shapes_that_cannot_be_are_named() -> Result<()> {
    for of in [
        Sampling { temperature: -1., ..Sampling::default() },
        Sampling { temperature: f32::NAN, ..Sampling::default() },
        Sampling { top_p: 0., ..Sampling::default() },
        Sampling { min_p: 1.5, ..Sampling::default() },
        Sampling { repetition_penalty: 0., ..Sampling::default() },
    ] {
        let error = Sampler::new(&[of], &Cpu).expect_err("out of range").to_string();
        assert!(error.contains("the temperature must be 0 or"), "{error}");
    }
    let (sampler, position) = (Sampler::new(&[Sampling::default()], &Cpu)?, Tensor::zeros(1, DType::U32, &Cpu)?);
    let one = Tensor::zeros((1, 4), DType::F32, &Cpu)?;
    let seen = Tensor::zeros((1, 4), DType::F32, &Cpu)?;
    for (result, part) in [
        (ops::sample(&Tensor::zeros((2, 4), DType::F32, &Cpu)?, &sampler, &position, None), "1 rows of parameters"),
        (ops::sample(&one.to_dtype(DType::F64)?, &sampler, &position, None), "f32, f16 or bf16"),
        (ops::sample(&one, &sampler, &position.to_dtype(DType::I64)?, None), "positions are one or 1"),
        (ops::sample(&one, &sampler, &position, Some(&seen)), "u8"),
        (ops::sample(&Tensor::zeros((1, 0), DType::F32, &Cpu)?, &sampler, &position, None), "rows of parameters"),
    ] {
        let error = result.expect_err(part).to_string();
        assert!(error.contains(part), "{error}: {part}");
    }
    Ok(())
}
