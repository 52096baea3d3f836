//! `DecoderExecutor`: replays the steps of a decoder whose cache grows with the text.

#[cfg_attr(not(feature = "cuda"), path = "step_absent.rs")]
mod step;

use std::sync::Arc;

use candle::Tensor;

use self::step::Step;
use crate::builder::Builder;
use crate::error::DecoderError;
use crate::panics::caught;
use crate::report::Report;
use crate::{OnUncapturable, Result};

/// A decoder's forward pass: the model with its cache, tokens `(1, n)`, and the position of the first one.
type Forward<M> = Arc<dyn Fn(&mut M, &Tensor, usize) -> candle::Result<Tensor> + Send + Sync>;

/// A decoder as it came from another library, whose steps of one token are replayed.
///
/// Made by [`Builder::build_decoder`]. It has one text at a time.
pub struct DecoderExecutor<M> {
    forward: Forward<M>,
    /// The model without a text.
    fresh: M,
    /// The model with the text, as long as steps are not replayed.
    model: M,
    /// Tokens of the text.
    length: usize,
    /// Do replays have the text?
    is_replayed: bool,
    step: Option<Step>,
    /// Why steps are not replayed.
    refused: Option<String>,
}

impl Builder {
    /// Wraps a decoder whose cache of keys and values grows by concatenation, as most of candle-transformers' do, without a change.
    /// `forward` is given the model, tokens of shape `(1, n)`, and the position of the first one; it returns the logits, which
    /// [`DecoderExecutor::forward`] then does. `model` has no text yet; its clones share weights. `example` are tokens `(1, n)`, at least
    /// two, and `capacity` is how many tokens a text may have.
    ///
    /// Such a module makes tensors of other sizes for every token, so that its passes cannot be one graph. Building captures steps
    /// behind texts of three lengths, the longest being `capacity - 1`, and finds where they differ. If all of that is a cache that
    /// grows, attention that reads it, or a table's row for the position, one step takes their place: its caches have a fixed size, and
    /// the position is on the device. Any other difference is a reason to run the module eagerly, with a warning that says it
    /// ([`DecoderExecutor::refused`]); so is a step whose logits are not as near double precision as the module's own.
    ///
    /// Numerics are those of [`Numerics::Accurate`](crate::Numerics::Accurate) in any case. A decision that the module's host code makes
    /// at a length between those that were captured is not seen, unless it is there at both. Prompts are read by the module itself. The step
    /// has its own copy of the weights. On the CPU the module runs eagerly.
    ///
    /// ```
    /// use candle::{Device, Tensor};
    /// use opara_candle::OparaExecutor;
    ///
    /// // Stands for a model with a cache: the sum of all tokens so far.
    /// let forward = |sum: &mut u32, tokens: &Tensor, _: usize| {
    ///     *sum += tokens.sum_all()?.to_scalar::<u32>()?;
    ///     Tensor::new(&[*sum], tokens.device())
    /// };
    /// let prompt = Tensor::new(&[[1u32, 2, 3]], &Device::Cpu)?;
    /// let mut decoder = OparaExecutor::builder().build_decoder(0, forward, &prompt, 64)?;
    /// decoder.forward(&prompt, 0)?;
    /// let logits = decoder.forward(&Tensor::new(&[[4u32]], &Device::Cpu)?, 3)?;
    /// assert_eq!(logits.to_vec1::<u32>()?, [10]);
    /// # Ok::<(), opara_candle::Error>(())
    /// ```
    ///
    /// # Errors
    /// The module's own errors, [`Error::Panicked`](crate::Error::Panicked) if it panics, [`Error::Decoder`](crate::Error::Decoder) for an example that does not fit, and
    /// errors of [`build_step`](Self::build_step). With [`OnUncapturable::Error`], what would run eagerly.
    pub fn build_decoder<M, F>(
        self,
        model: M,
        forward: F,
        example: &Tensor,
        capacity: usize,
    ) -> Result<DecoderExecutor<M>>
    where
        M: Clone + Send + Sync + 'static,
        F: Fn(&mut M, &Tensor, usize) -> candle::Result<Tensor> + Send + Sync + 'static,
    {
        let tokens = tokens_of(example)?;
        if tokens < 2 || capacity < tokens + 4 {
            return Err(DecoderError::Example { tokens, capacity }.into());
        }
        let forward: Forward<M> = Arc::new(forward);
        let on_uncapturable = self.0.on_uncapturable;
        let (step, refused) = match Step::build(self, &forward, &model, example, capacity) {
            Ok(step) => (Some(step), None),
            Err(error) if error.is_uncapturable() && on_uncapturable == OnUncapturable::Eager => {
                let reason = error.to_string();
                if example.device().is_cuda() {
                    tracing::warn!(reason, "the steps of this decoder are not replayed: it runs eagerly");
                }
                (None, Some(reason))
            }
            Err(error) => return Err(error),
        };
        let (fresh, model) = (model.clone(), model);
        Ok(DecoderExecutor { forward, fresh, model, length: 0, is_replayed: false, step, refused })
    }
}

