//! Heads of keys that several heads of queries share.

use candle::{Result, Tensor};

use crate::ops::{broadcast_as, contiguous, reshape, unsqueeze};

/// How many heads of queries share one of these heads of keys; `None` if not all of these do.
pub(super) fn shared_by(heads: usize, of_keys: usize) -> Option<usize> {
    (of_keys > 0 && heads.is_multiple_of(of_keys)).then(|| heads / of_keys)
}

/// Keys or values with a copy of each head for each head of queries that shares it.
pub(super) fn repeated(x: &Tensor, heads: usize) -> Result<Tensor> {
    let (batch, of_keys, keys, dim) = x.dims4()?;
    match shared_by(heads, of_keys) {
        Some(sharing) if sharing > 1 => {
            let x = broadcast_as(&unsqueeze(x, 2)?, (batch, of_keys, sharing, keys, dim))?;
            reshape(&contiguous(&x)?, (batch, heads, keys, dim))
        }
        _ if x.is_contiguous() => Ok(x.clone()),
        _ => contiguous(x),
    }
}
