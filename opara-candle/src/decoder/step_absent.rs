//! Stands in for `step` in builds without a GPU, where modules run eagerly.

use candle::Tensor;

use super::texts::{Text, Texts};
use super::tokens::Tokens;
use crate::builder::Builder;
use crate::report::Report;
use crate::{Error, Result};

/// See the CUDA build's type.
pub(super) enum Step {}

impl Step {
    pub fn build<M>(_: Builder, _: &Texts<M>, _: &Tokens, _: usize) -> Result<Self> {
        Err(Error::NotCapturable { reason: "a CPU runs what it is given".into() })
    }

    pub fn capacity(&self) -> usize {
        match *self {}
    }

    pub fn rows(&self) -> usize {
        match *self {}
    }

    pub fn take_over<M>(&mut self, _: &Texts<M>, _: &Text<M>, _: &Tokens, _: usize) -> Result<()> {
        match *self {}
    }

    pub fn several_refused(&self) -> Option<&str> {
        match *self {}
    }

    pub fn reads_prompt(&self, _: usize) -> bool {
        match *self {}
    }

    pub fn begin(&self) -> Result<()> {
        match *self {}
    }

    pub fn read(&mut self, _: &Tokens, _: usize) -> Result<Option<Tensor>> {
        match *self {}
    }

    pub fn step(&mut self, _: &Tokens, _: usize) -> Result<Tensor> {
        match *self {}
    }

    pub fn report(&self) -> Report {
        match *self {}
    }
}
