//! The models of a decoder's texts: one for each text.

use std::sync::Arc;

use candle::{DType, Tensor};

use super::tokens::Tokens;
use crate::panics::caught;
use crate::Result;

/// A decoder's forward pass: the model with its cache, tokens `(rows, n)` and their mask, if it is told, and the position of the first one.
pub(super) type Forward<M> = Arc<dyn Fn(&mut M, &[Tensor], usize) -> candle::Result<Tensor> + Send + Sync>;

/// Where models of texts come from.
pub(super) struct Texts<M> {
    forward: Forward<M>,
    source: Source<M>,
    /// The type of the mask, if the forward pass is told which tokens count.
    mask: Option<DType>,
}

enum Source<M> {
    /// A model without a text, and its clone.
    Cloned(M, fn(&M) -> M),
    Made(Box<dyn Fn() -> candle::Result<M> + Send + Sync>),
}

/// A model with its text.
pub(super) struct Text<M> {
    pub model: M,
    /// What it has read, with the position of each part: if it cannot be cloned, another model reads the same.
    read: Vec<(Tokens, usize)>,
    /// The mask of all its tokens, if the forward pass is told.
    mask: Option<Tensor>,
}

/// A text, which another model can have.
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "a CPU runs what it is given"))]
pub(super) enum Past<M> {
    Cloned(Text<M>),
    Read(Vec<(Tokens, usize)>),
}

#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "a CPU runs what it is given"))]
impl<M> Text<M> {
    /// Its tokens so far.
    ///
    /// # Errors
    /// None of a model that is cloned.
    pub fn past(&self, texts: &Texts<M>) -> Result<Past<M>> {
        match texts.is_made() {
            true => Ok(Past::Read(self.read.clone())),
            false => texts.copy(self).map(Past::Cloned),
        }
    }

    /// The same, which has read these tokens, too.
    ///
    /// # Errors
    /// No memory for a mask.
    pub fn with(mut self, texts: &Texts<M>, tokens: &Tokens, position: usize) -> Result<Self> {
        self.mask = texts.mask_with(&self, tokens)?;
        if texts.is_made() {
            self.read.push((tokens.clone(), position));
        }
        Ok(self)
    }

    /// Which of its tokens count, `(rows, tokens)`, if the forward pass is told.
    pub fn mask(&self) -> Option<&Tensor> {
        self.mask.as_ref()
    }
}

impl<M> Texts<M> {
    /// Clones of a model without a text.
    pub fn cloned(forward: Forward<M>, fresh: M) -> Self
    where
        M: Clone,
    {
        Self { forward, source: Source::Cloned(fresh, M::clone), mask: None }
    }

    /// Models that `make` makes.
    pub fn made(forward: Forward<M>, make: impl Fn() -> candle::Result<M> + Send + Sync + 'static) -> Self {
        Self { forward, source: Source::Made(Box::new(make)), mask: None }
    }

    /// The same for a forward pass that is told which tokens count, by a mask of this type.
    pub fn with_mask(self, dtype: DType) -> Self {
        Self { mask: Some(dtype), ..self }
    }

    /// The type of the mask, if the forward pass is told which tokens count.
    pub fn mask(&self) -> Option<DType> {
        self.mask
    }

    /// The mask of a text with new tokens.
    fn mask_with(&self, text: &Text<M>, tokens: &Tokens) -> Result<Option<Tensor>> {
        let Some(dtype) = self.mask else { return Ok(None) };
        let new = match &tokens.mask {
            Some(mask) => mask.to_dtype(dtype)?,
            None => Tensor::ones(tokens.ids.shape(), dtype, tokens.ids.device())?,
        };
        let all = text.mask.as_ref().map_or(Ok(new.clone()), |mask| Tensor::cat(&[mask, &new], 1))?;
        Ok(Some(all.contiguous()?))
    }

    /// What the forward pass of a text is given for new tokens.
    ///
    /// # Errors
    /// No memory for a mask.
    pub fn inputs(&self, text: &Text<M>, tokens: &Tokens) -> Result<Vec<Tensor>> {
        Ok([tokens.ids.clone()].into_iter().chain(self.mask_with(text, tokens)?).collect())
    }

    /// A model without a text.
    ///
    /// # Errors
    /// Errors of the function that makes it, and [`Error::Panicked`](crate::Error::Panicked) if it panics.
    pub fn fresh(&self) -> Result<Text<M>> {
        let model = match &self.source {
            Source::Cloned(fresh, clone) => clone(fresh),
            Source::Made(make) => caught(|| Ok(make()?))?,
        };
        Ok(Text { model, read: Vec::new(), mask: None })
    }

    /// Adds tokens to a text of `position` tokens, and gives what the model returns.
    ///
    /// # Errors
    /// The model's own errors, and [`Error::Panicked`](crate::Error::Panicked) if it panics.
    pub fn add(&self, text: &mut Text<M>, tokens: &Tokens, position: usize) -> Result<Tensor> {
        let inputs = self.inputs(text, tokens)?;
        let logits = caught(|| Ok((self.forward)(&mut text.model, &inputs, position)?))?;
        text.mask = inputs.into_iter().nth(1);
        if self.is_made() {
            text.read.push((tokens.clone(), position));
        }
        Ok(logits)
    }

    /// A model with a text from before.
    ///
    /// # Errors
    /// Errors of [`copy`](Self::copy).
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "a CPU runs what it is given"))]
    pub fn of(&self, past: &Past<M>) -> Result<Text<M>> {
        match past {
            Past::Cloned(text) => self.copy(text),
            Past::Read(parts) => self.read(parts),
        }
    }

    /// Another model with the same text.
    ///
    /// # Errors
    /// Errors of [`fresh`](Self::fresh) and of [`add`](Self::add).
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "a CPU runs what it is given"))]
    pub fn copy(&self, text: &Text<M>) -> Result<Text<M>> {
        match &self.source {
            Source::Cloned(_, clone) => {
                Ok(Text { model: clone(&text.model), read: Vec::new(), mask: text.mask.clone() })
            }
            Source::Made(_) => self.read(&text.read),
        }
    }

    /// Another model that reads the same.
    fn read(&self, parts: &[(Tokens, usize)]) -> Result<Text<M>> {
        let mut text = self.fresh()?;
        for (tokens, position) in parts {
            self.add(&mut text, tokens, *position)?;
        }
        Ok(text)
    }

    /// Is each text's model made anew? Then no other model shares its caches.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "a CPU runs what it is given"))]
    pub fn is_made(&self) -> bool {
        matches!(self.source, Source::Made(_))
    }

    /// The forward pass.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "a CPU runs what it is given"))]
    pub fn forward(&self) -> &Forward<M> {
        &self.forward
    }
}
