//! Embedding lookup.

#[cfg(feature = "cuda")]
mod cuda;
#[cfg(feature = "cuda")]
pub(super) mod launch;

use candle::{Result, Tensor};

use super::own_or;
use crate::cpu::record::apply;

/// The rows of `table`, `(n, hidden)`, at `ids`; the result has the shape of `ids` with `hidden` appended. As in
/// candle, the largest value of the id type gives a row of zeros. An id out of range is an assertion failure on a GPU:
/// after it the process cannot use the GPU any more.
///
/// # Errors
/// Ids that are not integers, or on the CPU out of range.
pub fn embedding(table: &Tensor, ids: &Tensor) -> Result<Tensor> {
    let (_, hidden) = table.dims2()?;
    apply("embedding", &[table, ids], 0, move |t| {
        let composed = || {
            let shape = [t[1].dims(), &[hidden]].concat();
            t[0].contiguous()?.index_select(&t[1].flatten_all()?, 0)?.reshape(shape)
        };
        own_or(t[0], || gpu!(cuda::embedding(t[0], t[1])), composed)
    })
}
