//! A weight of a decoder, dense or quantised.

use std::sync::Arc;

use candle::quantized::QTensor;
use candle::{DType, Tensor};
use opara_candle::ops::{self, QuantizedWeight, NO_TOKEN};

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
                ops::custom("quantized_embedding", &[ids], move |t| rows_at(&table, t[0]))
            }
            Self::Packed(table) => ops::quantized_embedding(table, ids, dtype),
        }
    }
}

/// Rows by their ids; zeros where there is no token, as in all embeddings.
fn rows_at(table: &QTensor, ids: &Tensor) -> candle::Result<Tensor> {
    let has_token = ids.ne(NO_TOKEN)?;
    let rows = table.embedding(&has_token.where_cond(ids, &ids.zeros_like()?)?)?;
    let has_token = has_token.unsqueeze(candle::D::Minus1)?.broadcast_as(rows.shape())?;
    has_token.where_cond(&rows, &rows.zeros_like()?)
}

#[cfg(test)]
mod tests {
    use candle::quantized::GgmlDType;
    use candle::Device::Cpu;

    use super::*;

    #[test]
    fn no_token_has_a_row_of_zeros() -> candle::Result<()> {
        let table = Tensor::rand(-1f32, 1., (5, 64), &Cpu)?;
        let ids = Tensor::new(&[[3u32, NO_TOKEN], [0, 4]], &Cpu)?;
        let quantized = Arc::new(QTensor::quantize(&table, GgmlDType::Q8_0)?);
        let packed = QuantizedWeight::new(&[&quantized], &Cpu)?;
        for matrix in [Matrix::Dense(table.clone()), Matrix::Quantized(quantized), Matrix::Packed(packed)] {
            let rows = matrix.embed(&ids, DType::F32)?.reshape((4, 64))?.to_vec2::<f32>()?;
            assert_eq!(rows[1], [0.; 64], "{matrix:?}");
            for (row, of) in [(0, 3), (2, 0), (3, 4)] {
                let far = rows[row].iter().zip(table.get(of)?.to_vec1::<f32>()?).map(|(a, b)| (a - b).abs());
                assert!(far.fold(0., f32::max) < 0.01, "{matrix:?}");
            }
        }
        Ok(())
    }
}
