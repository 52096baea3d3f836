//! `DecoderExecutor`: replays the steps of a decoder whose cache grows with the text.

#[cfg(feature = "cuda")]
mod counted;
#[cfg(feature = "cuda")]
mod earlier;
#[cfg(feature = "cuda")]
mod known;
#[cfg(feature = "cuda")]
mod opaque;
#[cfg(feature = "cuda")]
mod others;
#[cfg(feature = "cuda")]
mod pieces;
#[cfg(feature = "cuda")]
mod prompts;
#[cfg(feature = "cuda")]
mod several;
#[cfg(feature = "cuda")]
mod sources;
#[cfg_attr(not(feature = "cuda"), path = "step_absent.rs")]
mod step;
mod texts;
mod tokens;

use std::sync::Arc;

use candle::Tensor;

use self::step::Step;
use self::texts::{Text, Texts};
use self::tokens::Tokens;
use crate::builder::Builder;
use crate::error::DecoderError;
use crate::report::Report;
use crate::{OnUncapturable, Result};

/// A decoder as it came from another library, whose steps are replayed, and whose prompts are.
///
/// Made by [`Builder::build_decoder`] and [`Builder::build_decoder_from`]. It has one text at a time.
pub struct DecoderExecutor<M> {
    texts: Texts<M>,
    /// The model with the text. `None` before the first text, and while replays have it.
    text: Option<Text<M>>,
    /// Tokens of the text.
    length: usize,
    /// Do replays have the text?
    is_replayed: bool,
    /// Attempts to have replays take this text over that failed.
    failed: u8,
    /// Did a call fail that may have added its tokens?
    is_broken: bool,
    step: Option<Step>,
    /// Why steps are not replayed.
    refused: Option<String>,
}

