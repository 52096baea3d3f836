//! Texts, written by continuous batching: they join a batch and leave it at every step (Yu et al., "Orca", 2022).
//!
//! An [`Engine`] writes with any [`TextModel`]: the [decoders](crate::decoder::Decoder), and [T5](crate::t5::Texts).

mod error;
mod generate;
mod graphs;
mod likelihoods;
mod memory;
mod pages;
mod paging;
mod parts;
mod reading;
mod seat;
mod sequence;
mod slots;
mod text_model;

use std::sync::Arc;

use candle::Tensor;
use opara_candle::ops::PAGE;
use opara_candle::{Builder, Mode, Report};

pub use self::error::{Result, TextError};
pub use self::likelihoods::Likelihoods;
pub use self::memory::Memory;
pub use self::sequence::{End, Guidance, Listener, Request};
pub use self::text_model::{Part, TextModel};
/// How a text's tokens are drawn.
pub use opara_candle::ops::Sampling;

use self::graphs::Graphs;
use self::likelihoods::of_rows;
use self::pages::Pages;
use self::parts::Parts;
use self::reading::Reading;
use self::seat::{Aside, Seat};
use self::sequence::Sequence;

/// Writes texts for requests that come and go, each in a slot of one batch.
///
/// Prompts are read by parts, between the steps that add a token to every other text. A text does not depend on the others,
/// nor on the texts that its slot had before.
///
/// A decoder's texts have pages of [`PAGE`] tokens, and get more as they grow (Kwon et al., "PagedAttention",
/// 2023). Whole parts of a prompt that were read already, for the same tokens from the beginning on, are shared instead of read. Where no
/// page is left, the text that came last waits on the host, and goes on with the same bits.
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
    pages: Pages,
    /// Texts that wait on the host for pages.
    aside: Vec<Aside>,
    /// Texts that were added so far.
    added: u64,
    /// Whether the slots on the device are not as the host knows them.
    has_changed: bool,
    /// Whether texts have pages that the device does not know of.
    has_other_pages: bool,
}

/// How an [`Engine`] writes.
#[derive(Debug, Clone)]
pub struct Options {
    /// Texts at once.
    ///
    /// On a GPU a step of 2 to 8 slots, or to [more](opara_candle::ops::alike_rows), gives a text the same bits, however many there are. A step
    /// of more slots gives it bits that depend on the number of slots, not on the other texts: a text may differ by a rounding then. A text of
    /// an engine of one slot differs, too, since one row has kernels of its own, which are the fastest for it.
    pub slots: usize,
    /// Parts of prompts that are always read together, at most as many as slots. Together is faster if that many always wait, or prompts are
    /// long, and slower if a short one comes at a time. A text's roundings depend on the number, not on the other prompts.
    pub parts: usize,
    /// Parts of prompts that are read together, at most, on a GPU where that does not change a text's bits, which an engine finds out when it is
    /// made: one of each of the first prompts that wait, not of [`parts`](Self::parts) alone, and then further ones of each.
    pub most_parts: usize,
    /// Pages of [`PAGE`] tokens for all texts, at least as many as the longest one takes. Default: for that many texts
    /// of the longest context as there are slots. A model whose memory is not in pages has no use for it.
    pub pages: Option<usize>,
    /// Settings of executors. Without them the engine runs eagerly.
    pub builder: Option<Builder>,
}

impl Options {
    fn parts_of(&self, model: &impl TextModel) -> Parts {
        Parts::of(model, self.slots.max(1), self.parts, self.most_parts)
    }

    /// Pages that an engine of this model has besides [`pages`](Self::pages): building graphs reads prompts into them.
    pub fn own_pages(&self, model: &impl TextModel) -> usize {
        model.pages().map_or(0, |_| self.parts_of(model).at_once() * model.part().div_ceil(PAGE))
    }
}

impl Default for Options {
    fn default() -> Self {
        Self { slots: 1, parts: 1, most_parts: 1, pages: None, builder: None }
    }
}

/// A text of an [`Engine`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Id(u64);

