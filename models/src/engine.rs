//! Texts, written by continuous batching: they join a batch and leave it at every step (Yu et al., "Orca", 2022).
//!
//! An [`Engine`] writes with any [`TextModel`]: the [decoders](crate::decoder::Decoder), and [T5](crate::t5::Texts).

mod error;
mod generate;
mod graphs;
mod likelihoods;
mod reading;
mod seat;
mod sequence;
mod slots;
mod text_model;

use std::sync::Arc;

use candle::Tensor;
use opara_candle::{Builder, Mode, Report};

pub use self::error::{Result, TextError};
pub use self::likelihoods::Likelihoods;
pub use self::sequence::{End, Guidance, Listener, Request};
pub use self::text_model::{Part, TextModel};
/// How a text's tokens are drawn.
pub use opara_candle::ops::Sampling;

use self::graphs::Graphs;
use self::likelihoods::of_rows;
use self::reading::Reading;
use self::seat::Seat;
use self::sequence::Sequence;

/// Writes texts for requests that come and go, each in a slot of one batch.
///
/// Prompts are read by parts, between the steps that add a token to every other text. A text does not depend on the others,
/// nor on the texts that its slot had before. Whole parts of a prompt that some slot has read already, for the same tokens from the
/// beginning on, are copied instead of read.
///
/// ```
/// # use std::sync::{mpsc, Arc};
/// # use candle::{DType, Device::Cpu};
/// use opara_models::decoder::{Config, Decoder};
/// use opara_models::engine::{End, Engine, Listener, Options, Request};
///
/// struct Sent(mpsc::Sender<u32>);
///
/// impl Listener for Sent {
///     fn token(&mut self, token: u32) -> bool {
///         self.0.send(token).is_ok() // false, where the receiver was dropped, cancels
///     }
///     fn end(&mut self, _: End) {}
/// }
///
/// let model = Decoder::load(opara_weights::seeded(7, DType::F32, &Cpu), &Config::tiny(), 64)?;
/// let mut engine = Engine::new(Arc::new(model), Options { slots: 4, ..Options::default() })?; // eagerly
/// let (sender, tokens) = mpsc::channel();
/// engine.add(Request { prompt: vec![5, 6, 7], most: 10, ..Request::default() }, Box::new(Sent(sender)))?;
/// while engine.live() > 0 {
///     engine.step(|_| false)?;
/// }
/// assert_eq!(tokens.iter().count(), 10);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Engine<M> {
    graphs: Graphs<M>,
    seats: Vec<Seat>,
    /// Texts that were added so far.
    added: u64,
    /// Whether the slots on the device are not as the host knows them.
    has_changed: bool,
}

/// How an [`Engine`] writes.
#[derive(Debug, Clone)]
pub struct Options {
    /// Texts at once.
    ///
    /// On a GPU a step of 2 to 8 slots gives a text the same bits, however many there are. A step of more slots gives it bits that
    /// depend on their number, not on the other texts: texts may differ by a rounding while more than eight slots are in use. So do
    /// those of an engine of one slot, whose kernels are the fastest for one text.
    pub slots: usize,
    /// Prompts that are read together, at most as many as slots. Together is faster if that many always wait, and slower if one comes
    /// at a time. A text's roundings depend on the number, not on the other prompts.
    pub prompts: usize,
    /// Settings of executors. Without them the engine runs eagerly.
    pub builder: Option<Builder>,
}

impl Default for Options {
    fn default() -> Self {
        Self { slots: 1, prompts: 1, builder: None }
    }
}

/// A text of an [`Engine`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Id(u64);

impl<M: TextModel> Engine<M> {
    /// Builds nothing yet: graphs are built at their first use, or by [`build`](Self::build).
    ///
    /// # Errors
    /// No memory left.
    pub fn new(model: Arc<M>, options: Options) -> Result<Self> {
        let slots = options.slots.max(1);
        let graphs = Graphs::new(model, slots, options.prompts.clamp(1, slots), options.builder)?;
        let seats = std::iter::repeat_with(Seat::default).take(slots).collect();
        Ok(Self { graphs, seats, added: 0, has_changed: true })
    }

