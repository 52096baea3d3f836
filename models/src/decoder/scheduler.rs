//! Continuous batching: sequences join a batch and leave it at every step (Yu et al., "Orca", 2022).

use std::sync::Arc;

use opara_candle::ops::NO_TOKEN;
use opara_candle::Builder;

use super::cache::CHUNK;
use super::engine::Engine;
use super::error::{DecoderError, Result};
use super::sequence::{End, Listener, Request, Sequence, Terms};
use super::slots::{Part, Slot};
use super::Decoder;

/// Writes texts for requests that come and go, each in a slot of one batch.
///
/// Prompts are read by parts, between the steps that add a token to every other sequence. What a sequence writes does not depend on
/// the others, nor on what its slot was used for before. Whole parts of a prompt that some slot has read already, for the same tokens
/// from the beginning on, are copied instead of read.
///
/// ```
/// # use std::sync::{mpsc, Arc};
/// # use candle::{DType, Device::Cpu};
/// use opara_models::decoder::{Config, Decoder, End, Listener, Request, Scheduler};
///
/// struct Printed(mpsc::Sender<u32>);
///
/// impl Listener for Printed {
///     fn token(&mut self, token: u32) -> bool {
///         self.0.send(token).is_ok() // false, where the receiver was dropped, cancels
///     }
///     fn end(&mut self, _: End) {}
/// }
///
/// let model = Decoder::load(opara_weights::seeded(7, DType::F32, &Cpu), &Config::tiny(), 64)?;
/// let mut scheduler = Scheduler::new(Arc::new(model), 4, None)?; // four at once, without executors
/// let (sender, tokens) = mpsc::channel();
/// scheduler.join(Request { prompt: vec![5, 6, 7], most: 10, ..Request::default() }, Box::new(Printed(sender)))?;
/// while scheduler.live() > 0 {
///     scheduler.turn(|| false)?;
/// }
/// assert_eq!(tokens.iter().count(), 10);
/// # Ok::<(), opara_models::decoder::DecoderError>(())
/// ```
pub struct Scheduler {
    engine: Engine,
    seats: Vec<Seat>,
    /// Sequences that have joined so far.
    joined: u64,
    /// Whether the slots on the device are not as the host knows them.
    has_changed: bool,
}

/// A slot as the host sees it.
#[derive(Default)]
struct Seat {
    sequence: Option<Sequence>,
    /// Tokens whose keys and values are in the slot, whole parts of a prompt as they were read.
    kept: Vec<u32>,
    /// Whose these tokens are.
    tenant: u64,
    /// The [`Sequence::number`] of the latest one.
    used: u64,
}

impl Seat {
    fn is_free(&self) -> bool {
        self.sequence.is_none()
    }

    /// How many tokens of a tenant's prompt need not be read. The last one always is, since the first new token follows from it.
    fn cached(&self, prompt: &[u32], tenant: u64) -> usize {
        if self.tenant != tenant {
            return 0;
        }
        let same = self.kept.iter().zip(&prompt[..prompt.len().saturating_sub(1)]).take_while(|(a, b)| a == b).count();
        same / CHUNK * CHUNK
    }

    fn on_device(&self) -> Slot {
        let kept = Slot { position: self.kept.len() as u32, ..Slot::default() };
        self.sequence.as_ref().map_or(kept, Sequence::on_device)
    }
}

impl Scheduler {
    /// For so many sequences at once, by executors with these settings, or eagerly.
    ///
    /// On a GPU a step of 2 to 8 slots gives a sequence the same bits, however many there are. A step of more slots gives it bits that
    /// depend on their number, not on the other sequences: texts may differ by a rounding while more than eight slots are in use. So do
    /// those of a scheduler of one slot.
    ///
    /// # Errors
    /// No memory left; those of the executors.
    pub fn new(model: Arc<Decoder>, slots: usize, builder: Option<&Builder>) -> Result<Self> {
        let engine = Engine::new(model, slots.max(1), builder)?;
        let seats = std::iter::repeat_with(Seat::default).take(engine.slots()).collect();
        Ok(Self { engine, seats, joined: 0, has_changed: true })
    }

