//! A decoder's step for every length of text, from captures at several lengths, and the same of several tokens at once.

use std::sync::Arc;

use candle::Tensor;
use opara_plan::rewrite::{rules, Growth, Inputs, Source, Standing, Value};

use super::counted::Counted;
use super::earlier::{check_turns, Earlier};
use super::known::{captured, or_refused, refused, with_states, First, Known};
use super::opaque::Opaque;
use super::others::others;
use super::pieces::{pieces, Piece};
use super::several::{first_of, Several};
use super::sources::{empty_text, Common};
use super::texts::{Text, Texts};
use super::tokens::Tokens;
use crate::arguments::write;
use crate::builder::Builder;
use crate::cuda::{Place, WholePass};
use crate::environment::Environment;
use crate::report::{Mode, Report, Rewrite};
use crate::rewrite::accuracy::{distance, near};
use crate::rewrite::choice::{choose_usable, unchanged, Choice};
use crate::rewrite::set::Set;
use crate::step::StepExecutor;
use crate::{Error, Result};

/// A step that is replayed, and the text that it goes on with.
pub(super) struct Step {
    executor: StepExecutor<Vec<Tensor>>,
    /// Reads pieces of several tokens; or the reason why there is none.
    several: std::result::Result<Several, String>,
    /// The tokens of a prompt that the module does not read, at most.
    longest: usize,
    /// The position, a cache for each attention, what else grows, and the states.
    text: Vec<Tensor>,
    pub(super) growth: Growth,
    inputs: Inputs,
    counted: Vec<Counted>,
    opaque: Opaque,
    /// The dimension of the logits of several tokens, if there are logits of each; `None` if those of the last one are all. The outer
    /// `None` says that it is another one.
    each: Option<Option<usize>>,
    states: Vec<(usize, Value)>,
    /// The rules by which every capture is rewritten.
    standing: Standing,
    /// These rules as a report tells them, and why launches stay candle's.
    rewrites: Vec<Rewrite>,
    notes: Vec<String>,
    of_first: First,
    /// Two captures to compare others with.
    pub(super) known: [Known; 2],
    pub(super) capacity: usize,
    rows: usize,
    /// Is the last tensor of the text a mask?
    is_masked: bool,
}

/// Prompts, with the module's logits.
pub(super) struct Prompts<'a> {
    pub example: (&'a Tokens, &'a Tensor),
    /// Nearly as long as a text may be.
    pub long: (&'a Tokens, &'a Tensor),
    /// How far other logits may be from these.
    pub room: f64,
}

impl Step {
    /// Logits of prompts may differ from the module's by this factor times the difference of steps' logits, or times two roundings: sums have
    /// other orders there. More would hide a module that sees more of a prompt than of a text.
    const ROOM: f64 = 8.;

