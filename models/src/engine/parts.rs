//! How many parts of prompts are read at once.

use opara_candle::ops::PAGE;

use super::text_model::TextModel;

/// How many parts of prompts are read at once.
#[derive(Clone, Copy)]
pub(super) struct Parts {
    /// Parts that are always read together, where another number would change bits.
    pub together: usize,
    /// The most parts that are read together where the number changes no bit: a power of two, for which products are alike.
    pub alike: usize,
}

impl Parts {
    /// The numbers for a model with `slots` slots: `parts` together, or up to `most`.
    pub fn of(model: &impl TextModel, slots: usize, parts: usize, most: usize) -> Self {
        let together = parts.clamp(1, slots.max(1));
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
