//! Draws tokens on the CPU, with the same operations in the same order as `sample.cu`.

use candle::{bail, CpuStorage, DType, InplaceOp2, Layout, Result, Tensor};

use super::parameters::{BARRED, BARS, NO_TOKEN, SEEN, WORDS};
use crate::ops::argmax::first_largest;

/// All operands are contiguous.
pub(super) fn sample(
    logits: &Tensor,
    parameters: &Tensor,
    positions: &Tensor,
    seen: Option<&Tensor>,
) -> Result<Tensor> {
    let rows = logits.to_dtype(DType::F32)?.to_vec2::<f32>()?;
    let (parameters, positions) = (parameters.to_vec2::<u32>()?, positions.flatten_all()?.to_vec1::<u32>()?);
    let seen = seen.map(|seen| seen.to_vec2::<u8>()).transpose()?;
    let token = |(row, mut logits): (usize, Vec<f32>)| {
        // Before penalties, which may be as large as they like.
        if !logits[first_largest(&logits) as usize].is_finite() {
            return NO_TOKEN;
        }
        let Parameters { penalty, bars, .. } = Parameters::of(&parameters[row]);
        if let (Some(seen), true) = (&seen, penalty != 1. || bars) {
            for (v, mark) in logits.iter_mut().zip(&seen[row]) {
                if bars && mark & BARRED != 0 {
                    *v = f32::NEG_INFINITY;
                } else if penalty != 1. && mark & SEEN != 0 {
                    *v = if *v > 0. { *v / penalty } else { *v * penalty };
                }
            }
        }
        let position = positions[if positions.len() == 1 { 0 } else { row }];
        draw(&logits, &Parameters::of(&parameters[row]), position)
    };
    let tokens: Vec<u32> = rows.into_iter().enumerate().map(token).collect();
    Tensor::new(tokens, logits.device())
}

/// A row of parameters.
struct Parameters {
    temperature: f32,
    top_k: usize,
    top_p: f32,
    min_p: f32,
    penalty: f32,
    seed: [u32; 2],
    bars: bool,
}

impl Parameters {
    fn of(words: &[u32]) -> Self {
        debug_assert_eq!(words.len(), WORDS);
        let float = |at: usize| f32::from_bits(words[at]);
        let (temperature, top_p, min_p, penalty) = (float(0), float(2), float(3), float(4));
        Self {
            temperature,
            top_k: words[1] as usize,
            top_p,
            min_p,
            penalty,
            seed: [words[5], words[6]],
            bars: words[BARS] != 0,
        }
    }
}

/// Draws a token. `logits` are after the repetition penalty.
fn draw(logits: &[f32], of: &Parameters, position: u32) -> u32 {
    let best = first_largest(logits);
    let largest = logits[best as usize];
    if largest == f32::NEG_INFINITY {
        return NO_TOKEN;
    }
    if of.temperature == 0. || !largest.is_finite() {
        return best;
    }
    let scaled = |v: &f32| (*v - largest) / of.temperature;
    // For each token: the distance of its logit below the largest. The distance is stored as the bits of a non-negative
    // float, which compare like the float. Tokens of weight 0 are dropped.
    let mut kept: Vec<(u32, u32)> = (0..).zip(logits).map(|(token, v)| (depth(scaled(v)), token)).collect();
    kept.retain(|(depth, _)| *depth < f32::INFINITY.to_bits());
    if of.top_k > 0 && of.top_k < kept.len() {
        let (_, &mut (limit, _), _) = kept.select_nth_unstable(of.top_k - 1);
        kept.retain(|(depth, _)| *depth <= limit);
    }
    if of.top_p < 1. {
        kept.sort_unstable();
        let masses = || kept.iter().map(|(depth, _)| mass(-f32::from_bits(*depth)));
        let all: u64 = masses().sum();
        let wanted = ((f64::from(of.top_p) * all as f64) as u64).max(1);
        let mut sum = 0;
        let last = masses().position(|mass| {
            sum += mass;
            sum >= wanted
        });
        let limit = kept[last.unwrap_or(0)].0;
        kept.retain(|(depth, _)| *depth <= limit);
    }
    kept.sort_unstable_by_key(|(_, token)| *token);
    let (mut noise, mut group) = ([0; 4], None);
    let mut best: Option<(f32, u32)> = None;
    for (_, token) in kept {
        let z = scaled(&logits[token as usize]);
        if of.min_p > 0. && exponential(z) < of.min_p {
            continue;
        }
        if group != Some(token / 4) {
            group = Some(token / 4);
            noise = philox([token / 4, position, 0, 0], of.seed);
        }
        let score = z + -logarithm(exponentially(noise[token as usize % 4]));
        if best.is_none_or(|(largest, _)| score > largest) {
            best = Some((score, token));
        }
    }
    best.map_or(0, |(_, token)| token)
}

fn depth(scaled: f32) -> u32 {
    scaled.to_bits() & 0x7fff_ffff
}

/// The weight of a token, times 2^40.
fn mass(scaled: f32) -> u64 {
    (exponential(scaled) * (1u64 << 40) as f32) as u64
}

