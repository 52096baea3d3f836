//! Rotary position embeddings: how far each pair of a head's elements turns at a position.

use std::f64::consts::TAU;

use candle::{Device, Tensor};

use super::error::{DecoderError, Result};

/// One kind of rotary embedding (Su et al., "RoFormer", 2021): pair `i` of `dim / 2` turns by `position * theta^(-2 i / dim)`.
/// The pairs are elements `i` and `i + dim / 2` of a head; what a head has beyond `dim` elements is left as it is.
#[derive(Debug, Clone, PartialEq)]
pub struct Rotary {
    /// The base.
    pub theta: f64,
    /// Elements of a head that turn.
    pub dim: usize,
    /// How a longer context than that of training changes the frequencies.
    pub scaling: Scaling,
}

/// Changes of rotary frequencies.
#[derive(Debug, Clone, PartialEq)]
pub enum Scaling {
    /// None.
    Default,
    /// Every frequency is divided by this.
    Linear(f64),
    /// Frequency `i` is divided by number `i`: what GGUF files store of Llama 3's.
    Factors(Vec<f64>),
    /// Llama 3's: long waves are divided by `factor`, short ones stay, and those between are blended.
    Llama3 {
        /// Of long waves.
        factor: f64,
        /// Waves longer than `original / low` are long.
        low: f64,
        /// Waves shorter than `original / high` are short.
        high: f64,
        /// Tokens of the context in training.
        original: f64,
    },
    /// Phi-3's (Ding et al., "LongRoPE", 2024): each frequency is divided by a number of its own, of which there are two lists.
    LongRope {
        /// Divisors for contexts as in training.
        short: Vec<f64>,
        /// Divisors for longer ones.
        long: Vec<f64>,
        /// Tokens of the context in training.
        original: usize,
        /// What cosines and sines are multiplied by.
        magnitude: f64,
    },
}

impl Scaling {
    /// LongRoPE's magnitude for a context that is `factor` times as long as in training.
    pub(super) fn long_rope_magnitude(factor: f64, original: usize) -> f64 {
        match factor <= 1. {
            true => 1.,
            false => (1. + factor.ln() / (original as f64).ln()).sqrt(),
        }
    }
}

impl Rotary {
    /// Fails on numbers that no embedding of heads of `head_dim` elements can have.
    pub(super) fn check(&self, head_dim: usize) -> Result<()> {
        let Self { theta, dim, scaling } = self;
        if *dim > head_dim || !dim.is_multiple_of(2) || *dim == 0 {
            return Err(DecoderError::config(format!("{dim} elements of a head of {head_dim} cannot turn in pairs")));
        }
        if !(1. ..=1e15).contains(theta) {
            return Err(DecoderError::config(format!("the base of rotary embeddings (`rope_theta`) is {theta}")));
        }
        let (divisors, lists) = match scaling {
            Scaling::Default => (vec![], vec![]),
            Scaling::Linear(factor) => (vec![*factor], vec![]),
            Scaling::Factors(factors) => (factors.clone(), vec![factors]),
            Scaling::Llama3 { factor, low, high, original } => {
                if low >= high {
                    let reason =
                        format!("`low_freq_factor` is {low}, and `high_freq_factor`, which must be more, is {high}");
                    return Err(DecoderError::config(reason));
                }
                (vec![*factor, *low, *high, *original], vec![])
            }
            Scaling::LongRope { short, long, magnitude, .. } => {
                ([short.as_slice(), long, &[*magnitude]].concat(), vec![short, long])
            }
        };
        if let Some(list) = lists.into_iter().find(|list| list.len() != dim / 2) {
            let reason = format!("{} rotary factors, where {} pairs of elements turn", list.len(), dim / 2);
            return Err(DecoderError::config(reason));
        }
        match divisors.into_iter().find(|divisor| !(1e-6..=1e9).contains(divisor)) {
            Some(divisor) => Err(DecoderError::config(format!("a factor of rotary embeddings is {divisor}"))),
            None => Ok(()),
        }
    }

    /// Turns per position of each pair, in radians, and what cosines and sines are multiplied by, for texts of up to `context`
    /// tokens.
    ///
    /// LongRoPE's two lists make different keys, so a cache cannot change from one to the other in the middle of a text: the
    /// longest text decides.
    fn frequencies(&self, context: usize) -> (Vec<f64>, f64) {
        let plain = (0..self.dim / 2).map(|i| self.theta.powf(-2. * i as f64 / self.dim as f64));
        let divided = |by: &[f64]| plain.clone().zip(by).map(|(frequency, by)| frequency / by).collect();
        match &self.scaling {
            Scaling::Default => (plain.collect(), 1.),
            Scaling::Linear(factor) => (plain.map(|frequency| frequency / factor).collect(), 1.),
            Scaling::Factors(factors) => (divided(factors), 1.),
            Scaling::Llama3 { factor, low, high, original } => {
                let scaled = |frequency: f64| {
                    // The share of the plain frequency: all of it in short waves, nothing in long ones.
                    let share = (original * frequency / TAU - low) / (high - low);
                    let share = share.clamp(0., 1.);
                    (1. - share) * frequency / factor + share * frequency
                };
                (plain.map(scaled).collect(), 1.)
            }
            Scaling::LongRope { short, long, original, magnitude } => {
                (divided(if context > *original { long } else { short }), *magnitude)
            }
        }
    }

    /// `(positions, dim)` in f32: the cosines of all pairs, and behind them the sines, for texts of up to `context` tokens.
    ///
    /// # Errors
    /// No memory left.
    pub fn table(&self, positions: usize, context: usize, device: &Device) -> candle::Result<Tensor> {
        let (frequencies, magnitude) = self.frequencies(context);
        // As transformers computes them: frequencies and angles in f32.
        let frequencies: Vec<f32> = frequencies.into_iter().map(|frequency| frequency as f32).collect();
        let mut table = Vec::with_capacity(positions * self.dim);
        for position in 0..positions {
            let angles = frequencies.iter().map(|frequency| position as f32 * frequency);
            table.extend(angles.clone().map(|angle| angle.cos() * magnitude as f32));
            table.extend(angles.map(|angle| angle.sin() * magnitude as f32));
        }
        Tensor::from_vec(table, (positions, 2 * frequencies.len()), device)
    }
}
