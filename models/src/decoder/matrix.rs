//! A weight of a decoder, dense or quantised.

use std::sync::Arc;

use candle::quantized::QTensor;
use candle::{DType, Tensor};
use opara_candle::ops::{self, QuantizedWeight};

/// One weight: `(rows, columns)`.
#[derive(Debug, Clone)]
pub(super) enum Matrix {
    Dense(Tensor),
    /// In blocks of GGUF's, in the host's memory.
    Quantized(Arc<QTensor>),
    /// On a GPU.
    Packed(QuantizedWeight),
}

impl Matrix {
    /// Rows by their ids, in `dtype` where they are not dense.
    pub fn embed(&self, ids: &Tensor, dtype: DType) -> candle::Result<Tensor> {
        match self {
            Self::Dense(table) => ops::embedding(table, ids),
            Self::Quantized(table) => {
                let table = table.clone();
                ops::custom("quantized_embedding", &[ids], move |t| table.embedding(t[0]))
            }
            Self::Packed(table) => ops::quantized_embedding(table, ids, dtype),
        }
    }
}