    /// The model.
    pub fn model(&self) -> &Arc<Decoder> {
        &self.engine.model
    }

    /// Sequences that are under way.
    pub fn live(&self) -> usize {
        self.seats.iter().filter(|seat| !seat.is_free()).count()
    }

    /// Sequences that may join.
    pub fn free(&self) -> usize {
        self.seats.len() - self.live()
    }

    /// Why graphs were not built though executors were asked for; one reason for each.
    pub fn eager(&self) -> Vec<String> {
        self.engine.eager()
    }

    /// Gives a request a slot.
    ///
    /// # Errors
    /// Those of [`Request::check`]; [`DecoderError::NoSlot`] where none is [free](Self::free); those of the device.
    pub fn join(&mut self, request: Request, listener: Box<dyn Listener>) -> Result<()> {
        self.join_on(Terms::default(), request, listener)
    }

    /// Gives a request a slot, on these terms.
    ///
    /// # Errors
    /// As for [`join`](Self::join).
    pub fn join_on(&mut self, terms: Terms, request: Request, mut listener: Box<dyn Listener>) -> Result<()> {
        request.check(&self.engine.model)?;
        let (slot, cached) = self.seat(&request.prompt, terms.tenant)?;
        self.joined += 1;
        self.has_changed = true;
        let seat = &mut self.seats[slot];
        (seat.used, seat.tenant, seat.kept) = (self.joined, terms.tenant, request.prompt[..cached].to_vec());
        listener.begin(cached);
        if request.most == 0 {
            listener.end(End::Length);
            return Ok(());
        }
        seat.sequence = Some(Sequence::new(request, terms, listener, self.joined, cached));
        Ok(())
    }

    /// A free slot for a tenant's prompt, and how many of its tokens are in there.
    fn seat(&mut self, prompt: &[u32], tenant: u64) -> Result<(usize, usize)> {
        let bucket = self.engine.bucket((self.live() + 1).min(self.seats.len()));
        let fits = |slot: usize, seat: &Seat| slot < bucket && seat.is_free();
        let cached = |seat: &Seat| seat.cached(prompt, tenant);
        let best = self.seats.iter().enumerate().max_by_key(|(slot, seat)| (cached(seat), fits(*slot, seat)));
        let (from, cached) = best.map_or((0, 0), |(slot, seat)| (slot, cached(seat)));
        if cached > 0 && fits(from, &self.seats[from]) {
            return Ok((from, cached));
        }
        // What was used last may be asked for again.
        let free = self.seats.iter().enumerate().filter(|(slot, seat)| fits(*slot, seat));
        let (slot, _) =
            free.min_by_key(|(_, seat)| seat.used).ok_or(DecoderError::NoSlot { slots: self.seats.len() })?;
        if cached > 0 {
            self.engine.copy(from, slot)?;
        }
        Ok((slot, cached))
    }

    /// Reads a part of one prompt, if there is one to read, and adds tokens to all other sequences: one each while prompts are
    /// read, else as many as the first one to end needs. Ends before that where a slot is free and `is_awaited` says that a
    /// request wants it; asked after each step.
    ///
    /// # Errors
    /// Those of the device and of the executors: then all sequences have failed, and others may join.
    pub fn turn(&mut self, is_awaited: impl FnMut() -> bool) -> Result<()> {
        let result = self.read_and_write(is_awaited);
        if let Err(error) = &result {
            self.fail(&error.to_string());
        }
        result
    }

    /// Ends all sequences, as failed for this reason, and forgets what was read. Others may join.
    pub fn fail(&mut self, reason: &str) {
        self.has_changed = true;
        for seat in &mut self.seats {
            seat.kept.clear();
            if let Some(mut sequence) = seat.sequence.take() {
                sequence.listener.end(End::Failed(reason.to_owned()));
            }
        }
    }

    fn read_and_write(&mut self, is_awaited: impl FnMut() -> bool) -> Result<()> {
        self.dismiss();
        self.close_up()?;
        self.read()?;
        self.write(is_awaited)
    }