/// Prompts that are read side by side: the first ones, and more only where these do not fill the rows. If many were read side by side, the first
/// tokens of all would come late.
const BESIDE: usize = 16;

/// Readings one after another, at most, while texts that write wait: where many prompts came together, all of their texts begin to write
/// together then, and wait once, not once for each reading.
const READINGS: usize = 4;

/// A row that the model reads: the part of a slot's prompt behind the next `ahead` tokens, which rows before it read.
#[derive(Clone, Copy)]
struct Row {
    slot: usize,
    ahead: usize,
}

impl<M: TextModel> Engine<M> {
    /// Builds nothing yet: graphs are built at their first use, or by [`build`](Self::build).
    ///
    /// # Errors
    /// [`TextError::FewPages`]; no memory left.
    pub fn new(model: Arc<M>, options: Options) -> Result<Self> {
        let slots = options.slots.max(1);
        let parts = options.parts_of(&*model);
        let needed = model.pages().unwrap_or(0);
        let pages = options.pages.filter(|_| needed > 0).unwrap_or(slots * needed);
        if pages < needed {
            return Err(TextError::FewPages { pages, needed });
        }
        let graphs = Graphs::new(model, slots, parts, pages, options.builder)?;
        let seats = std::iter::repeat_with(Seat::default).take(slots).collect();
        let nobodys = graphs.slots.memory.nobodys();
        let pages = Pages::new(nobodys + pages, nobodys);
        Ok(Self { graphs, seats, pages, aside: Vec::new(), added: 0, has_changed: true, has_other_pages: true })
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
        self.seats.iter().filter(|seat| !seat.is_free()).count() + self.aside.len()
    }

    /// Texts of these that wait on the host for pages.
    pub fn aside(&self) -> usize {
        self.aside.len()
    }

    /// Pages that texts have, and all pages; `None` if the model's memory is not in pages. What others may share, and nobody has, counts
    /// as free.
    pub fn pages(&self) -> Option<(usize, usize)> {
        let all = self.pages.count();
        self.model().pages().map(|_| (all - self.pages.free(), all))
    }

    /// Texts that may be added.
    pub fn free(&self) -> usize {
        self.seats.len() - self.live()
    }

    /// Parts of prompts that are read together at most.
    pub fn read_together(&self) -> usize {
        self.graphs.most_read()
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
    pub fn add(&mut self, request: Request, listener: Box<dyn Listener>) -> Result<Id> {
        request.check(&**self.model())?;
        if request.prompt_alternatives.is_some() && self.model().pages().is_none() {
            return Err(
                candle::Error::msg("prompts have likelihoods where a token does not see those behind it").into()
            );
        }
        let seat = self.seats.iter().position(Seat::is_free).filter(|_| self.free() > 0);
        let slot = seat.ok_or(TextError::NoSlot { slots: self.seats.len() })?;
        self.added += 1;
        self.has_changed = true;
        let first = self.model().first_position(request.prompt.len());
        self.seats[slot].sequence = Sequence::new(request, listener, self.added, first);
        Ok(Id(self.added))
    }

    /// Ends a text, whose listener hears no more. False if it has ended already.
    pub fn cancel(&mut self, id: Id) -> bool {
        let is_it = |sequence: &mut Sequence| sequence.number == id.0;
        let is_gone = self.seats.iter_mut().any(|seat| seat.sequence.take_if(is_it).is_some());
        self.has_changed |= is_gone;
        let before = self.live();
        self.aside.retain(|aside| aside.sequence.number != id.0);
        is_gone || self.live() < before
    }

    /// Reads a part of one prompt, of [several](Options::parts), or [several parts](Options::most_parts), if there are any to read, and adds
    /// tokens to all other texts: one each while prompts are read, else as many as the first one to end needs. Where many prompts wait beside
    /// the texts that write, it reads up to four times before. It ends before that if
    /// `returns` says so, for a request that waits or for a text to cancel: after each token it is told how many slots are free.
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
        self.pages.forget();
        let in_slots = self.seats.iter_mut().filter_map(|seat| seat.sequence.take());
        for mut sequence in in_slots.chain(self.aside.drain(..).map(|aside| aside.sequence)) {
            sequence.listener.end(End::Failed(reason.to_owned()));
        }
    }

