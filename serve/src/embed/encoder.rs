//! A transformer and what is behind it, on a device: rows of tokens in, rows of numbers out.

use candle::{Device, Tensor};
use opara_candle::OparaExecutor;

use super::architecture::Padding;
use super::head::Head;
use super::packed::Packed;
use super::padded::Padded;
use super::{Result, TextRow};
use crate::batch::Bucket;

/// How texts make a batch: each padded to a row, or side by side.
#[derive(Clone)]
pub(super) enum Encoder {
    Padded(Padded),
    Packed(Packed),
}

impl Encoder {
    /// The answers of an executor's inputs, one behind another.
    pub fn forward(&self, inputs: &[Tensor]) -> candle::Result<Tensor> {
        match self {
            Self::Padded(padded) => padded.forward(inputs),
            Self::Packed(packed) => packed.forward(inputs),
        }
    }

    /// Inputs of a batch that has a text of `tokens` tokens: beside texts of one where it is padded, and else as many of them as it holds.
    pub fn example(&self, bucket: Bucket, tokens: usize, device: &Device) -> candle::Result<Vec<Tensor>> {
        match self {
            Self::Padded(padded) => padded.example(bucket, tokens, device),
            Self::Packed(packed) => packed.example(bucket, tokens, device),
        }
    }

    /// The answers of rows, by an executor of this.
    ///
    /// # Errors
    /// The executor's.
    pub fn answers(
        &self,
        executor: &OparaExecutor,
        bucket: Bucket,
        rows: &[&TextRow],
        device: &Device,
    ) -> Result<Vec<Vec<f32>>> {
        match self {
            Self::Padded(padded) => padded.answers(executor, bucket, rows, device),
            Self::Packed(packed) => packed.answers(executor, bucket, rows, device),
        }
    }

    /// The same transformer, for the hidden states of all tokens.
    pub fn of_tokens(&self) -> Self {
        let head = Head::Tokens.into();
        match self.clone() {
            Self::Padded(padded) => Self::Padded(Padded { head, ..padded }),
            Self::Packed(packed) => Self::Packed(Packed { head, ..packed }),
        }
    }

    /// Whether batches have plans: each text of a module without a mask runs by itself, at its own length.
    pub fn has_plans(&self) -> bool {
        !matches!(self, Self::Padded(Padded { padding: Padding::None, .. }))
    }
}
