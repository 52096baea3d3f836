//! Which texts have pages: those that came first. Where none is left, the text that came last waits on the host.

use super::error::Result;
use super::pages::Held;
use super::seat::Aside;
use super::sequence::Sequence;
use super::text_model::TextModel;
use super::Engine;
use opara_candle::ops::PAGE;

/// Pages that a text gets at a time at most: until all are used up, the host need not stop the steps that it has enqueued.
const AHEAD: usize = 8;

impl<M: TextModel> Engine<M> {
    /// Begins to read a slot's prompt, if there are pages for all of it. What other prompts have read of the same beginning is not read
    /// again.
    pub(super) fn begin(&mut self, slot: usize) -> bool {
        let part = self.graphs.model.part();
        let Some(sequence) = self.seats[slot].sequence.as_mut() else { return false };
        if sequence.held.is_some() {
            return true;
        }
        if self.graphs.model.pages().is_none() {
            sequence.begin(self.pages.none(0), 0);
            return true;
        }
        // Texts that wait on the host came before.
        if !self.aside.is_empty() {
            return false;
        }
        let others = self.growing();
        let Some(sequence) = self.seats[slot].sequence.as_mut() else { return false };
        let request = &sequence.request;
        // The last token is always read, since the first new one follows from it. What has likelihoods is read, too. Parts are the same
        // whatever is shared: how a prompt is divided is seen in its roundings.
        let known = match request.prompt_alternatives {
            None => &request.prompt[..request.prompt.len() - 1],
            Some(_) => &[],
        };
        let multiple = if part.is_multiple_of(PAGE) { part / PAGE } else { usize::MAX };
        let mut held = self.pages.shared(request.tenant, known, multiple);
        let shared = held.places();
        let is_there = held.grow(sequence.first, others);
        if is_there {
            sequence.begin(held, shared);
        }
        is_there
    }

    /// Gives each text that writes a place for its next token, or sets it aside, and some more as far as there are pages: how many
    /// tokens can be added to each.
    pub(super) fn make_room(&mut self) -> Result<usize> {
        if self.graphs.model.pages().is_none() {
            return Ok(usize::MAX);
        }
        for slot in self.by_age(|sequence| sequence.writes()) {
            while let Some(sequence) = self.seats[slot].sequence.as_mut() {
                let place = sequence.place();
                let Some(held) = &mut sequence.held else { break };
                if held.places() > place {
                    break;
                }
                self.has_other_pages = true;
                if held.grow(place + 1, 0) {
                    break;
                }
                let Some(last) = self.by_age(|sequence| sequence.held.is_some()).pop() else { break };
                self.set_aside(last)?;
            }
        }
        let (writing, mut room) = (self.by_age(|sequence| sequence.writes()), usize::MAX);
        // Where others wait, half of what is free goes to these texts at most.
        let waits = !self.aside.is_empty() || !self.by_age(|sequence| sequence.held.is_none()).is_empty();
        let most = if waits { self.pages.free() / 2 } else { self.pages.free() };
        let ahead = (most / writing.len().max(1)).clamp(1, AHEAD);
        for slot in writing {
            let Some(sequence) = self.seats[slot].sequence.as_mut() else { continue };
            let place = sequence.place();
            let [enough, more] = [1, ahead].map(|pages| (place + pages * PAGE).min(sequence.places()));
            let Some(held) = &mut sequence.held else { continue };
            if held.places() < enough {
                self.has_other_pages |= held.grow(more, 0) || held.grow(enough, 0);
            }
            // Where all places are there, the text ends with them.
            room = room.min(held.places() - place);
        }
        Ok(room)
    }

    /// Texts under way that need more pages than they have: one each is left for them.
    fn growing(&self) -> usize {
        let is_growing =
            |sequence: &Sequence| sequence.held.as_ref().is_some_and(|held| held.places() < sequence.places());
        self.by_age(is_growing).len()
    }

    /// Slots of the texts for which this holds, those that came first before others.
    pub(super) fn by_age(&self, of: impl Fn(&Sequence) -> bool) -> Vec<usize> {
        let texts = self.seats.iter().enumerate().filter_map(|(slot, seat)| Some((seat.sequence.as_ref()?, slot)));
        let mut slots: Vec<_> = texts.filter(|(text, _)| of(text)).map(|(text, slot)| (text.number, slot)).collect();
        slots.sort_unstable();
        slots.into_iter().map(|(_, slot)| slot).collect()
    }

    fn set_aside(&mut self, slot: usize) -> Result<()> {
        let seat = &mut self.seats[slot].sequence;
        let Some(held) = seat.as_ref().and_then(|sequence| sequence.held.as_ref()) else { return Ok(()) };
        let written = seat.as_ref().map_or(0, Sequence::written_places).div_ceil(PAGE);
        let copies = match written {
            0 => Vec::new(),
            _ => self.graphs.slots.memory.on_host(&held.ids()[..written])?,
        };
        if let Some(mut sequence) = seat.take() {
            sequence.held = None;
            self.aside.push(Aside { sequence, copies });
        }
        self.has_changed = true;
        Ok(())
    }

    /// Texts that were set aside go on, as far as there are pages for them, and for what others write meanwhile.
    pub(super) fn bring_back(&mut self) -> Result<()> {
        while let Some(first) = (0..self.aside.len()).min_by_key(|at| self.aside[*at].sequence.number) {
            let Some(slot) = self.seats.iter().position(|seat| seat.is_free()) else { break };
            let sequence = &self.aside[first].sequence;
            let others = self.growing();
            let places = if sequence.writes() { sequence.place() + 1 } else { sequence.first };
            let mut held: Held = self.pages.none(sequence.request.tenant);
            if !held.grow(places, if others > 0 { others + 1 } else { 0 }) {
                break;
            }
            let Aside { mut sequence, copies, .. } = self.aside.swap_remove(first);
            self.has_changed = true;
            let restored = self.graphs.slots.memory.restore(held.ids(), &copies);
            sequence.held = Some(held);
            // In its slot before anything fails: all texts there are told.
            let sequence = self.seats[slot].sequence.insert(sequence);
            restored?;
            if sequence.writes() {
                self.graphs.weigh(slot, sequence)?;
            }
        }
        Ok(())
    }
}