impl Builder {
    /// Wraps a decoder without a change. Its cache of keys and values grows by concatenation, or is a buffer that it writes to in place, and
    /// states are tensors that each step makes anew, as candle-transformers' are. `forward` is given the model, tokens of shape `(1, n)`, and the position of the
    /// first one; it returns the logits, which [`DecoderExecutor::forward`] then does. `model` has no text yet. A clone of it is a text
    /// of its own, which shares the weights; a cache that clones share, behind an `Arc` or in a tensor that is there from the start, is
    /// not detected in all cases. `example` are tokens `(1, n)`, at least two, or `(rows, n)` of several texts that go on together, and
    /// `capacity` is how many tokens a text may have.
    ///
    /// Such a module reads tensors of other sizes for every token, so that its passes cannot be one graph. Building captures two steps
    /// behind a short text and two behind one that ends at the capacity, and finds where they differ. If all of that is a cache that
    /// grows, or that has the latest tokens alone, what is computed of it, a state, or what follows from the position, one step takes
    /// their place: its caches have a fixed size, and the position is on the device. Any other difference is a reason to run the module
    /// eagerly, with a warning that says it ([`DecoderExecutor::refused`]). So is a replayed step whose logits are not near the
    /// module's. A rewritten step that is less accurate than the module's, measured in double precision on the example, is left out:
    /// steps have candle's operators then.
    ///
    /// Numerics are those of [`Numerics::Accurate`](crate::Numerics::Accurate) in any case. A decision that the module's host code
    /// makes at a length between those that were captured is not seen, unless it is there at both, nor that a full buffer keeps some of
    /// its oldest tokens and turns over the others. Prompts are read in pieces by graphs that are made of the step's, unless
    /// [`DecoderExecutor::several_refused`] says why not. The step has its own copy of the weights,
    /// and another one of those that it joins (queries, keys and values; gate and up), which pieces share, so weights that change after
    /// building are seen by prompts that the module reads alone. On the CPU the module runs eagerly.
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
    /// The module's own errors, [`Error::Panicked`](crate::Error::Panicked) if it panics,
    /// [`Error::Decoder`](crate::Error::Decoder) for an example that does not fit, and
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
        let forward = move |model: &mut M, x: &[Tensor], at| forward(model, &x[0], at);
        self.build_decoder_of(Texts::cloned(Arc::new(forward), model), Tokens::new(example, None)?, capacity)
    }

    /// The same for texts of several lengths, which are filled up on the left: `forward` is also given a mask `(rows, tokens so far)` of its
    /// last argument's type, 0 where a token is padding. It is for attention to hide these, and for positions to begin behind them.
    /// `mask` is that of the `example`, of the same shape.
    ///
    /// [`DecoderExecutor::forward_padded`] begins such texts; all tokens of [`DecoderExecutor::forward`] count. Replays keep the mask on
    /// the device. It may be of any type. Hide keys by a finite low number: a row of padding sees nothing else, and behind minus infinities
    /// it would be no number.
    ///
    /// ```
    /// use candle::{DType, Device, Tensor};
    /// use opara_candle::OparaExecutor;
    ///
    /// // Stands for a model with a cache: the sum of all tokens so far that count.
    /// let forward = |all: &mut Option<Tensor>, tokens: &Tensor, _: usize, mask: &Tensor| {
    ///     let earlier = all.take().map_or_else(|| tokens.narrow(1, 0, 0), Ok)?;
    ///     let all = all.insert(Tensor::cat(&[&earlier, tokens], 1)?);
    ///     (&*all * mask)?.sum(1)
    /// };
    /// let prompts = Tensor::new(&[[0u32, 2, 3], [1, 2, 3]], &Device::Cpu)?;
    /// let mask = Tensor::new(&[[0u32, 1, 1], [1, 1, 1]], &Device::Cpu)?;
    /// let mut decoder = OparaExecutor::builder().build_padded_decoder(None, forward, &prompts, &mask, 64)?;
    /// decoder.forward_padded(&prompts, &mask, 0)?;
    /// let logits = decoder.forward(&Tensor::new(&[[4u32], [4]], &Device::Cpu)?, 3)?;
    /// assert_eq!(logits.to_vec1::<u32>()?, [9, 10]);
    /// # Ok::<(), opara_candle::Error>(())
    /// ```
    ///
    /// # Errors
    /// Errors of [`build_decoder`](Self::build_decoder). Steps run eagerly, too, if the module does not read the mask at each step.
    pub fn build_padded_decoder<M, F>(
        self,
        model: M,
        forward: F,
        example: &Tensor,
        mask: &Tensor,
        capacity: usize,
    ) -> Result<DecoderExecutor<M>>
    where
        M: Clone + Send + Sync + 'static,
        F: Fn(&mut M, &Tensor, usize, &Tensor) -> candle::Result<Tensor> + Send + Sync + 'static,
    {
        let forward = move |model: &mut M, x: &[Tensor], at| forward(model, &x[0], at, &x[1]);
        let texts = Texts::cloned(Arc::new(forward), model).with_mask(mask.dtype());
        self.build_decoder_of(texts, Tokens::new(example, Some(mask))?, capacity)
    }

    /// The same for a model that cannot be cloned: `make` makes one without a text. It should share the weights of earlier ones, as one
    /// does that takes tensors of a [`VarBuilder`](candle_nn::VarBuilder) as they are.
    ///
    /// Building makes a model for each text that it reads, and each text of the executor has another one. Where a text is taken over by
    /// replays, one more model reads its prompt.
    ///
    /// ```
    /// use candle::{Device, Tensor};
    /// use opara_candle::OparaExecutor;
    ///
    /// /// Stands for a model with a cache that is not `Clone`.
    /// struct Sum(u32);
    ///
    /// let forward = |sum: &mut Sum, tokens: &Tensor, _: usize| {
    ///     sum.0 += tokens.sum_all()?.to_scalar::<u32>()?;
    ///     Tensor::new(&[sum.0], tokens.device())
    /// };
    /// let prompt = Tensor::new(&[[1u32, 2, 3]], &Device::Cpu)?;
    /// let mut decoder = OparaExecutor::builder().build_decoder_from(|| Ok(Sum(0)), forward, &prompt, 64)?;
    /// for _ in 0..2 {
    ///     assert_eq!(decoder.forward(&prompt, 0)?.to_vec1::<u32>()?, [6]); // position 0 begins a text
    /// }
    /// # Ok::<(), opara_candle::Error>(())
    /// ```
    ///
    /// # Errors
    /// Errors of `make`, [`Error::Panicked`](crate::Error::Panicked) if it panics, and errors of [`build_decoder`](Self::build_decoder).
    pub fn build_decoder_from<M, F>(
        self,
        make: impl Fn() -> candle::Result<M> + Send + Sync + 'static,
        forward: F,
        example: &Tensor,
        capacity: usize,
    ) -> Result<DecoderExecutor<M>>
    where
        M: Send + 'static,
        F: Fn(&mut M, &Tensor, usize) -> candle::Result<Tensor> + Send + Sync + 'static,
    {
        let forward = move |model: &mut M, x: &[Tensor], at| forward(model, &x[0], at);
        self.build_decoder_of(Texts::made(Arc::new(forward), make), Tokens::new(example, None)?, capacity)
    }

    /// [`build_padded_decoder`](Self::build_padded_decoder) for a model that cannot be cloned, which `make` makes as for
    /// [`build_decoder_from`](Self::build_decoder_from).
    ///
    /// # Errors
    /// Those of both.
    pub fn build_padded_decoder_from<M, F>(
        self,
        make: impl Fn() -> candle::Result<M> + Send + Sync + 'static,
        forward: F,
        example: &Tensor,
        mask: &Tensor,
        capacity: usize,
    ) -> Result<DecoderExecutor<M>>
    where
        M: Send + 'static,
        F: Fn(&mut M, &Tensor, usize, &Tensor) -> candle::Result<Tensor> + Send + Sync + 'static,
    {
        let forward = move |model: &mut M, x: &[Tensor], at| forward(model, &x[0], at, &x[1]);
        let texts = Texts::made(Arc::new(forward), make).with_mask(mask.dtype());
        self.build_decoder_of(texts, Tokens::new(example, Some(mask))?, capacity)
    }

    fn build_decoder_of<M: Send + 'static>(
        self,
        texts: Texts<M>,
        example: Tokens,
        capacity: usize,
    ) -> Result<DecoderExecutor<M>> {
        let tokens = example.count();
        if tokens < 2 || capacity < tokens + 4 {
            return Err(DecoderError::Example { tokens, capacity }.into());
        }
        let on_uncapturable = self.0.on_uncapturable;
        let (step, refused) = match Step::build(self, &texts, &example, capacity) {
            Ok(step) => (Some(step), None),
            Err(error) if error.is_refusal() && on_uncapturable == OnUncapturable::Eager => {
                let reason = error.to_string();
                if example.ids.device().is_cuda() {
                    tracing::warn!(reason, "the steps of this decoder are not replayed: it runs eagerly");
                }
                (None, Some(reason))
            }
            Err(error) => return Err(error),
        };
        let (is_replayed, failed, is_broken) = (false, 0, false);
        Ok(DecoderExecutor { texts, text: None, length: 0, is_replayed, failed, is_broken, step, refused })
    }
}

