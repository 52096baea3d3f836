//! A captured step of a module, as a rewritten graph.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use candle::{DType, Tensor};
use opara_plan::rewrite::{Graph, Growth, Inputs, Output, Source, Standing, Value};
use parking_lot::Mutex;

use super::texts::{Past, Text, Texts};
use super::tokens::Tokens;
use crate::backend::Function;
use crate::cuda::{Place, WholePass};
use crate::panics::caught;
use crate::{Error, Result};

/// A rewritten capture behind a text of so many tokens.
pub(super) struct Known {
    pub length: usize,
    pub graph: Graph,
    overwritten: Vec<usize>,
    places: Vec<Place>,
}

impl Known {
    /// A capture, rewritten, which also gives these states.
    pub fn of(pass: &WholePass, standing: &Standing, states: &[(usize, Value)], length: usize) -> Result<Self> {
        let changed = standing.applied(&with_states(pass, states));
        let (graph, _) =
            changed.ok_or_else(|| refused(&format!("behind {length} tokens other launches are rewritten")))?;
        Ok(Self::rewritten(graph, pass, length))
    }

    /// A capture of which this is the rewritten graph.
    pub fn rewritten(graph: Graph, pass: &WholePass, length: usize) -> Self {
        let overwritten = pass.overwritten.iter().map(|(input, _)| *input).collect();
        Self { length, graph, overwritten, places: pass.places.clone() }
    }

    /// Says where the first pass had the numbers that this one has elsewhere: the model of another text may have tables of its own.
    ///
    /// # Errors
    /// No memory for a copy.
    pub fn placed_like(mut self, first: &First, pass: &WholePass) -> Result<Self> {
        for (at, place) in self.places.iter_mut().enumerate() {
            let (Some(of), Some(Some(numbers))) = (first.places.get(at), first.numbers.get(at)) else { continue };
            if place == of {
                continue;
            }
            let Some(own) = pass.copied(at)? else { continue };
            if own.elem_count() == numbers.elem_count() && own.dtype() == numbers.dtype() && are_equal(&own, numbers)? {
                place.clone_from(of);
            }
        }
        Ok(self)
    }

    /// What two captures have in common.
    pub fn and(&self, other: &Self, inputs: &Inputs) -> Result<Growth> {
        let [a, b] = if self.length < other.length { [self, other] } else { [other, self] };
        let growth = Growth::of([&a.graph, &b.graph], [a.length as u64, b.length as u64], inputs);
        let growth = growth.map_err(|why| refused(&why))?;
        for of in [a, b] {
            growth.explains(&of.overwritten).map_err(|why| refused(&why))?;
        }
        let is_weight = |source: &Source| match *source {
            Source::Recorded(at) | Source::Row { table: at, .. } => a.places.get(at) == b.places.get(at),
            _ => true,
        };
        match growth.sources.iter().all(is_weight) {
            true => Ok(growth),
            false => Err(refused("it reads other weights at another length, or makes a table anew at each step")),
        }
    }
}

/// The graph of a pass, which also gives what it leaves as states.
pub(super) fn with_states(pass: &WholePass, states: &[(usize, Value)]) -> Graph {
    let mut graph = pass.graph.clone();
    // The others stay as they were.
    for &(_, value) in
        states.iter().filter(|(_, value)| matches!(value, Value::Node(at) if *at < pass.graph.nodes.len()))
    {
        graph.outputs.push(Output { value, buffer: graph.outputs.len() });
    }
    graph
}

/// Where a first pass has the numbers that its steps read, and what they are where another text has its own: tables that a model makes with
/// its first token.
pub(super) struct First {
    places: Vec<Place>,
    numbers: Vec<Option<Tensor>>,
}

impl First {
    pub fn of(pass: &WholePass, inputs: &[Tensor]) -> Self {
        Self { places: pass.places.clone(), numbers: inputs.iter().cloned().map(Some).collect() }
    }

    /// Forgets the tokens of the text, and what the pass of another text reads from the same memory.
    pub fn forget(&mut self, growth: &Growth, other: &WholePass) {
        let caches = growth.caches.iter().flat_map(|cache| [cache.keys.input, cache.values.input]);
        let grown = growth.grown.iter().map(|of| of.input);
        let shared = (0..self.places.len()).filter(|&at| other.places.get(at) == self.places.get(at));
        for at in caches.chain(grown).chain(growth.states.iter().copied()).chain(shared) {
            self.numbers.get_mut(at).map(Option::take);
        }
    }
}

/// Are all numbers of two rows the same?
pub(super) fn are_equal(a: &Tensor, b: &Tensor) -> candle::Result<bool> {
    Ok(a.ne(b)?.to_dtype(DType::F32)?.sum_all()?.to_scalar::<f32>()? == 0.)
}

/// A capture, with the text before it, which may be all that still has the tensors that it read.
pub(super) struct Captured<M> {
    pass: WholePass,
    _before: Past<M>,
}

impl<M> Deref for Captured<M> {
    type Target = WholePass;

    fn deref(&self) -> &WholePass {
        &self.pass
    }
}

impl<M> DerefMut for Captured<M> {
    fn deref_mut(&mut self) -> &mut WholePass {
        &mut self.pass
    }
}

/// Captures a step behind a text of `length` tokens; the text goes on with it.
///
/// A capture that is repeated runs the step again, on another model with the same text. Those are made before, since making one may
/// launch kernels.
pub(super) fn captured<M: Send + 'static>(
    texts: &Texts<M>,
    text: Text<M>,
    token: &Tokens,
    length: usize,
) -> Result<(Captured<M>, Text<M>)> {
    let inputs = texts.inputs(&text, token)?;
    let (before, mut first) = (text.past(texts)?, Some(text));
    for models in [1, 2, 6] {
        let forward = texts.forward().clone();
        let mut left = Vec::with_capacity(models);
        for _ in 0..models {
            left.push(first.take().map_or_else(|| texts.of(&before), Ok)?);
        }
        let (texts_left, is_short) = (Arc::new(Mutex::new((left, None))), Arc::new(AtomicBool::new(false)));
        let (of, short) = (texts_left.clone(), is_short.clone());
        let function: Function = Arc::new(move |x: &[Tensor]| {
            let Some(mut text) = of.lock().0.pop() else {
                short.store(true, Ordering::Relaxed);
                candle::bail!("no model is left")
            };
            let logits = caught(|| Ok(vec![forward(&mut text.model, x, length)?]));
            of.lock().1 = Some(text);
            Ok(logits?)
        });
        let pass = WholePass::of(&function, &inputs);
        if is_short.load(Ordering::Relaxed) {
            continue;
        }
        let pass = pass?;
        let text = texts_left.lock().1.take();
        let text = text.ok_or_else(|| refused("its step was not called"))?;
        return Ok((Captured { pass, _before: before }, text.with(texts, token, length)?));
    }
    Err(refused("its capture is repeated again and again"))
}

/// That steps are not replayed, for this reason.
pub(super) fn refused(reason: &str) -> Error {
    Error::NotCapturable { reason: reason.into() }
}

/// Says why in other words, unless the device is lost.
pub(super) fn or_refused(error: Error, what: &str) -> Error {
    match error {
        lost @ Error::DeviceLost { .. } => lost,
        error => refused(&format!("{what}: {error}")),
    }
}
