//! A weight of a decoder, dense or quantised.

use std::sync::Arc;

use candle::quantized::QTensor;
use candle::Tensor;
use opara_candle::ops;

/// One weight: `(rows, columns)`.
#[derive(Debug, Clone)]
pub(super) enum Matrix {
    Dense(Tensor),
    /// In blocks of GGUF's.
    Quantized(Arc<QTensor>),
}

impl Matrix {
    /// Rows by their ids.
    pub fn embed(&self, ids: &Tensor) -> candle::Result<Tensor> {
        match self {
            Self::Dense(table) => ops::embedding(table, ids),
            Self::Quantized(table) => {
                let table = table.clone();
                ops::custom("quantized_embedding", &[ids], move |t| table.embedding(t[0]))
            }
        }
    }
}