/// e^x for x <= 0: expf of S. Moshier's Cephes library.
#[allow(clippy::excessive_precision, reason = "as published")]
fn exponential(x: f32) -> f32 {
    if x.is_nan() || x < -87. {
        return 0.;
    }
    let n = (x * std::f32::consts::LOG2_E + 0.5).floor();
    let x = x + -(n * 0.693359375);
    let x = x + n * 2.12194440e-4;
    let coefficients = [1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1f32];
    let y = coefficients.into_iter().fold(1.9875691500e-4f32, |y, c| y * x + c);
    let y = y * (x * x) + x + 1.;
    y * f32::from_bits(((n as i32 + 127) as u32) << 23)
}

/// ln(1 + f) + e ln 2 for 1 + f between the roots of 1/2 and of 2: logf of the same library.
#[allow(clippy::excessive_precision, reason = "as published")]
fn logarithm_of(f: f32, e: f32) -> f32 {
    let square = f * f;
    let coefficients = [
        -1.1514610310e-1,
        1.1676998740e-1,
        -1.2420140846e-1,
        1.4249322787e-1,
        -1.6668057665e-1,
        2.0000714765e-1,
        -2.4999993993e-1,
        3.3333331174e-1f32,
    ];
    let y = coefficients.into_iter().fold(7.0376836292e-2f32, |y, c| y * f + c);
    let y = y * f * square;
    let y = y + e * -2.12194440e-4;
    let y = y + -0.5 * square;
    f + y + e * 0.693359375
}

/// The natural logarithm of x > 0.
fn logarithm(x: f32) -> f32 {
    let bits = x.to_bits();
    let mut e = (bits >> 23) as i32 - 126;
    let mut m = f32::from_bits((bits & 0x7f_ffff) | 0x3f00_0000);
    if m < std::f32::consts::FRAC_1_SQRT_2 {
        e -= 1;
        m += m;
    }
    logarithm_of(m + -1., e as f32)
}

/// An exponentially distributed number from 32 random bits: -ln(1 - v), accurate for small v, too.
fn exponentially(random: u32) -> f32 {
    let v = random as f32 * 2f32.powi(-32) + 2f32.powi(-33);
    if v < 0.25 {
        return -logarithm_of(-v, 0.);
    }
    let rest = 1. - v;
    match rest > 0. {
        true => -logarithm(rest),
        false => f32::INFINITY,
    }
}

/// Philox4x32-10 of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011.
pub(in crate::ops) fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    let product = |a: u32, b: u32| {
        let product = u64::from(a) * u64::from(b);
        ((product >> 32) as u32, product as u32)
    };
    for _ in 0..10 {
        let (a, b) = product(0xD251_1F53, counter[0]);
        let (c, d) = product(0xCD9E_8D57, counter[2]);
        counter = [c ^ counter[1] ^ key[0], d, a ^ counter[3] ^ key[1], b];
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    counter
}

/// [`mark_seen`](super::mark_seen) on contiguous tensors.
pub(super) struct Mark;

impl InplaceOp2 for Mark {
    fn name(&self) -> &'static str {
        "mark_seen"
    }

    fn cpu_fwd(&self, seen: &mut CpuStorage, sl: &Layout, tokens: &CpuStorage, tl: &Layout) -> Result<()> {
        let (CpuStorage::U8(seen), CpuStorage::U32(tokens)) = (seen, tokens) else { bail!("u8 is marked by u32") };
        let (rows, vocab) = sl.shape().dims2()?;
        let rows = seen[sl.start_offset()..].chunks_exact_mut(vocab.max(1)).take(rows);
        for (row, token) in rows.zip(&tokens[tl.start_offset()..]) {
            if let Some(mark) = row.get_mut(*token as usize) {
                *mark = 1;
            }
        }
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        seen: &mut candle::CudaStorage,
        sl: &Layout,
        tokens: &candle::CudaStorage,
        tl: &Layout,
    ) -> Result<()> {
        super::cuda::mark(seen, sl, tokens, tl)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers of the authors' library, `kat_vectors` of Random123.
    #[test]
    fn philox_gives_the_known_answers() {
        let ones = u32::MAX;
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(philox([ones; 4], [ones; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
    }

    #[test]
    fn exponential_and_logarithm_are_exact_to_a_few_roundings() {
        for i in 0..200_000 {
            let x = -(i as f32) * 4e-4;
            let (got, expected) = (f64::from(exponential(x)), f64::from(x).exp());
            assert!((got - expected).abs() <= 2e-7 * expected, "e^{x}: {got} for {expected}");
            let y = (1 + i) as f32 * 1e-4;
            let (got, expected) = (f64::from(logarithm(y)), f64::from(y).ln());
            assert!((got - expected).abs() <= 2e-7 * expected.abs().max(1.), "ln {y}: {got} for {expected}");
        }
        assert_eq!((exponential(0.), exponential(f32::NEG_INFINITY), logarithm(1.)), (1., 0., 0.));
    }

    #[test]
    fn exponentially_distributed_numbers_go_from_the_smallest_to_infinity() {
        let first = exponentially(0);
        assert!(first > 0. && first < 2e-10, "{first}");
        let numbers: Vec<f32> = (0..=1000u32).map(|i| exponentially(i * 4_294_967)).collect();
        assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]));
        assert!((exponentially(1 << 31) - std::f32::consts::LN_2).abs() < 1e-6);
        assert!(exponentially(u32::MAX) > 16.);
    }
}
