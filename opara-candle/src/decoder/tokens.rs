//! New tokens of the texts of a decoder, and which of them count.

use candle::Tensor;

use crate::error::DecoderError;
use crate::Result;

/// Tokens of each row.
#[derive(Clone)]
pub(super) struct Tokens {
    /// `(rows, tokens)`.
    pub ids: Tensor,
    /// The same shape, 0 where a token is padding; `None` if all count.
    pub mask: Option<Tensor>,
}

impl Tokens {
    /// Tokens and their mask.
    ///
    /// # Errors
    /// [`DecoderError`] for tokens that are none, and a mask of another shape.
    pub fn new(ids: &Tensor, mask: Option<&Tensor>) -> Result<Self> {
        match ids.dims() {
            &[rows, count] if rows > 0 && count > 0 => {}
            _ => return Err(DecoderError::Tokens { got: ids.shape().clone() }.into()),
        }
        match mask.filter(|mask| mask.dims() != ids.dims()) {
            Some(mask) => Err(DecoderError::Mask { got: mask.shape().clone(), tokens: ids.shape().clone() }.into()),
            None => Ok(Self { ids: ids.clone(), mask: mask.cloned() }),
        }
    }

    /// How many of each row.
    pub fn count(&self) -> usize {
        self.ids.dims()[1]
    }

    /// How many rows.
    pub fn rows(&self) -> usize {
        self.ids.dims()[0]
    }
}

#[cfg(feature = "cuda")]
impl Tokens {
    /// A part of each row, in memory of its own.
    pub fn part(&self, first: usize, count: usize) -> Result<Self> {
        let part = |of: &Tensor| of.narrow(1, first, count)?.force_contiguous();
        Ok(Self { ids: part(&self.ids)?, mask: self.mask.as_ref().map(part).transpose()? })
    }

    /// The last token of each row, which counts.
    pub fn last(&self) -> Result<Self> {
        Ok(Self { mask: None, ..self.part(self.count() - 1, 1)? })
    }

    /// As many tokens of each row: these again and again, of which all behind the first time count.
    pub fn repeated(&self, count: usize) -> Result<Self> {
        let ids = Tensor::cat(&vec![&self.ids; count.div_ceil(self.count())], 1)?;
        let mask = self.mask.as_ref().map(|mask| match count.checked_sub(self.count()) {
            Some(more) => Tensor::cat(&[mask, &Tensor::ones((self.rows(), more), mask.dtype(), mask.device())?], 1),
            None => Ok(mask.clone()),
        });
        Self { ids, mask: mask.transpose()? }.part(0, count)
    }
}
