//! Which elements become zeros.

/// Which elements a [`dropout`](super::dropout) zeroes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dropout {
    /// The part that becomes zeros: at least 0, and less than 1.
    pub part: f32,
    /// Of all random numbers.
    pub seed: u64,
    /// A number of its own for each place in the module.
    pub site: u32,
}

impl Dropout {
    /// Elements with a smaller random number become zeros.
    pub(super) fn below(self) -> u32 {
        (f64::from(self.part) * 4_294_967_296.) as u32
    }

    /// The factor of the elements that stay.
    pub(super) fn factor(self) -> f32 {
        1. / (1. - self.part)
    }

    pub(super) fn seed_words(self) -> [u32; 2] {
        [self.seed as u32, (self.seed >> 32) as u32]
    }
}