    /// Builds all graphs: for reading, and for steps of all sizes, with marks of tokens and without.
    ///
    /// # Errors
    /// Those of the executors.
    pub fn build(&mut self) -> Result<()> {
        self.graphs.build()
    }

    /// The model.
    pub fn model(&self) -> &Arc<M> {
        &self.graphs.model
    }

    /// Texts that are under way.
    pub fn live(&self) -> usize {
        self.seats.iter().filter(|seat| !seat.is_free()).count()
    }

    /// Texts that may be added.
    pub fn free(&self) -> usize {
        self.seats.len() - self.live()
    }

    /// Reports of the graphs that were built: of the one that reads prompts, and then of steps, of few slots first.
    pub fn reports(&self) -> Vec<Report> {
        self.graphs.reports().collect()
    }

    /// Why graphs run eagerly though executors were asked for; one reason for each.
    pub fn eager(&self) -> Vec<String> {
        let eager = self.graphs.reports().filter(|report| report.mode() == Mode::Eager);
        eager.map(|report| report.reason().unwrap_or_default().to_owned()).collect()
    }

    /// Gives a request a slot.
    ///
    /// # Errors
    /// Those of [`Request::check`]; [`TextError::NoSlot`] where none is [free](Self::free); those of the device.
    pub fn add(&mut self, request: Request, mut listener: Box<dyn Listener>) -> Result<Id> {
        request.check(&**self.model())?;
        if request.prompt_alternatives.is_some() && !M::IS_CAUSAL {
            return Err(
                candle::Error::msg("prompts have likelihoods where a token does not see those behind it").into()
            );
        }
        // What is cached is not read again.
        let known = if request.prompt_alternatives.is_some() { &[] } else { &request.prompt[..] };
        let (slot, cached) = self.seat(known, request.tenant)?;
        self.added += 1;
        self.has_changed = true;
        let first = self.model().first_position(request.prompt.len());
        let seat = &mut self.seats[slot];
        (seat.used, seat.tenant, seat.kept) = (self.added, request.tenant, request.prompt[..cached].to_vec());
        listener.begin(cached);
        seat.sequence = Sequence::new(request, listener, self.added, first, cached);
        Ok(Id(self.added))
    }

    /// Ends a text, whose listener hears no more. False if it has ended already.
    pub fn cancel(&mut self, id: Id) -> bool {
        let is_it = |sequence: &mut Sequence| sequence.number == id.0;
        let is_gone = self.seats.iter_mut().any(|seat| seat.sequence.take_if(is_it).is_some());
        self.has_changed |= is_gone;
        is_gone
    }

    /// A free slot for a tenant's prompt, and how many of its tokens are in there.
    fn seat(&mut self, prompt: &[u32], tenant: u64) -> Result<(usize, usize)> {
        let bucket = self.graphs.bucket((self.live() + 1).min(self.seats.len()));
        let part = self.model().part();
        let fits = |slot: usize, seat: &Seat| slot < bucket && seat.is_free();
        let cached = |seat: &Seat| seat.cached(prompt, tenant, part);
        let best = self.seats.iter().enumerate().max_by_key(|(slot, seat)| (cached(seat), fits(*slot, seat)));
        let (from, cached) = best.map_or((0, 0), |(slot, seat)| (slot, cached(seat)));
        if cached > 0 && fits(from, &self.seats[from]) {
            return Ok((from, cached));
        }
        // The slot that was used last may be asked for again.
        let free = self.seats.iter().enumerate().filter(|(slot, seat)| fits(*slot, seat));
        let (slot, _) = free.min_by_key(|(_, seat)| seat.used).ok_or(TextError::NoSlot { slots: self.seats.len() })?;
        if cached > 0 {
            // A copy that fails may have overwritten a part of it.
            self.seats[slot].kept.clear();
            self.graphs.copy(from, slot)?;
        }
        Ok((slot, cached))
    }