    /// Captures steps behind texts of several lengths, and makes one of what they have in common.
    ///
    /// # Errors
    /// [`Error::NotCapturable`] with the reason if that is not known to be right for every length, and errors of the module.
    pub fn build<M: Send + 'static>(
        mut builder: Builder,
        texts: &Texts<M>,
        example: &Tokens,
        capacity: usize,
    ) -> Result<Self> {
        if !example.ids.device().is_cuda() {
            return Err(refused("a CPU runs what it is given"));
        }
        let environment = Environment::get();
        if environment.is_off || environment.is_exact {
            return Err(refused("the environment says so"));
        }
        let (tokens, token) = (example.count(), example.last()?);
        // After a step, caches are as steps leave them.
        let behind = |prompt: &Tokens| -> Result<(Text<M>, Tensor)> {
            let (mut text, tokens) = (texts.fresh()?, prompt.count());
            let logits = texts.add(&mut text, prompt, 0)?;
            texts.add(&mut text, &token, tokens)?;
            Ok((text, logits))
        };
        let (text, of_prompt) = behind(example)?;
        let length = tokens + 1;
        let last = length + 1;
        let logits = texts.add(&mut texts.copy(&text)?, &token, length)?;
        let given = texts.inputs(&text, &token)?;
        let (mut pass, text) = captured(texts, text, &token, length)?;
        // Later passes write to the same memory, if it is in place.
        let inputs = inputs(&pass, &given)?;
        // Steps that are replayed go on with it.
        let near_text = texts.copy(&text)?;
        // The models keep the tables that their passes read.
        let (mut later, _later) = captured(texts, text, &token, last)?;
        // The longest text: what the host decides by the length is to be the same there. Two steps in a row show what one leaves to the
        // next, and whether a cache that is full overwrites its oldest token.
        let (long, far) = (example.repeated(capacity - 3)?, capacity - 2);
        let said = format!("a text of {} tokens does not run, so choose a smaller capacity", capacity - 3);
        let (text, of_long) = behind(&long).map_err(|error| or_refused(error, &said))?;
        let (mut far_pass, text) = captured(texts, text, &token, far)?;
        let (mut farthest_pass, _farthest) = captured(texts, text, &token, far + 1)?;
        if pass.overwritten.iter().any(|&(input, _)| far_pass.places.get(input) == Some(&pass.places[input])) {
            return Err(refused(
                "clones of the model write to the same memory: let each text have its own, or make a new tensor at each \
                 step",
            ));
        }
        let next = pass.left_to(&later)?;
        if far_pass.left_to(&farthest_pass)? != next {
            return Err(refused(&format!(
                "behind {far} tokens a step leaves other tensors to the next one than behind {length}"
            )));
        }
        let opaque = Opaque::of(&mut [
            (&mut *pass, length),
            (&mut *later, last),
            (&mut *far_pass, far),
            (&mut *farthest_pass, far + 1),
        ])?;
        // Executors are built at a length that the module has launched them for: at 0 some have no blocks.
        opaque.length.set(length as u64);
        let counted = Counted::of([&pass, &farthest_pass], [length, far + 1])?;
        for (pass, length) in [(&later, last), (&far_pass, far)] {
            check_counted(&counted, pass, length)?;
        }
        let known_inputs = Inputs {
            capacity: capacity as u64,
            outputs: pass.graph.outputs.len(),
            next,
            counted: counted.iter().map(Counted::plan).collect(),
            at_lengths: opaque.numbers(),
        };
        let lengths = [length, last].map(|length| length as u64);
        let states =
            Growth::states([&pass.graph, &later.graph], lengths, &known_inputs).map_err(|why| refused(&why))?;

        let graph = with_states(&pass, &states);
        let mut outputs = vec![logits.flatten_all()?];
        for (input, _) in states.iter().filter(|(_, value)| matches!(value, Value::Node(_))) {
            outputs.extend(later.copied(*input)?);
        }
        let without: Vec<&str> = builder.0.without.iter().map(String::as_str).collect();
        let others = others([&pass, &later], &inputs, &example.ids, logits.elem_count())?;
        let chosen = Set::new(&graph, inputs.clone(), outputs)
            .and_then(|set| set.and_on(&graph, others))
            .map_err(Error::from)
            .and_then(|set| match choose_usable(&graph, &without, std::slice::from_ref(&set), |_, _| Ok(Ok(())))? {
                Ok((choice, ())) => Ok(Ok(choice)),
                Err(why) => Ok(unchanged(&graph, &[set], why)?),
            });
        let chosen = chosen.map_err(|error| or_refused(error, "its step cannot be held against double precision"))?;
        let Choice { graph, fits, standing, compared, notes } = chosen.map_err(|why| refused(&why))?;
        let first = Known::rewritten(graph, &pass, length);
        let mut of_first = First::of(&pass, &inputs);
        let known =
            |pass: &WholePass, length| Known::of(pass, &standing, &states, length)?.placed_like(&of_first, pass);
        let second = known(&later, last)?;
        // A rule that stays out may be what would explain a difference.
        let short = first.and(&second, &known_inputs).map_err(|error| match (error, &notes[..]) {
            (Error::NotCapturable { reason }, [_, ..]) => refused(&format!("{reason}; {}", notes.join("; "))),
            (error, _) => error,
        })?;
        let (at_far, at_farthest) = (known(&far_pass, far)?, known(&farthest_pass, far + 1)?);
        let (long_growth, growth) = (first.and(&at_far, &known_inputs)?, first.and(&at_farthest, &known_inputs)?);
        let differs = short.difference(&growth, last as u64).or_else(|| long_growth.difference(&growth, far as u64));
        if let Some(why) = differs {
            return Err(refused(&format!("a step behind {far} tokens is another one than behind few: {why}")));
        }
        // Numbers of the position may go another way between the lengths that were captured.
        let middle = (last + far) / 2;
        if growth.has_numbers(&known_inputs) && middle > last {
            let (text, _) = behind(&example.repeated(middle - 1)?)?;
            let (mut pass, _text) = captured(texts, text, &token, middle)?;
            opaque.rename(&mut pass, middle)?;
            check_counted(&counted, &pass, middle)?;
            let at_middle = first.and(&known(&pass, middle)?, &known_inputs)?;
            if let Some(why) = at_middle.difference(&growth, middle as u64) {
                return Err(refused(&format!("a step behind {middle} tokens is another one than behind {far}: {why}")));
            }
        }
        if texts.mask().is_some() && !growth.sources.iter().any(|source| matches!(source, Source::Given(_))) {
            return Err(refused(
                "its step does not read the mask, so that padding would count: have attention add it at each step, too",
            ));
        }
        check_turns(&growth, [&at_far, &at_farthest])?;
        of_first.forget(&growth, &far_pass);
        drop((far_pass, farthest_pass, later));

        let text = empty_text(&growth, &pass, capacity, (&token.ids, texts.mask()))?;
        let each = each_of(of_prompt.dims(), logits.dims(), tokens);
        let of = Common::new(&growth, &inputs, &known_inputs, &pass, &counted, each.flatten())?;
        let (of, of_several) = (Arc::new(of), builder.clone());
        // What is computed of weights alone, such as several beside each other, is computed once.
        builder.0.settings.constant_room += of.bytes();
        let common = of.clone();
        let executor = builder.build_step(
            move |x: &[Tensor], text: &Vec<Tensor>| common.step(x, text),
            std::slice::from_ref(&token.ids),
            &text,
        );
        let executor = executor.map_err(|error| or_refused(error, "its common step cannot be computed"))?;
        if executor.report().mode == Mode::Eager {
            return Err(refused(&executor.report().reason.unwrap_or_else(|| "its step is not replayed".into())));
        }
        drop(pass);
        let (inputs, known) = (known_inputs, [first, second]);
        let several = match each {
            Some(_) => or_reason(Several::build(of_several, of, example, &text))?,
            None => Err("it is not known how logits of several tokens lie".into()),
        };
        let mut step = Self {
            executor,
            several,
            longest: 0,
            text,
            growth,
            inputs,
            counted,
            opaque,
            each,
            states,
            standing,
            rewrites: rules::counted(&fits).into_iter().map(|applied| Rewrite::of(applied, compared)).collect(),
            notes,
            of_first,
            known,
            capacity,
            rows: example.rows(),
            is_masked: texts.mask().is_some(),
        };
        let ((far_text, _), mut apart) = (behind(&long)?, 0f64);
        for (mut text, length) in [(far_text, far), (near_text, last)] {
            step.take_over(texts, &text, &token, length)?;
            // Two steps, if there is room: the second one reads what the first one has appended.
            for at in length..capacity.min(length + 2) {
                let (given, expected) = (step.step(&token, at)?, texts.add(&mut text, &token, at)?);
                let (expected, given) = (expected.flatten_all()?, given.flatten_all()?);
                let verdict = near(&expected, &given, [compared.apart; 2])?;
                verdict.map_err(|why| refused(&format!("behind {at} tokens {why}")))?;
                apart = apart.max(distance(&expected, &given)?.map_err(|why| refused(&why))?);
            }
        }
        let room = Self::ROOM * apart.max(2. * compared.unit);
        let prompts = Prompts { example: (example, &of_prompt), long: (&long, &of_long), room };
        // The module reads prompts, if a launch has no blocks at their first tokens.
        if !step.opaque.have_blocks_before(length) {
            return Ok(step);
        }
        if step.several.is_ok() {
            match or_reason(step.longest_in_pieces(texts, &prompts))? {
                Ok(longest) => step.longest = longest,
                Err(why) => step.several = Err(why),
            }
        }
        if let Err(why) = step.several.as_ref().map(drop).map_err(String::clone) {
            match or_reason(step.longest_by_token(texts, &prompts))? {
                Ok(longest) => step.longest = longest,
                Err(why_not) => step.several = Err(format!("{why}; token by token, {why_not}")),
            }
        }
        Ok(step)
    }

    /// Is a prompt of this length read in pieces, or token by token?
    pub fn reads_prompt(&self, tokens: usize) -> bool {
        tokens <= self.longest
    }

    /// Why several tokens are not one graph, if they are not.
    pub fn several_refused(&self) -> Option<&str> {
        self.several.as_ref().err().map(String::as_str)
    }

    /// Begins a text, whose prompt is read in pieces or token by token.
    pub fn begin(&self) -> Result<()> {
        // Behind the last token of what grows there are zeros; attention does not read a cache there.
        let Growth { caches, grown, states, .. } = &self.growth;
        let (position, others) = self.text.split_at(1);
        let (of_tokens, mask) = others[caches.len()..].split_at(grown.len() + states.len());
        let mut nothing = position.iter().chain(of_tokens);
        nothing.try_for_each(|of| write(of, &of.zeros_like()?))?;
        // What nothing is said of counts.
        Ok(mask.iter().try_for_each(|of| write(of, &of.ones_like()?))?)
    }

    /// Notes which of the tokens at a place count.
    fn note(&self, tokens: &Tokens, at: usize) -> Result<()> {
        let (Some(mask), Some(all)) = (&tokens.mask, self.text.last().filter(|_| self.is_masked)) else {
            return Ok(());
        };
        Ok(all.slice_set(&mask.to_dtype(all.dtype())?.contiguous()?, 1, at)?)
    }

    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// How many texts there are beside each other.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Copies what the model has of a text of `length` tokens, if its next step is the one that is replayed.
    ///
    /// # Errors
    /// [`Error::NotCapturable`] if that step is another one.
    pub fn take_over<M: Send + 'static>(
        &mut self,
        texts: &Texts<M>,
        text: &Text<M>,
        token: &Tokens,
        length: usize,
    ) -> Result<()> {
        let (mut pass, _text) = captured(texts, texts.copy(text)?, token, length)?;
        self.opaque.rename(&mut pass, length)?;
        let now = Known::of(&pass, &self.standing, &self.states, length)?.placed_like(&self.of_first, &pass)?;
        let [first, second] = &self.known;
        let other = if first.length == length { second } else { first };
        check_counted(&self.counted, &pass, length)?;
        let differs = now.and(other, &self.inputs)?.difference(&self.growth, length.max(other.length) as u64);
        if differs.is_some() || !pass.leaves(&self.inputs.next) {
            return Err(refused(&format!(
                "the step behind {length} tokens is another one than the decoder was built for"
            )));
        }
        let Growth { caches, grown, states, .. } = &self.growth;
        let (of_caches, others) = self.text[1..].split_at(caches.len());
        let (of_grown, of_states) = others.split_at(grown.len());
        for (cache, to) in caches.iter().zip(of_caches) {
            let [keys, values] = [cache.keys, cache.values].map(|of| Earlier::of_cache(&pass, &now, of, cache));
            let (keys, values) = (keys?, values?);
            let both = Tensor::stack(&[keys.tokens, values.tokens], 0)?.unsqueeze(0)?;
            // What is left of another text may be infinite, and operators that read all places multiply it by zero.
            write(to, &to.zeros_like()?)?;
            to.slice_set(&both.contiguous()?, 3, keys.first)?;
        }
        for (of, to) in grown.iter().zip(of_grown) {
            let earlier = Earlier::of(&pass, &now, of.input, [of.rows, of.step].map(|n| n as usize), of.window)?;
            write(to, &to.zeros_like()?)?;
            to.slice_set(&earlier.tokens, 1, earlier.first)?;
        }
        for (&input, to) in states.iter().zip(of_states) {
            write(to, &pass.copied(input)?.ok_or_else(|| refused("its state is an argument"))?)?;
        }
        if let (Some(mask), Some(all)) = (text.mask(), self.text.last()) {
            write(all, &all.ones_like()?)?;
            all.slice_set(mask, 1, 0)?;
        }
        Ok(write(&self.text[0], &Tensor::new(&[length as u32], token.ids.device())?)?)
    }

    /// Adds tokens to the text, which has `at`, in pieces or one after the other; `None` if it is not known how their logits lie.
    pub fn read(&mut self, tokens: &Tokens, at: usize) -> Result<Option<Tensor>> {
        let (Some(each), count) = (self.each, tokens.count()) else { return Ok(None) };
        let one_by_one = || vec![Piece { size: 1, tokens: 1 }; count];
        let pieces =
            self.several.as_ref().map_or_else(|_| one_by_one(), |_| pieces(count, self.capacity.saturating_sub(at)));
        let (mut logits, mut first) = (Vec::with_capacity(pieces.len()), 0);
        for piece in pieces {
            let tokens = tokens.part(first, piece.tokens)?;
            logits.push(match &self.several {
                Ok(several) if piece.size > 1 => {
                    self.note(&tokens, at + first)?;
                    // A piece has such launches of its last token alone.
                    self.opaque.length.set((at + first + piece.tokens - 1) as u64);
                    several.add(&tokens.ids, piece, &mut self.text)?
                }
                _ => self.step(&tokens, at + first)?,
            });
            first += piece.tokens;
        }
        Ok(match each {
            Some(dim) => Some(Tensor::cat(&logits, dim)?),
            None => logits.pop(),
        })
    }

    /// Adds a token to the text that was taken over, which has `at`.
    pub fn step(&mut self, token: &Tokens, at: usize) -> Result<Tensor> {
        self.note(token, at)?;
        self.opaque.length.set(at as u64);
        first_of(self.executor.step(std::slice::from_ref(&token.ids), &mut self.text)?)
    }

    pub fn report(&self) -> Report {
        let mut report = self.executor.report();
        report.rewrites = Rewrite::merged(report.rewrites.iter().chain(&self.rewrites).copied());
        report.notes.extend(self.notes.iter().cloned());
        report
    }
}

