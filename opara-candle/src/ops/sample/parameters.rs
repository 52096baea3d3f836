//! Parameters of sampling, and their rows on a device.

use candle::{bail, DType, Device, Result, Tensor};

/// Words of a row of parameters.
pub(super) const WORDS: usize = 8;
/// The word that says whether the row bars tokens.
pub(super) const BARS: usize = 7;

/// The bit of a mark that [`mark_seen`](super::mark_seen) sets.
pub const SEEN: u8 = 1;
/// The bit of a mark of a token that rows which [bar](Sampler::barring) tokens do not draw.
pub const BARRED: u8 = 2;

/// Stands for the token of a row from which [`sample`](super::sample) can draw none. No vocabulary has it, and embeddings give zeros
/// for it.
pub const NO_TOKEN: u32 = u32::MAX;

/// Parameters of sampling for one text. Default: always the most likely token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    /// Divides the logits: at least 0.001, or 0 for the most likely token.
    pub temperature: f32,
    /// Number of most likely tokens to draw from; 0 for all.
    pub top_k: u32,
    /// Draws from the most likely tokens that together have this probability: above 0, up to 1 for all.
    pub top_p: f32,
    /// Draws from tokens whose probability is at least this fraction of the most likely one's: from 0 for all, up to 1.
    pub min_p: f32,
    /// Divides positive logits of earlier tokens, and multiplies negative ones: above 0; 1 changes nothing.
    pub repetition_penalty: f32,
    /// The same seed draws the same text.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Self { temperature: 0., top_k: 0, top_p: 1., min_p: 0., repetition_penalty: 1., seed: 0 }
    }
}

impl Sampling {
    /// Bits as the kernels read them.
    fn words(&self) -> Result<[u32; WORDS]> {
        let Self { temperature, top_k, top_p, min_p, repetition_penalty, seed } = *self;
        /// The least temperature above 0.
        const COLDEST: f32 = 1e-3;
        let temperature_fits = temperature == 0. || (COLDEST..f32::INFINITY).contains(&temperature);
        let others_fit = top_p > 0. && top_p <= 1. && (0. ..=1.).contains(&min_p);
        let penalty_fits = repetition_penalty > 0. && repetition_penalty.is_finite();
        if !(temperature_fits && others_fit && penalty_fits) {
            bail!(
                "{self:?} is out of range: the temperature must be 0 or at least {COLDEST}, top-p above 0 and at most 1, min-p \
                 from 0 to 1, and the repetition penalty above 0"
            )
        }
        let bits = [temperature, top_p, min_p, repetition_penalty].map(|x| (x + 0.).to_bits());
        Ok([bits[0], top_k, bits[1], bits[2], bits[3], seed as u32, (seed >> 32) as u32, 0])
    }
}

/// The [`Sampling`] of each row of a batch, on the device. A recorded pass reads it at every call.
#[derive(Debug, Clone)]
pub struct Sampler(Tensor);

impl Sampler {
    /// Parameters for these rows, in this order.
    ///
    /// # Errors
    /// Parameters that are out of range, or no memory.
    pub fn new(rows: &[Sampling], device: &Device) -> Result<Self> {
        Self::barring(rows, &vec![false; rows.len()], device)
    }

    /// The same, where rows for which `bars` is true draw no token that `seen` marks with [`BARRED`].
    ///
    /// # Errors
    /// Parameters that are out of range, another number of rows in `bars`, or no memory.
    pub fn barring(rows: &[Sampling], bars: &[bool], device: &Device) -> Result<Self> {
        if rows.len() != bars.len() {
            bail!("{} rows of parameters, and {} that say whether tokens are barred", rows.len(), bars.len())
        }
        let words = rows.iter().zip(bars).map(|(row, bars)| {
            let mut words = row.words()?;
            words[BARS] = u32::from(*bars);
            Ok(words)
        });
        let words = words.collect::<Result<Vec<_>>>()?.concat();
        Ok(Self(Tensor::from_vec(words, (rows.len(), WORDS), device)?))
    }

    /// A sampler with these [`parameters`](Self::parameters).
    ///
    /// # Errors
    /// A tensor of another shape or dtype.
    pub fn of(parameters: Tensor) -> Result<Self> {
        if parameters.dtype() != DType::U32 || parameters.rank() != 2 || parameters.dim(1)? != WORDS {
            bail!("parameters are (rows, {WORDS}) of u32, not {:?} {:?}", parameters.dtype(), parameters.dims())
        }
        Ok(Self(parameters))
    }

    /// The tensor on the device, `(rows, 8)` of u32. As a part of a [`StepState`](crate::StepState) it gives each state its own
    /// parameters.
    pub fn parameters(&self) -> &Tensor {
        &self.0
    }

    /// Other parameters for one row, from the next call on.
    ///
    /// # Errors
    /// Parameters that are out of range, or a row that does not exist.
    pub fn set(&self, row: usize, sampling: &Sampling) -> Result<()> {
        let words = Tensor::new(&[sampling.words()?], self.0.device())?;
        self.0.slice_set(&words, 0, row)
    }
}