    fn read_and_write(&mut self, mut returns: impl FnMut(usize) -> bool) -> Result<()> {
        self.dismiss();
        self.bring_back()?;
        self.close_up()?;
        for _ in 0..READINGS {
            self.read()?;
            // Told of first tokens, and not obeyed: texts that write shall not wait until all prompts are read.
            returns(self.free());
            if !self.reads_on() {
                break;
            }
        }
        self.write(returns)
    }

    /// Do so many prompts wait that they are read before texts write? They fill half of the rows, and are a quarter of the texts that write.
    fn reads_on(&self) -> bool {
        let most = self.graphs.most_read();
        let waiting = self.seats.iter().filter(|seat| seat.reading().is_some()).count();
        let writing = self.seats.iter().filter(|seat| seat.writing().is_some()).count();
        most >= BESIDE && 2 * waiting >= most && 4 * waiting >= writing
    }

    /// Frees the slots of prompts whose listeners are gone.
    fn dismiss(&mut self) {
        let is_gone = |sequence: &mut Sequence| !sequence.writes() && sequence.listener.is_gone();
        for seat in &mut self.seats {
            self.has_changed |= seat.sequence.take_if(is_gone).is_some();
        }
        self.aside.retain(|aside| !aside.sequence.listener.is_gone());
    }

    /// Moves texts to lower slots where that makes the batch smaller.
    fn close_up(&mut self) -> Result<()> {
        while let Some(last) = self.seats.iter().rposition(|seat| !seat.is_free()) {
            let free = self.seats.iter().position(Seat::is_free);
            let taken = self.live() - self.aside.len();
            let Some(free) = free.filter(|_| self.graphs.bucket(taken) < self.graphs.bucket(last + 1)) else {
                break;
            };
            self.graphs.copy(last, free)?;
            self.seats.swap(last, free);
            self.has_changed = true;
        }
        Ok(())
    }

    /// The rows that the model reads next; none, if no prompt can go on.
    fn next_to_read(&mut self) -> Vec<Option<Row>> {
        let most = self.graphs.most_read();
        let waiting = self.by_age(|sequence| !sequence.writes());
        let Some(first) = waiting.first() else { return Vec::new() };
        if self.model().pages().is_none() {
            // Neighbours, whose memory is one piece.
            let from = (first / most * most).min(self.seats.len() - most);
            return (from..from + most)
                .inspect(|slot| {
                    self.begin(*slot);
                })
                .map(|slot| Some(Row { slot, ahead: 0 }))
                .collect();
        }
        // Where the number of parts is fixed, each is of another prompt.
        let beside = if self.graphs.reads_as_many_as_wait() { BESIDE.min(most) } else { most };
        let mut begun = Vec::new();
        let mut left = 0;
        for slot in waiting.into_iter().take(most) {
            if begun.len() >= beside && left >= most || !self.begin(slot) {
                break;
            }
            begun.push(slot);
            // Likelihoods of a prompt take the host as long as reading takes the device.
            let is_scored = self.seats[slot].reading().is_some_and(|of| of.request.prompt_alternatives.is_some());
            left += if is_scored { most.div_ceil(beside) } else { self.parts_left(slot) };
        }
        let rows = self.rows_of(&begun, most);
        let filled = if rows.is_empty() { 0 } else { self.graphs.rows_to_read(rows.len()) };
        rows.into_iter().map(Some).chain(std::iter::repeat(None)).take(filled).collect()
    }

    /// Parts of a slot's prompt that may be read.
    fn parts_left(&self, slot: usize) -> usize {
        self.seats[slot].reading().map_or(0, |sequence| match sequence.request.prompt_alternatives {
            None => (sequence.request.prompt.len() - sequence.read).div_ceil(self.model().part()),
            // Its likelihoods are told part by part.
            Some(_) => 1,
        })
    }

