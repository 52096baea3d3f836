//! From one vector a token to one vector a text.

use std::path::Path;

use candle::{DType, Tensor};
use opara_candle::ops;
use serde::Deserialize;

use super::{EmbedError, Result};

/// How the vectors of a text's tokens become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pooling {
    /// Their mean.
    Mean,
    /// The first token's.
    Cls,
}

/// What a checkpoint of sentence-transformers says in `1_Pooling/config.json`.
#[derive(Default, Deserialize)]
#[serde(default)]
struct File {
    pooling_mode_cls_token: bool,
    pooling_mode_mean_tokens: bool,
    pooling_mode_max_tokens: bool,
    pooling_mode_mean_sqrt_len_tokens: bool,
    pooling_mode_weightedmean_tokens: bool,
    pooling_mode_lasttoken: bool,
}

impl Pooling {
    /// What the checkpoint in this folder says; the mean where it says nothing.
    pub(super) fn of(folder: &Path) -> Result<Self> {
        let path = folder.join("1_Pooling/config.json");
        let Some(file) = read_json::<File>(&path)? else { return Ok(Self::Mean) };
        let others = file.pooling_mode_max_tokens
            || file.pooling_mode_mean_sqrt_len_tokens
            || file.pooling_mode_weightedmean_tokens
            || file.pooling_mode_lasttoken;
        match (file.pooling_mode_mean_tokens, file.pooling_mode_cls_token, others) {
            (true, false, false) => Ok(Self::Mean),
            (false, true, false) => Ok(Self::Cls),
            _ => Err(EmbedError::Pooling { path }),
        }
    }

    /// `(batch, width)` of f32, each row of length 1, of hidden states `(batch, tokens, width)` and the mask `(batch, tokens)`,
    /// which is one for tokens and zero for padding.
    pub(super) fn apply(self, hidden: &Tensor, mask: &Tensor) -> candle::Result<Tensor> {
        let _scope = opara_candle::scope("pooling");
        let pooled = match self {
            Self::Cls => ops::to_dtype(&ops::contiguous(&ops::narrow(hidden, 1, 0, 1)?)?, DType::F32)?,
            Self::Mean => {
                let mask = ops::to_dtype(mask, DType::F32)?;
                let weights = ops::div(&mask, &ops::sum_keepdim(&mask, 1)?)?;
                ops::matmul(&ops::unsqueeze(&weights, 1)?, &ops::to_dtype(hidden, DType::F32)?)?
            }
        };
        let pooled = ops::squeeze(&pooled, 1)?;
        let squares = ops::sum_keepdim(&ops::sqr(&pooled)?, 1)?;
        // A vector of zeros stays one.
        let norm = ops::custom("sqrt", &[&ops::affine(&squares, 1., 1e-24)?], |x| x[0].sqrt())?;
        ops::div(&pooled, &norm)
    }
}

/// The content of a file that need not be there.
pub(super) fn read_json<T: for<'a> Deserialize<'a>>(path: &Path) -> Result<Option<T>> {
    let failed = |reason: String| EmbedError::File { path: path.to_path_buf(), reason };
    match std::fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|error| failed(error.to_string())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(error.to_string())),
    }
}