impl<M: Clone + Send + Sync + 'static> DecoderExecutor<M> {
    /// Adds tokens `(1, n)` to the text and returns what the module returns for them. `position` says how many tokens there are before
    /// them; at 0 another text begins.
    ///
    /// A step of one token is replayed. The first one after a prompt also copies the module's cache.
    ///
    /// # Errors
    /// [`Error::Decoder`](crate::Error::Decoder) for tokens that the text cannot go on with, which then stays as it is; the module's own errors, and
    /// those of [`StepExecutor::step`](crate::StepExecutor::step). After one of these the text is to be begun anew.
    pub fn forward(&mut self, tokens: &Tensor, position: usize) -> Result<Tensor> {
        let count = tokens_of(tokens)?;
        if position != 0 && position != self.length {
            return Err(DecoderError::Position { expected: self.length, got: position }.into());
        }
        if let Some(step) = &self.step {
            let (tokens, capacity) = (position + count, step.capacity());
            if tokens > capacity {
                return Err(DecoderError::Capacity { tokens, capacity }.into());
            }
        }
        if position == 0 {
            (self.model, self.is_replayed) = (self.fresh.clone(), false);
        }
        if self.is_replayed && count > 1 {
            return Err(DecoderError::Several { tokens: count }.into());
        }
        self.length = position;
        let replayed = if count == 1 && position > 0 { self.replay(tokens)? } else { None };
        let logits = match replayed {
            Some(logits) => logits,
            None => caught(|| Ok((self.forward)(&mut self.model, tokens, position)?))?,
        };
        self.length += count;
        Ok(logits)
    }

    /// Replays a step, if that is possible.
    fn replay(&mut self, token: &Tensor) -> Result<Option<Tensor>> {
        let Some(step) = &mut self.step else { return Ok(None) };
        if !self.is_replayed {
            match step.take_over(&self.forward, &self.model, token, self.length) {
                Ok(()) => (self.model, self.is_replayed) = (self.fresh.clone(), true),
                Err(error) if error.is_uncapturable() => {
                    tracing::warn!(%error, "this step of a decoder is not replayed");
                    return Ok(None);
                }
                Err(error) => return Err(error),
            }
        }
        step.step(token).map(Some)
    }

    /// The report of the step's plan; `None` if steps are not replayed.
    pub fn report(&self) -> Option<Report> {
        self.step.as_ref().map(Step::report)
    }

    /// Why steps are not replayed, if they are not.
    pub fn refused(&self) -> Option<&str> {
        self.refused.as_deref()
    }
}

impl<M> std::fmt::Debug for DecoderExecutor<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { length, is_replayed, refused, .. } = self;
        let mut of = f.debug_struct("DecoderExecutor");
        of.field("length", length).field("is_replayed", is_replayed).field("refused", refused).finish_non_exhaustive()
    }
}

/// How many tokens of one text these are.
fn tokens_of(tokens: &Tensor) -> Result<usize> {
    match tokens.dims() {
        &[1, count] if count > 0 => Ok(count),
        _ => Err(DecoderError::Tokens { got: tokens.shape().clone() }.into()),
    }
}
