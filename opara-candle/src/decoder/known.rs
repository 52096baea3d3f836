//! A captured step of a module, as a rewritten graph.

use std::any::Any;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use candle::{DType, Tensor};
use opara_plan::rewrite::{Graph, Growth, Source, Standing};
use parking_lot::Mutex;

use super::texts::{Text, Texts};
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
    /// A capture, rewritten.
    pub fn of(pass: &WholePass, standing: &Standing, length: usize) -> Result<Self> {
        let changed = standing.applied(&pass.graph);
        let (graph, _) =
            changed.ok_or_else(|| refused(&format!("behind {length} tokens other launches are rewritten")))?;
        Ok(Self::rewritten(graph, pass, length))
    }

    /// A capture of which this is the rewritten graph.
    pub fn rewritten(graph: Graph, pass: &WholePass, length: usize) -> Self {
        Self { length, graph, overwritten: pass.overwritten.clone(), places: pass.places.clone() }
    }

    /// Says where the first pass had the numbers that this one has elsewhere. A model that is made anew has tables of its own.
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
                *place = *of;
            }
        }
        Ok(self)
    }

    /// What two captures have in common.
    pub fn and(&self, other: &Self) -> Result<Growth> {
        let [a, b] = if self.length < other.length { [self, other] } else { [other, self] };
        let growth = Growth::of([&a.graph, &b.graph], [a.length as u64, b.length as u64]);
        let growth = growth.map_err(|why| refused(&why))?;
        for of in [a, b] {
            growth.explains(&of.overwritten).map_err(|why| refused(&why))?;
        }
        let is_weight = |source: &Source| match *source {
            Source::Recorded(at) | Source::Row { table: at, .. } => a.places.get(at) == b.places.get(at),
            Source::Position | Source::Cache(_) => true,
        };
        match growth.sources.iter().all(is_weight) {
            true => Ok(growth),
            false => Err(refused("it reads other weights at another length, or makes a table anew at each step")),
        }
    }
}

/// Where a first pass has the numbers that its steps read, and what they are, of models that are made anew.
#[derive(Default)]
pub(super) struct First {
    places: Vec<Place>,
    numbers: Vec<Option<Tensor>>,
}

impl First {
    pub fn of(pass: &WholePass, inputs: &[Tensor]) -> Self {
        Self { places: pass.places.clone(), numbers: inputs.iter().cloned().map(Some).collect() }
    }

    /// Forgets the keys and values: each text has its own.
    pub fn forget_caches(&mut self, growth: &Growth) {
        for at in growth.caches.iter().flat_map(|cache| [cache.keys.input, cache.values.input]) {
            self.numbers.get_mut(at).map(Option::take);
        }
    }
}

/// Are all numbers of two rows the same?
pub(super) fn are_equal(a: &Tensor, b: &Tensor) -> candle::Result<bool> {
    Ok(a.ne(b)?.to_dtype(DType::F32)?.sum_all()?.to_scalar::<f32>()? == 0.)
}

/// A capture. Where each text's model is made anew, with the models that it ran on, which alone have their caches.
pub(super) struct Captured {
    pass: WholePass,
    _models: Box<dyn Any + Send>,
}

impl Deref for Captured {
    type Target = WholePass;

    fn deref(&self) -> &WholePass {
        &self.pass
    }
}

/// Captures a step behind a text of `length` tokens, on a copy of it.
///
/// A capture that is repeated runs the step again, on a copy of its own. Copies are made before, since making one may launch kernels.
/// A clone is dropped inside of the capture, with the caches that the step gave it: the text keeps those that the step read. A model
/// that was made anew has these alone, and is kept. If the step gave it new caches, they outlive the capture, which is refused.
pub(super) fn captured<M: Send + 'static>(
    texts: &Texts<M>,
    text: &Text<M>,
    token: &Tensor,
    length: usize,
) -> Result<Captured> {
    let mut result = Err(refused("its capture is repeated again and again"));
    for copies in [1, 2, 6] {
        let forward = texts.forward().clone();
        let copies = (0..copies).map(|_| Ok(texts.copy(text)?.model)).collect::<Result<Vec<M>>>()?;
        let (models, runs) = (Arc::new(Mutex::new((copies, Vec::new()))), Arc::new(AtomicBool::new(false)));
        let (left, is_short, is_made) = (models.clone(), runs.clone(), texts.is_made());
        let function: Function = Arc::new(move |x: &[Tensor]| {
            let Some(mut model) = left.lock().0.pop() else {
                is_short.store(true, Ordering::Relaxed);
                candle::bail!("no copy of the model is left")
            };
            let logits = caught(|| Ok(vec![forward(&mut model, &x[0], length)?]));
            if is_made {
                left.lock().1.push(model);
            }
            Ok(logits?)
        });
        let pass = WholePass::of(&function, std::slice::from_ref(token)).map_err(|error| match error {
            Error::Stateful { reason, .. } if texts.is_made() => {
                refused(&format!("a model that is not cloned gets new caches at each step: {reason}"))
            }
            error => error,
        });
        result = pass.map(|pass| Captured { pass, _models: Box::new(models) });
        if !runs.load(Ordering::Relaxed) {
            break;
        }
    }
    result
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