/// A value, or the reason of a refusal.
fn or_reason<T>(result: Result<T>) -> Result<std::result::Result<T, String>> {
    match result {
        Ok(value) => Ok(Ok(value)),
        Err(error) if error.is_refusal() => Ok(Err(error.to_string())),
        Err(error) => Err(error),
    }
}

/// The inputs of a capture's graph.
fn inputs(pass: &WholePass, given: &[Tensor]) -> Result<Vec<Tensor>> {
    let input = |(at, place): (usize, &Place)| match place {
        Place::Argument(of) => Ok(given[*of].flatten_all()?),
        _ => pass.copied(at)?.ok_or_else(|| refused("it reads an argument that there is not")),
    };
    pass.places.iter().enumerate().map(input).collect()
}

/// The dimension of tokens, if a module gives logits of each token, and not of the last one alone.
fn each_of(several: &[usize], one: &[usize], tokens: usize) -> Option<Option<usize>> {
    if several == one {
        return Some(None);
    }
    let differs: Vec<usize> = (0..one.len()).filter(|&dim| several.get(dim) != Some(&one[dim])).collect();
    match differs[..] {
        [dim] if several.len() == one.len() && (one[dim], several[dim]) == (1, tokens) => Some(Some(dim)),
        _ => None,
    }
}

/// Fails if a pass uploads other numbers than its position says.
fn check_counted(counted: &[Counted], pass: &WholePass, length: usize) -> Result<()> {
    for of in counted {
        if !of.holds(pass, length)? {
            return Err(refused(&format!(
                "what the host uploads behind {length} tokens (input {}) does not follow from the position",
                of.input
            )));
        }
    }
    Ok(())
}
