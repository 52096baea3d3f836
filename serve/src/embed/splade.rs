//! The module `SpladePooling`: from logits of the vocabulary for each token to a weight for each word.

use candle::{DType, Tensor};
use opara_candle::ops;

use super::file_fields::FileFields;
use super::{PoolingMode, Result};

/// How the logits of a text's tokens become weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Splade {
    sums: bool,
    /// How often the logarithm of one plus a number is taken.
    logarithms: usize,
}

impl Splade {
    /// The module of this configuration.
    pub fn of(fields: FileFields, vocabulary: usize) -> Result<Self> {
        let sums = match fields.take::<String>("pooling_strategy")?.as_deref() {
            None | Some("max") => false,
            Some("sum") => true,
            Some(other) => {
                return Err(fields.unsupported(&format!("`pooling_strategy` {other:?}"), "\"max\" and \"sum\" are"))
            }
        };
        let logarithms = match fields.take::<String>("activation_function")?.as_deref() {
            None | Some("relu") => 1,
            Some("log1p_relu") => 2,
            Some(other) => {
                return Err(
                    fields.unsupported(&format!("`activation_function` {other:?}"), "\"relu\" and \"log1p_relu\" are")
                )
            }
        };
        for name in ["embedding_dimension", "word_embedding_dimension"] {
            if let Some(other) = fields.take::<usize>(name)?.filter(|&other| other != vocabulary) {
                return Err(fields.wrong(format!("`{name}` is {other}, and the vocabulary has {vocabulary} tokens")));
            }
        }
        fields.finish(&["chunk_size"])?;
        Ok(Self { sums, logarithms })
    }

    /// `(batch, vocabulary)` of f32, of logits `(batch, tokens, vocabulary)` and a mask `(batch, tokens)`.
    pub fn apply(self, logits: &Tensor, mask: &Tensor) -> candle::Result<Tensor> {
        let _scope = opara_candle::scope("splade");
        let weigh = move |x: &Tensor| (0..self.logarithms).try_fold(x.relu()?, |x, _| x.affine(1., 1.)?.log());
        if self.sums {
            let weights = ops::custom("weights", &[&ops::to_dtype(logits, DType::F32)?], move |x| weigh(x[0]))?;
            let mask = ops::unsqueeze(&ops::to_dtype(mask, DType::F32)?, 1)?;
            return ops::squeeze(&ops::matmul(&mask, &weights)?, 1);
        }
        // The functions grow with their argument: the highest logit has the highest weight.
        ops::custom("weights", &[&PoolingMode::Max.apply(logits, mask, true)?], move |x| weigh(x[0]))
    }
}
