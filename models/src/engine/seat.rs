//! A slot as the host sees it.

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
    /// Tokens that the slot's memory is of, whole parts of a prompt as they were read.
    pub kept: Vec<u32>,
    /// Whose these tokens are.
    pub tenant: u64,
    /// The [`Sequence::number`] of the latest one.
    pub used: u64,
}

impl Seat {
    pub fn is_free(&self) -> bool {
        self.sequence.is_none()
    }

    /// The text whose prompt is being read.
    pub fn reading(&self) -> Option<&Sequence> {
        self.sequence.as_ref().filter(|sequence| !sequence.writes())
    }

    /// How many tokens of a tenant's prompt need not be read. The last one always is, since the first new token follows from it.
    pub fn cached(&self, prompt: &[u32], tenant: u64, part: usize) -> usize {
        if self.tenant != tenant {
            return 0;
        }
        let same = self.kept.iter().zip(&prompt[..prompt.len().saturating_sub(1)]).take_while(|(a, b)| a == b).count();
        same / part * part
    }

    pub fn on_device(&self) -> Slot {
        let kept = Slot { position: self.kept.len() as u32, ..Slot::default() };
        self.sequence.as_ref().map_or(kept, Sequence::on_device)
    }

    /// The part of the prompt that is read into the slot next.
    pub fn next<M: TextModel>(&self, graphs: &Graphs<M>) -> Result<Reading<'_>> {
        let Some(sequence) = self.reading() else { return Ok(Reading::none(self.on_device())) };
        let (tokens, is_last) = sequence.part(graphs.model.part());
        let seen = (is_last && sequence.has_marks()).then(|| graphs.marks(sequence)).transpose()?;
        let bias = (is_last && sequence.has_bias()).then(|| graphs.bias(sequence)).transpose()?;
        Ok(Reading {
            tokens,
            start: sequence.read,
            position: sequence.first - 1,
            sampling: sequence.request.sampling,
            bars: is_last && sequence.bars(),
            seen,
            bias,
        })
    }
}
