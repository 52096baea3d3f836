//! How many parts of prompts are read at once.

use opara_candle::ops::PAGE;

use super::text_model::TextModel;

/// How many parts of prompts are read at once.
#[derive(Clone, Copy)]
pub(super) struct Parts {
    /// So many always, where further ones would change bits.
    pub together: usize,
    /// Up to so many where that gives the same bits: a power of two, for which products are alike.
    pub alike: usize,
}

impl Parts {
    /// Of a model with so many slots: `prompts` together, or up to `most`.
    pub fn of(model: &impl TextModel, slots: usize, prompts: usize, most: usize) -> Self {
        let together = prompts.clamp(1, slots.max(1));
        let of_text = model.pages().map_or(1, |pages| (pages * PAGE).div_ceil(model.part().max(1)));
        // No more than all texts have.
        let most = if model.device().is_cuda() && model.pages().is_some() { most.min(slots * of_text) } else { 1 };
        Self { together, alike: 1 << most.max(1).ilog2() }
    }

    /// The most of both.
    pub fn at_once(self) -> usize {
        self.together.max(self.alike)
    }
}
