//! A decoder's step of one token for every length of text, from captures at several lengths.

use std::sync::Arc;

use candle::{DType, Shape, Tensor};
use opara_plan::rewrite::{Cache, Graph, Growth, Input, Source, Standing};

use super::earlier::{check_kept, check_turns, Earlier};
use super::known::{captured, or_refused, refused, Captured, First, Known};
use super::others::others;
use super::texts::{Text, Texts};
use crate::arguments::write;
use crate::builder::Builder;
use crate::cuda::{Place, WholePass};
use crate::environment::Environment;
use crate::report::{Mode, Report};
use crate::rewrite::accuracy::near;
use crate::rewrite::choice::{choose_usable, Choice};
use crate::rewrite::evaluate::{arranged_bytes, evaluate, Arithmetic, Numbers};
use crate::rewrite::set::Set;
use crate::step::StepExecutor;
use crate::{ops, Error, Result};

/// A step that is replayed, and the caches that it writes.
pub(super) struct Step {
    executor: StepExecutor<Vec<Tensor>>,
    /// The position, then a cache for each attention.
    state: Vec<Tensor>,
    growth: Growth,
    /// The rules by which every capture is rewritten.
    standing: Standing,
    of_first: First,
    /// Two captures to compare others with.
    known: [Known; 2],
    capacity: usize,
}