    /// Reads a part of one prompt, or of [several](Options::prompts), if there are any to read, and adds tokens to all other texts: one
    /// each while prompts are read, else as many as the first one to end needs. It ends before that if `returns` says so, for a request
    /// that waits or for a text to cancel: after each token it is told how many slots are free.
    ///
    /// # Errors
    /// Those of the device and of the executors: then all texts have failed, and others may be added.
    pub fn step(&mut self, returns: impl FnMut(usize) -> bool) -> Result<()> {
        let result = self.read_and_write(returns);
        if let Err(error) = &result {
            self.fail(&error.to_string());
        }
        result
    }

    /// Ends all texts, as failed for this reason, and forgets what was read. Others may be added.
    ///
    /// Whoever catches a panic of a listener, of `returns` or of the model in a [`step`](Self::step) has to call it: other texts may have
    /// missed a token.
    pub fn fail(&mut self, reason: &str) {
        self.has_changed = true;
        for seat in &mut self.seats {
            seat.kept.clear();
            if let Some(mut sequence) = seat.sequence.take() {
                sequence.listener.end(End::Failed(reason.to_owned()));
            }
        }
    }

    fn read_and_write(&mut self, mut returns: impl FnMut(usize) -> bool) -> Result<()> {
        self.dismiss();
        self.close_up()?;
        self.read()?;
        // Told of first tokens, and not obeyed: texts that write shall not wait until all prompts are read.
        returns(self.free());
        self.write(returns)
    }

    /// Frees the slots of prompts whose listeners are gone.
    fn dismiss(&mut self) {
        let is_gone = |sequence: &mut Sequence| !sequence.writes() && sequence.listener.is_gone();
        for seat in &mut self.seats {
            self.has_changed |= seat.sequence.take_if(is_gone).is_some();
        }
    }

    /// Moves texts to lower slots where that makes the batch smaller.
    fn close_up(&mut self) -> Result<()> {
        while let Some(last) = self.seats.iter().rposition(|seat| !seat.is_free()) {
            let free = self.seats.iter().position(Seat::is_free);
            let Some(free) = free.filter(|_| self.graphs.bucket(self.live()) < self.graphs.bucket(last + 1)) else {
                break;
            };
            self.graphs.copy(last, free)?;
            self.seats.swap(last, free);
            // The copy leaves the slot behind as it was.
            (self.seats[last].kept, self.seats[last].tenant) = (self.seats[free].kept.clone(), self.seats[free].tenant);
            self.has_changed = true;
        }
        Ok(())
    }

    /// Reads a part of the prompt that came first, and of those beside it.
    fn read(&mut self) -> Result<()> {
        let waiting = self.seats.iter().enumerate().filter_map(|(slot, seat)| Some((seat.reading()?.number, slot)));
        let Some((_, slot)) = waiting.min() else { return Ok(()) };
        let Self { graphs, seats, .. } = self;
        let (prompts, part) = (graphs.prompts, graphs.model.part());
        let from = (slot / prompts * prompts).min(seats.len() - prompts);
        let rows = &mut seats[from..from + prompts];
        for (row, seat) in rows.iter_mut().enumerate() {
            let Some(sequence) = seat.sequence.as_mut().filter(|sequence| !sequence.writes()) else { continue };
            let Some(best) = sequence.request.prompt_alternatives else { continue };
            let read = sequence.part(part).0;
            let logits = graphs.score(from + row, read, sequence.read)?;
            let of = of_rows(&logits, &sequence.request.prompt[sequence.read + 1..], best)?;
            sequence.listener.prompt_likelihoods(of);
        }
        let parts: Vec<Reading> = rows.iter().map(|seat| seat.next(graphs)).collect::<Result<_>>()?;
        let [tokens, logits] = graphs.read(from, &parts)?;
        drop(parts);
        self.has_changed = true;
        // Parts before the last ones are not waited for.
        let is_last = |seat: &Seat| seat.reading().is_some_and(|sequence| sequence.part(part).1);
        let tokens: Vec<u32> = if rows.iter().any(is_last) { tokens.to_vec1()? } else { Vec::new() };
        for (row, seat) in rows.iter_mut().enumerate() {
            let Some(sequence) = seat.sequence.as_mut().filter(|sequence| !sequence.writes()) else { continue };
            let (read, is_last) = sequence.part(part);
            if read.len() == part && M::IS_CAUSAL {
                seat.kept.extend_from_slice(read);
            }
            sequence.read += read.len();
            if is_last {
                let logits = told(sequence, &logits, row)?;
                match sequence.take(tokens[row], logits.as_deref()) {
                    true => seat.sequence = None,
                    false => graphs.weigh(from + row, sequence)?,
                }
            }
        }
        Ok(())
    }