impl<M: Send + 'static> DecoderExecutor<M> {
    /// Adds tokens `(1, n)` to the text and returns what the module returns for them; of an example with several rows, `(rows, n)`. `position` says how many tokens there are before
    /// them; at 0 another text begins.
    ///
    /// A token is a step. Several tokens are read in pieces of a few sizes, each of which is one graph, built at its first use. Where that is
    /// [refused](Self::several_refused), several tokens are as many steps; but prompts that the module reads faster, it reads itself. Then the
    /// first one after a prompt also captures the module's own step and copies its cache. Some modules leave their cache in another form
    /// behind a prompt than behind a step: they make the first step themselves, and replays take over at the second one.
    ///
    /// # Errors
    /// [`Error::Decoder`](crate::Error::Decoder) for tokens that the text cannot go on with, which then stays as it is; the module's
    /// own errors, and
    /// those of [`StepExecutor::step`](crate::StepExecutor::step). After one of these the text is to be begun anew.
    pub fn forward(&mut self, tokens: &Tensor, position: usize) -> Result<Tensor> {
        self.add(&Tokens::new(tokens, None)?, position)
    }

    /// The same for tokens of which some are padding: where `mask`, of the tokens' shape, is 0. Texts of several lengths begin at position 0
    /// with padding on their left; later, rows may have padding instead of tokens of their own.
    ///
    /// # Errors
    /// Those of [`forward`](Self::forward), and [`Error::Decoder`](crate::Error::Decoder) for a mask of another shape, or if the decoder
    /// is none of [`build_padded_decoder`](Builder::build_padded_decoder) or
    /// [`build_padded_decoder_from`](Builder::build_padded_decoder_from).
    pub fn forward_padded(&mut self, tokens: &Tensor, mask: &Tensor, position: usize) -> Result<Tensor> {
        if self.texts.mask().is_none() {
            return Err(DecoderError::NoMask.into());
        }
        self.add(&Tokens::new(tokens, Some(mask))?, position)
    }

    fn add(&mut self, tokens: &Tokens, position: usize) -> Result<Tensor> {
        let count = tokens.count();
        if position != 0 && position != self.length {
            return Err(DecoderError::Position { expected: self.length, got: position }.into());
        }
        if let Some(step) = &self.step {
            let (tokens, capacity) = (position + count, step.capacity());
            if tokens > capacity {
                return Err(DecoderError::Capacity { tokens, capacity }.into());
            }
        }
        let is_alike = self.step.as_ref().is_some_and(|step| tokens.rows() == step.rows());
        if position == 0 {
            // The text before goes first: there is room for one.
            (self.text, self.is_replayed, self.failed, self.is_broken) = (None, false, 0, true);
            match self.step.as_ref().filter(|step| is_alike && step.reads_prompt(count)) {
                Some(step) => {
                    step.begin()?;
                    self.is_replayed = true;
                }
                None => self.text = Some(self.texts.fresh()?),
            }
            self.is_broken = false;
        }
        if self.is_broken {
            return Err(DecoderError::Broken.into());
        }
        self.length = position;
        if self.is_replayed && !is_alike {
            return Err(DecoderError::Tokens { got: tokens.ids.shape().clone() }.into());
        }
        if count == 1 && position > 1 && is_alike {
            self.take_over(tokens)?;
        }
        self.is_broken = true;
        let logits = match (&mut self.step, &mut self.text) {
            (Some(step), _) if self.is_replayed && count == 1 => step.step(tokens, position)?,
            (Some(step), _) if self.is_replayed => match step.read(tokens, position)? {
                Some(logits) => logits,
                None => {
                    self.is_broken = false;
                    return Err(DecoderError::Several { tokens: count }.into());
                }
            },
            (_, Some(text)) => self.texts.add(text, tokens, position)?,
            (_, None) => return Err(DecoderError::Position { expected: 0, got: position }.into()),
        };
        self.is_broken = false;
        self.length += count;
        Ok(logits)
    }

    /// Has replays take over the text, if they can.
    fn take_over(&mut self, token: &Tokens) -> Result<()> {
        /// After the first step behind a prompt, caches are as steps leave them.
        const ATTEMPTS: u8 = 2;
        let (Some(step), Some(text)) = (self.step.as_mut().filter(|_| self.failed < ATTEMPTS), &self.text) else {
            return Ok(());
        };
        match step.take_over(&self.texts, text, token, self.length) {
            Ok(()) => (self.text, self.is_replayed) = (None, true),
            Err(error) if error.is_refusal() => {
                self.failed += 1;
                if self.failed == ATTEMPTS {
                    tracing::warn!(%error, "the steps of this text are not replayed");
                }
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// The report of the step's plan; `None` if steps are not replayed.
    pub fn report(&self) -> Option<Report> {
        self.step.as_ref().map(Step::report)
    }

    /// Why prompts, and several tokens behind a text, are not replayed in pieces, if steps are replayed and these are not. Then they are as many
    /// steps, but for prompts that the module reads faster.
    pub fn several_refused(&self) -> Option<&str> {
        self.step.as_ref().and_then(Step::several_refused)
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
