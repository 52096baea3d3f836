//! A slot as the host sees it, and a text that has none.

use candle::Tensor;

use super::error::Result;
use super::graphs::Graphs;
use super::reading::Reading;
use super::sequence::Sequence;
use super::slots::Slot;
use super::text_model::TextModel;

/// A slot as the host sees it.
#[derive(Default)]
pub(super) struct Seat {
    pub sequence: Option<Sequence>,
}

/// A text that waits on the host for pages.
pub(super) struct Aside {
    pub sequence: Sequence,
    /// What its first pages had.
    pub copies: Vec<Tensor>,
}

impl Seat {
    pub fn is_free(&self) -> bool {
        self.sequence.is_none()
    }

    /// The text whose prompt is being read, or waits for that.
    pub fn reading(&self) -> Option<&Sequence> {
        self.sequence.as_ref().filter(|sequence| !sequence.writes())
    }

    /// The text that writes.
    pub fn writing(&self) -> Option<&Sequence> {
        self.sequence.as_ref().filter(|sequence| sequence.writes())
    }

    pub fn on_device(&self) -> Slot<'_> {
        self.sequence.as_ref().map_or_else(Slot::default, Sequence::on_device)
    }

    /// The part of the prompt behind the next `ahead` tokens, as it is read into the slot.
    pub fn next<M: TextModel>(&self, ahead: usize, graphs: &Graphs<M>) -> Result<Reading<'_>> {
        let Some(sequence) = self.reading().filter(|sequence| sequence.held.is_some()) else {
            // What a text has at its next position is written again before it is read.
            return Ok(Reading { start: self.on_device().position as usize, ..Reading::default() });
        };
        let (tokens, is_last) = sequence.part(ahead, graphs.model.part());
        let seen = (is_last && sequence.has_marks()).then(|| graphs.marks(sequence)).transpose()?;
        let bias = (is_last && sequence.has_bias()).then(|| graphs.bias(sequence)).transpose()?;
        Ok(Reading {
            tokens,
            is_last,
            start: sequence.read + ahead,
            pages: sequence.pages(),
            position: sequence.first - 1,
            sampling: sequence.request.sampling,
            bars: is_last && sequence.bars(),
            seen,
            bias,
        })
    }
}