impl Step {
    /// Captures steps behind texts of several lengths, and makes one of what they have in common.
    ///
    /// # Errors
    /// [`Error::NotCapturable`] with the reason if that is not known to be right for every length, and errors of the module.
    pub fn build<M: Send + 'static>(
        mut builder: Builder,
        texts: &Texts<M>,
        example: &Tensor,
        capacity: usize,
    ) -> Result<Self> {
        if !example.device().is_cuda() {
            return Err(refused("a CPU runs what it is given"));
        }
        let environment = Environment::get();
        if environment.is_off || environment.is_exact {
            return Err(refused("the environment says so"));
        }
        let tokens = example.dim(1)?;
        let token = example.narrow(1, tokens - 1, 1)?.force_contiguous()?;
        // After a step, caches are as steps leave them.
        let behind = |prompt: &Tensor| -> Result<(Text<M>, usize)> {
            let (mut text, tokens) = (texts.fresh()?, prompt.dim(1)?);
            texts.add(&mut text, prompt, 0)?;
            texts.add(&mut text, &token, tokens)?;
            Ok((text, tokens + 1))
        };
        // Keeps the caches that the first pass reads.
        let (before, length) = behind(example)?;
        let mut text = texts.copy(&before)?;
        let logits = texts.add(&mut texts.copy(&text)?, &token, length)?;
        let pass = captured(texts, &text, &token, length)?;
        let inputs = inputs(&pass, &token)?;
        let without: Vec<&str> = builder.0.without.iter().map(String::as_str).collect();
        texts.add(&mut text, &token, length)?;
        let last = length + 1;
        let later = captured(texts, &text, &token, last)?;
        let others = others([&pass, &later], &inputs, example, logits.elem_count())?;
        let chosen = Set::new(&pass.graph, inputs.clone(), vec![logits.flatten_all()?])
            .and_then(|set| set.and_on(&pass.graph, others))
            .map_err(Error::from)
            .and_then(|set| choose_usable(&pass.graph, &without, &[set], |_, _| Ok(Ok(()))));
        let chosen = chosen.map_err(|error| or_refused(error, "its step cannot be held against double precision"))?;
        let (Choice { graph, standing, compared, notes, .. }, ()) = chosen.map_err(|why| refused(&why))?;
        let first = Known::rewritten(graph, &pass, length);
        let mut of_first = if texts.is_made() { First::of(&pass, &inputs) } else { First::default() };
        let known = |pass: &Captured, length| Known::of(pass, &standing, length)?.placed_like(&of_first, pass);

        let second = known(&later, last)?;
        // A rule that stays out may be what would explain a difference.
        let short = first.and(&second).map_err(|error| match (error, &notes[..]) {
            (Error::NotCapturable { reason }, [_, ..]) => refused(&format!("{reason}; {}", notes.join("; "))),
            (error, _) => error,
        })?;
        check_kept(&short, (&pass, &first), (&later, &second))?;
        drop(before);
        // The longest text: what the host decides by the length is to be the same there.
        let long = || -> Result<(Text<M>, usize)> {
            let ids = example.to_dtype(DType::U32)?.to_vec2::<u32>()?.concat();
            let ids = Tensor::from_iter(ids.into_iter().cycle().take(capacity - 3), example.device())?;
            behind(&ids.unsqueeze(0)?.to_dtype(example.dtype())?)
        };
        let said = format!("a text of {} tokens does not run, so choose a smaller capacity", capacity - 3);
        let (longest, length) = long().map_err(|error| or_refused(error, &said))?;
        let far_pass = captured(texts, &longest, &token, length)?;
        // `text` still has the buffers of the first text.
        if pass.overwritten.iter().any(|&input| far_pass.places.get(input) == Some(&pass.places[input])) {
            return Err(refused("clones of the model write to the same cache"));
        }
        let far = known(&far_pass, length)?;
        // One more step: two in a row show whether a cache that is full overwrites its oldest token. Of a text of its own, since a
        // clone's step would overwrite a token of `longest`.
        let (mut next, _) = long().map_err(|error| or_refused(error, &said))?;
        texts.add(&mut next, &token, length)?;
        let farthest_pass = captured(texts, &next, &token, length + 1)?;
        let farthest = known(&farthest_pass, length + 1)?;
        drop((next, farthest_pass));
        let (at_far, growth) = (first.and(&far)?, first.and(&farthest)?);
        if !short.agrees(&growth, last as u64) || !at_far.agrees(&growth, length as u64) {
            return Err(refused(&format!("a step behind {length} tokens is another one than behind few")));
        }
        check_turns(&growth, [&far, &farthest])?;
        of_first.forget_caches(&growth);

        let state = state(&growth, capacity, &token)?;
        let shape = pass.shapes.first().cloned().unwrap_or_else(|| Shape::from(()));
        let of = Arc::new(Common {
            sources: sources(&growth, inputs, &pass, capacity)?,
            graph: growth.graph.clone(),
            shape,
        });
        // What is computed of weights alone, such as several beside each other, is computed once.
        builder.0.settings.constant_room += of.bytes();
        let executor = builder.build_step(
            move |x: &[Tensor], state: &Vec<Tensor>| of.step(x, state),
            std::slice::from_ref(&token),
            &state,
        )?;
        if executor.report().mode == Mode::Eager {
            return Err(refused(&executor.report().reason.unwrap_or_else(|| "its step is not replayed".into())));
        }
        let mut step = Self { executor, state, growth, standing, of_first, known: [first, second], capacity };
        for (mut text, length) in [(longest, length), (text, last)] {
            step.take_over(texts, &text, &token, length)?;
            // Two steps, if there is room: the second one reads what the first one has appended.
            for at in length..capacity.min(length + 2) {
                let (given, expected) = (step.step(&token)?, texts.add(&mut text, &token, at)?);
                let verdict = near(&expected.flatten_all()?, &given.flatten_all()?, compared.apart)?;
                verdict.map_err(|why| refused(&format!("behind {at} tokens {why}")))?;
            }
        }
        Ok(step)
    }

    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Copies what the model has of a text of `length` tokens, if its next step is the one that is replayed.
    ///
    /// # Errors
    /// [`Error::NotCapturable`] if that step is another one.
    pub fn take_over<M: Send + 'static>(
        &mut self,
        texts: &Texts<M>,
        text: &Text<M>,
        token: &Tensor,
        length: usize,
    ) -> Result<()> {
        let pass = captured(texts, text, token, length)?;
        let now = Known::of(&pass, &self.standing, length)?.placed_like(&self.of_first, &pass)?;
        let [first, second] = &self.known;
        let other = if first.length == length { second } else { first };
        if !now.and(other)?.agrees(&self.growth, length.max(other.length) as u64) {
            return Err(refused(&format!(
                "the step behind {length} tokens is another one than the decoder was built for"
            )));
        }
        for (cache, to) in self.growth.caches.iter().zip(&self.state[1..]) {
            let [keys, values] = [cache.keys, cache.values].map(|of| Earlier::of(&pass, &now, of, cache));
            let (keys, values) = (keys?, values?);
            let both = Tensor::stack(&[keys.tokens, values.tokens], 0)?.unsqueeze(0)?;
            // What is left of another text may be infinite, and operators that read all places multiply it by zero.
            write(to, &to.zeros_like()?)?;
            to.slice_set(&both.contiguous()?, 3, keys.first)?;
        }
        Ok(write(&self.state[0], &Tensor::new(&[length as u32], token.device())?)?)
    }

    /// Adds a token to the text that was taken over.
    pub fn step(&mut self, token: &Tensor) -> Result<Tensor> {
        let outputs = self.executor.step(std::slice::from_ref(token), &mut self.state)?;
        outputs.into_iter().next().ok_or_else(|| Error::Internal { message: "a step gave no logits".into() })
    }

    pub fn report(&self) -> Report {
        self.executor.report()
    }
}

