//! The memory of a model: keys and values of texts.

use candle::{Device, Result, Tensor};
use opara_candle::ops;
use opara_candle::StepState;

/// The memory of a model: keys and values of several texts.
#[derive(Clone)]
pub struct Memory {
    /// As [`TextModel::memory`](super::TextModel::memory) made them. Without a table of pages, of these texts alone.
    pub tensors: Vec<Tensor>,
    /// The pages that each text's tokens are in, in this order, as u32: `(texts, pages)`. Behind the last page of a text it has page 0, which
    /// is no text's.
    pub pages: Option<Tensor>,
    /// Pages of a part of a prompt, and of those that are no text's.
    of_part: usize,
    nobodys: usize,
}

impl Memory {
    /// Of tensors that are texts'.
    pub(super) fn of_texts(tensors: Vec<Tensor>) -> Self {
        Self { tensors, pages: None, of_part: 0, nobodys: 0 }
    }

    /// Of tensors that are pages, with an empty table `(texts, pages)`. The first `nobodys` pages are no text's; a part of a prompt has
    /// `of_part`.
    pub(super) fn in_pages(tensors: Vec<Tensor>, table: Tensor, of_part: usize, nobodys: usize) -> Self {
        Self { tensors, pages: Some(table), of_part, nobodys }
    }

    /// Pages that are no text's.
    pub(super) fn nobodys(&self) -> usize {
        self.nobodys
    }

    /// The same pages, with an empty table for a number of other texts.
    pub(super) fn for_others(&self, texts: usize) -> Result<Self> {
        let of = |table: &Tensor| Tensor::zeros((texts, table.dim(1)?), table.dtype(), table.device());
        Ok(Self { pages: self.pages.as_ref().map(of).transpose()?, ..self.clone() })
    }

    /// That of some of the texts, in the same memory.
    pub(super) fn of(&self, from: usize, texts: usize) -> Result<Self> {
        let some = |tensor: &Tensor| tensor.narrow(0, from, texts);
        Ok(match &self.pages {
            Some(table) => Self { pages: Some(some(table)?), ..self.clone() },
            None => Self { tensors: self.tensors.iter().map(some).collect::<Result<_>>()?, ..self.clone() },
        })
    }

    /// Gives the texts these pages.
    pub fn set_pages<'a>(&self, of: impl Iterator<Item = &'a [u32]>) -> Result<()> {
        let Some(table) = &self.pages else { return Ok(()) };
        let (texts, width) = table.dims2()?;
        let rows = of.flat_map(|pages| pages.iter().copied().chain(std::iter::repeat(0)).take(width));
        ops::assign(table, &Tensor::from_iter(rows, table.device())?.reshape((texts, width))?)
    }

    /// Copies of pages on the host.
    pub(super) fn on_host(&self, pages: &[u32]) -> Result<Vec<Tensor>> {
        let copied = |tensor: &Tensor| {
            // A copy of its own, also where there is one page.
            let page = |page: &u32| tensor.narrow(0, *page as usize, 1)?.force_contiguous();
            Tensor::cat(&pages.iter().map(page).collect::<Result<Vec<_>>>()?, 0)?.to_device(&Device::Cpu)
        };
        self.tensors.iter().map(copied).collect()
    }

    /// Writes copies of pages to the first of others.
    pub(super) fn restore(&self, pages: &[u32], copies: &[Tensor]) -> Result<()> {
        for (tensor, copy) in self.tensors.iter().zip(copies) {
            let copy = copy.to_device(tensor.device())?;
            for (at, page) in pages.iter().enumerate().take(copy.dim(0)?) {
                tensor.slice_set(&copy.narrow(0, at, 1)?, 0, *page as usize)?;
            }
        }
        Ok(())
    }

    /// Gives a text what another one has, where there are no pages.
    pub(super) fn copy(&self, from: usize, to: usize) -> Result<()> {
        let own = self.tensors.iter().filter(|_| self.pages.is_none());
        own.into_iter().try_for_each(|tensor| copy_row(tensor, from, to))
    }
}

/// Copies a row of a tensor into another one of its rows.
pub(super) fn copy_row(tensor: &Tensor, from: usize, to: usize) -> Result<()> {
    // By a copy, since memory is not read and written at once.
    tensor.slice_set(&tensor.narrow(0, from, 1)?.force_contiguous()?, 0, to)
}

impl StepState for Memory {
    fn tensors(&self) -> Vec<Tensor> {
        self.pages.iter().chain(&self.tensors).cloned().collect()
    }

    fn with(&self, mut tensors: Vec<Tensor>) -> Self {
        let pages = self.pages.is_some().then(|| tensors.remove(0));
        Self { tensors, pages, ..*self }
    }

    /// Empty memory, or pages that are no text's.
    fn scratch(&self) -> opara_candle::Result<Self> {
        let Some(table) = &self.pages else {
            let scratch = self.fork()?;
            scratch.tensors.iter().try_for_each(|tensor| ops::assign(tensor, &tensor.zeros_like()?))?;
            return Ok(scratch);
        };
        // A part of each prompt has pages of its own. Steps write to the first place of these alone, and all the same.
        let ((texts, width), of_part) = (table.dims2()?, self.of_part);
        let page = |text: usize, at: usize| if at < of_part { (text * of_part + at) % self.nobodys } else { 0 };
        let pages = (0..texts).flat_map(|text| (0..width).map(move |at| page(text, at) as u32));
        let table = Tensor::from_iter(pages, table.device())?.reshape((texts, width))?;
        Ok(Self { pages: Some(table), ..self.clone() })
    }
}
