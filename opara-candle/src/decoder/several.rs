//! Several tokens of a decoder at once, by graphs of a few sizes.

use std::sync::Arc;

use candle::Tensor;

use super::known::{or_refused, refused};
use super::pieces::{Piece, SMALLEST};
use super::sources::Common;
use super::tokens::Tokens;
use crate::builder::Builder;
use crate::report::Mode;
use crate::step::StepExecutor;
use crate::{Error, Result};

/// An executor that adds pieces of several tokens to a text.
pub(super) struct Several {
    executor: StepExecutor<Vec<Tensor>>,
    /// The dimension of tokens, if there are logits of each.
    each: Option<usize>,
}

impl Several {
    /// Builds the smallest piece. Others are built at their first use.
    ///
    /// # Errors
    /// [`Error::NotCapturable`] with the reason if the step is not known of several tokens, and errors of the device.
    pub fn build(builder: Builder, of: Arc<Common>, example: &Tokens, text: &Vec<Tensor>) -> Result<Self> {
        if of.capacity() < SMALLEST {
            return Err(refused("a text has fewer tokens than a piece"));
        }
        of.several(SMALLEST)?;
        let tokens = example.repeated(SMALLEST)?.ids;
        let last = Tensor::new(&[SMALLEST as u32 - 1], tokens.device())?;
        let (inputs, each) = ([tokens, last], of.each());
        let executor = builder.build_step(move |x: &[Tensor], text: &Vec<Tensor>| of.step(x, text), &inputs, text);
        let executor = executor.map_err(|error| or_refused(error, "several tokens are not one graph"))?;
        let report = executor.report();
        match report.mode {
            Mode::Eager => Err(refused(&report.reason.unwrap_or_else(|| "several tokens are not replayed".into()))),
            _ => Ok(Self { executor, each }),
        }
    }

    /// Adds a piece to a text. What fills it up is behind the text then, where nothing reads it before it is overwritten.
    pub fn add(&self, tokens: &Tensor, piece: Piece, text: &mut Vec<Tensor>) -> Result<Tensor> {
        let mut filled = tokens.clone();
        if piece.tokens < piece.size {
            let end = tokens.narrow(1, piece.tokens - 1, 1)?.repeat((1, piece.size - piece.tokens))?;
            filled = Tensor::cat(&[tokens, &end], 1)?;
        }
        let last = Tensor::new(&[piece.tokens as u32 - 1], tokens.device())?;
        let logits = first_of(self.executor.step(&[filled, last], text)?)?;
        Ok(match self.each {
            Some(dim) if piece.tokens < piece.size => logits.narrow(dim, 0, piece.tokens)?,
            _ => logits,
        })
    }
}

/// The logits of a step.
pub(super) fn first_of(outputs: Vec<Tensor>) -> Result<Tensor> {
    outputs.into_iter().next().ok_or_else(|| Error::Internal { message: "a step gave no logits".into() })
}