    /// Adds tokens to the texts whose prompts were read.
    fn write(&mut self, mut returns: impl FnMut(usize) -> bool) -> Result<()> {
        let (mut writing, mut left, mut reads) = (Vec::new(), usize::MAX, false);
        let (mut is_weighed, mut is_stepwise) = (false, false);
        for (slot, seat) in self.seats.iter().enumerate() {
            match &seat.sequence {
                Some(sequence) if sequence.writes() => {
                    writing.push(slot);
                    left = left.min(sequence.left());
                    is_weighed |= sequence.is_weighed();
                    is_stepwise |= sequence.is_stepwise();
                }
                Some(_) => reads = true,
                None => {}
            }
        }
        let Some(last) = writing.last() else { return Ok(()) };
        let bucket = self.graphs.bucket(last + 1);
        if self.has_changed {
            self.graphs.slots.upload(&self.seats.iter().map(Seat::on_device).collect::<Vec<_>>())?;
            self.has_changed = false;
        }
        let mut free = self.free();
        let Self { graphs, seats, has_changed, .. } = self;
        let mut take = |seat: &mut Seat, token: u32, logits: Option<&[f32]>| {
            let sequence = &mut seat.sequence;
            let bars = sequence.as_ref().is_some_and(Sequence::bars);
            if sequence.take_if(|sequence| sequence.take(token, logits)).is_some() {
                (free, *has_changed) = (free + 1, true);
            }
            *has_changed |= bars && sequence.as_ref().is_some_and(|sequence| !sequence.bars());
            (free, *has_changed)
        };
        if is_stepwise {
            let (tokens, logits) = graphs.write_one(bucket)?;
            for &slot in &writing {
                let seat = &mut seats[slot];
                let logits = seat.sequence.as_ref().map(|sequence| told(sequence, &logits, slot)).transpose()?;
                take(seat, tokens[slot], logits.flatten().as_deref());
                if let Some(sequence) = seat.sequence.as_ref().filter(|sequence| sequence.has_changed()) {
                    graphs.weigh(slot, sequence)?;
                }
            }
            // Told of the tokens. The next step has to be asked for anyway.
            returns(self.free());
            return Ok(());
        }
        graphs.write(bucket, is_weighed, if reads { 1 } else { left }, |tokens| {
            let mut after = (0, false);
            for &slot in &writing {
                after = take(&mut seats[slot], tokens[slot], None);
            }
            let (free, has_changed) = after;
            !(returns(free) || has_changed)
        })
    }
}

/// A row of logits, where the text wants to know them.
fn told(sequence: &Sequence, logits: &Tensor, row: usize) -> Result<Option<Vec<f32>>> {
    let row = || Ok(logits.get(row)?.to_vec1()?);
    sequence.request.alternatives.map(|_| row()).transpose()
}