/// The common step: what it computes, and of what.
struct Common {
    graph: Graph,
    sources: Vec<From>,
    /// Of the logits.
    shape: Shape,
}

/// An input of the common step.
enum From {
    Weight(Tensor),
    Argument(usize),
    Position,
    Cache(usize),
    /// The first elements of a row of a table of two dimensions.
    Row(Tensor, usize),
}

impl Common {
    /// Bytes of the weights, in the order that operators need.
    fn bytes(&self) -> u64 {
        let of = |(from, input): (&From, &Input)| match from {
            From::Weight(weight) => {
                arranged_bytes(input.element, (weight.elem_count() * weight.dtype().size_in_bytes()) as u64)
            }
            _ => 0,
        };
        self.sources.iter().zip(&self.graph.inputs).map(of).sum()
    }

    /// The logits of one token; the state has its keys and values then.
    fn step(&self, x: &[Tensor], state: &[Tensor]) -> candle::Result<Vec<Tensor>> {
        let position = &state[0];
        let input = |from: &From| match from {
            From::Weight(weight) => Ok(weight.clone()),
            From::Argument(at) => Ok(x[*at].clone()),
            From::Position => Ok(position.clone()),
            From::Cache(at) => Ok(state[1 + at].clone()),
            From::Row(table, elements) => table.index_select(position, 0)?.narrow(1, 0, *elements)?.contiguous(),
        };
        let inputs = self.sources.iter().map(input).collect::<candle::Result<Vec<_>>>()?;
        let outputs = evaluate(&self.graph, &inputs, Arithmetic::Typed, Numbers::All)?;
        ops::advance(position, 1)?;
        outputs.into_iter().map(|logits| logits.reshape(&self.shape)).collect()
    }
}

/// The inputs of a capture's graph.
fn inputs(pass: &WholePass, token: &Tensor) -> Result<Vec<Tensor>> {
    let input = |at| Ok(pass.copied(at)?.map_or_else(|| token.flatten_all(), Ok)?);
    (0..pass.places.len()).map(input).collect()
}

/// What the inputs of the common graph are.
fn sources(growth: &Growth, inputs: Vec<Tensor>, pass: &WholePass, capacity: usize) -> Result<Vec<From>> {
    let source = |(at, source): (usize, &Source)| match *source {
        Source::Position => Ok(From::Position),
        Source::Cache(at) => Ok(From::Cache(at)),
        Source::Recorded(input) => Ok(match pass.places[input] {
            Place::Argument(at) => From::Argument(at),
            Place::Memory(_) => From::Weight(inputs[input].clone()),
        }),
        Source::Row { table, first, between } => {
            let (table, first, between) = (&inputs[table], first as usize, between as usize);
            let rows = (table.elem_count() - first) / between;
            if rows < capacity {
                return Err(refused(&format!("the model has tables for {rows} positions, fewer than {capacity}")));
            }
            let rows = table.narrow(0, first, rows * between)?.reshape((rows, between))?.force_contiguous()?;
            Ok(From::Row(rows, growth.graph.inputs[at].len as usize))
        }
    };
    growth.sources.iter().enumerate().map(source).collect()
}

/// The state of a text without tokens.
fn state(growth: &Growth, capacity: usize, token: &Tensor) -> Result<Vec<Tensor>> {
    let device = token.device();
    let cache = |cache: &Cache| {
        let [heads, size] = [cache.heads, cache.size].map(|n| n as usize);
        Tensor::zeros((1, 2, heads, capacity, size), Arithmetic::Typed.dtype(cache.element), device)
    };
    let position = Tensor::zeros(1, DType::U32, device);
    Ok(std::iter::once(position).chain(growth.caches.iter().map(cache)).collect::<candle::Result<_>>()?)
}