    /// The first `most` parts of these slots' prompts: the next part of each prompt, then the part behind it of each. So a short prompt does
    /// not wait for all of a long one. A part may be read beside the parts before it: a layer writes the keys and values of all rows before
    /// any token attends.
    fn rows_of(&self, slots: &[usize], most: usize) -> Vec<Row> {
        let part = self.model().part();
        let of = |&slot: &usize| (0..self.parts_left(slot)).map(move |at| Row { slot, ahead: at * part });
        let mut rows: Vec<Row> = slots.iter().flat_map(of).collect();
        rows.sort_by_key(|row| row.ahead);
        rows.truncate(most);
        rows
    }

    /// Reads the next parts of the prompts that came first.
    fn read(&mut self) -> Result<()> {
        let rows = self.next_to_read();
        let Some(first) = rows.first().copied().flatten() else { return Ok(()) };
        let Self { graphs, seats, .. } = self;
        let part = graphs.model.part();
        for Row { slot, ahead } in rows.iter().flatten() {
            let Some(best) = seats[*slot].reading().and_then(|sequence| sequence.request.prompt_alternatives) else {
                continue;
            };
            let logits = graphs.score(&seats[*slot].next(*ahead, graphs)?)?;
            let Some(sequence) = &mut seats[*slot].sequence else { continue };
            let of = of_rows(&logits, &sequence.request.prompt[sequence.read + 1..], best)?;
            sequence.listener.prompt_likelihoods(of);
        }
        let next = |row: &Option<Row>| match row {
            Some(row) => seats[row.slot].next(row.ahead, graphs),
            None => Ok(Reading::default()),
        };
        let parts = rows.iter().map(next).collect::<Result<Vec<Reading>>>()?;
        let is_last = parts.iter().any(|part| part.is_last);
        let [tokens, logits] = graphs.read(first.slot, &parts)?;
        drop(parts);
        self.has_changed = true;
        // Parts before the last ones are not waited for.
        let tokens: Vec<u32> = if is_last { tokens.to_vec1()? } else { Vec::new() };
        for (at, Row { slot, .. }) in rows.into_iter().enumerate().filter_map(|(at, row)| Some((at, row?))) {
            let seat = &mut seats[slot];
            let Some(sequence) = seat.sequence.as_mut().filter(|sequence| !sequence.writes()) else { continue };
            let (read, is_last) = sequence.part(0, part);
            let is_whole = read.len() == part;
            sequence.read += read.len();
            if let Some(held) = sequence.held.as_mut().filter(|_| is_whole) {
                held.enter(&sequence.request.prompt[..sequence.read]);
            }
            if is_last {
                let logits = told(sequence, &logits, at)?;
                match sequence.take(tokens[at], logits.as_deref()) {
                    true => seat.sequence = None,
                    false => graphs.weigh(slot, sequence)?,
                }
            }
        }
        Ok(())
    }

    /// Adds tokens to the texts whose prompts were read.
    fn write(&mut self, mut returns: impl FnMut(usize) -> bool) -> Result<()> {
        let (mut writing, mut left) = (Vec::new(), self.make_room()?);
        // A prompt for which there are no pages is not waited for.
        let reads = self.by_age(|sequence| !sequence.writes()).first().is_some_and(|slot| self.begin(*slot));
        let (mut is_weighed, mut is_stepwise) = (false, false);
        for (slot, seat) in self.seats.iter().enumerate() {
            let Some(sequence) = seat.writing() else { continue };
            writing.push(slot);
            left = left.min(sequence.left());
            is_weighed |= sequence.is_weighed();
            is_stepwise |= sequence.is_stepwise();
        }
        let Some(last) = writing.last() else { return Ok(()) };
        let bucket = self.graphs.bucket(last + 1);
        let on_device = self.seats.iter().map(Seat::on_device);
        match (self.has_changed, self.has_other_pages) {
            (true, _) => self.graphs.slots.upload(&on_device.collect::<Vec<_>>())?,
            // A step carries on all else.
            (false, true) => self.graphs.slots.memory.set_pages(on_device.map(|slot| slot.pages))?,
            (false, false) => {}
        }
        (self.has_changed, self.has_other_pages) = (false, false);
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