    /// Frees the slots of prompts whose listeners are gone.
    fn dismiss(&mut self) {
        let is_gone = |sequence: &mut Sequence| !sequence.writes() && sequence.listener.is_gone();
        for seat in &mut self.seats {
            self.has_changed |= seat.sequence.take_if(is_gone).is_some();
        }
    }

    /// Moves sequences to lower slots where that makes the batch smaller.
    fn close_up(&mut self) -> Result<()> {
        while let Some(last) = self.seats.iter().rposition(|seat| !seat.is_free()) {
            let free = self.seats.iter().position(Seat::is_free);
            let Some(free) = free.filter(|_| self.engine.bucket(self.live()) < self.engine.bucket(last + 1)) else {
                break;
            };
            self.engine.copy(last, free)?;
            self.seats.swap(last, free);
            // The slot behind has what it had.
            (self.seats[last].kept, self.seats[last].tenant) = (self.seats[free].kept.clone(), self.seats[free].tenant);
            self.has_changed = true;
        }
        Ok(())
    }

    /// Reads a part of the prompt that came first.
    fn read(&mut self) -> Result<()> {
        let reading = self.seats.iter_mut().enumerate().filter_map(|(slot, seat)| {
            let Seat { sequence, kept, .. } = seat;
            let reading = sequence.as_ref().filter(|sequence| !sequence.writes())?.number;
            Some((reading, slot, sequence, kept))
        });
        let Some((_, slot, place, kept)) = reading.min_by_key(|(number, ..)| *number) else { return Ok(()) };
        let Some(sequence) = place else { return Ok(()) };
        let (prompt, start) = (&sequence.request.prompt, sequence.read);
        let tokens = &prompt[start..prompt.len().min(start + CHUNK)];
        let is_last = start + tokens.len() == prompt.len();
        let bars = is_last && sequence.bars_ends();
        let needs_marks = is_last && sequence.has_penalty() || bars;
        let barred = if bars { &sequence.request.ends[..] } else { &[] };
        let marks = needs_marks.then(|| self.engine.marks(prompt.iter().copied(), barred)).transpose()?;
        let seen = marks.as_ref().unwrap_or(self.engine.none_seen());
        let part = Part { tokens, start, sampling: sequence.request.sampling, bars, seen };
        let token = self.engine.read(slot, &part)?;
        if tokens.len() == CHUNK {
            kept.extend_from_slice(tokens);
        }
        sequence.read += tokens.len();
        self.has_changed = true;
        if is_last {
            let token = token.to_vec1::<u32>()?[0];
            if needs_marks && token != NO_TOKEN {
                self.engine.set_seen(slot, &self.engine.marks(prompt.iter().copied().chain([token]), barred)?)?;
            }
            if sequence.take(token) {
                *place = None;
            }
        }
        Ok(())
    }

    /// Adds tokens to the sequences whose prompts were read.
    fn write(&mut self, mut is_awaited: impl FnMut() -> bool) -> Result<()> {
        let (mut writing, mut left, mut reads) = (Vec::new(), usize::MAX, false);
        for (slot, seat) in self.seats.iter().enumerate() {
            match &seat.sequence {
                Some(sequence) if sequence.writes() => {
                    writing.push(slot);
                    left = left.min(sequence.left());
                }
                Some(_) => reads = true,
                None => {}
            }
        }
        let Some(last) = writing.last() else { return Ok(()) };
        let bucket = self.engine.bucket(last + 1);
        if self.has_changed {
            self.engine.upload(&self.seats.iter().map(Seat::on_device).collect::<Vec<_>>())?;
            self.has_changed = false;
        }
        let has_room = self.free() > 0;
        let Self { engine, seats, has_changed, .. } = self;
        engine.write(bucket, if reads { 1 } else { left }, |tokens| {
            for &slot in &writing {
                let sequence = &mut seats[slot].sequence;
                let barred = sequence.as_ref().is_some_and(Sequence::bars_ends);
                *has_changed |= sequence.take_if(|sequence| sequence.take(tokens[slot])).is_some();
                *has_changed |= barred && sequence.as_ref().is_some_and(|sequence| !sequence.bars_ends());
            }
            !(*has_changed || has_room && is_awaited())
        })
    }
}
