//! Embedding lookup.

#[cfg(feature = "cuda")]
mod cuda;
#[cfg(feature = "cuda")]
pub(super) mod launch;

use candle::{bail, DType, Result, Tensor};

use super::column_sums::in_sums;
use super::differentiable::differentiable;
use super::own_or;
use crate::cpu::record::apply;

/// The rows of `table`, `(n, hidden)`, at `ids`; the result has the shape of `ids` with `hidden` appended. As in
/// candle, the largest value of the id type gives a row of zeros. An id out of range is an assertion failure on a GPU:
/// after it the process cannot use the GPU any more.
///
/// # Errors
/// Ids that are not integers, or on the CPU out of range.
pub fn embedding(table: &Tensor, ids: &Tensor) -> Result<Tensor> {
    let of_table = table.dims2()?;
    let (_, hidden) = of_table;
    apply("embedding", &[table, ids], 0, move |t| {
        let forward = |t: &[&Tensor]| {
            let composed = || {
                let shape = [t[1].dims(), &[hidden]].concat();
                t[0].contiguous()?.index_select(&t[1].flatten_all()?, 0)?.reshape(shape)
            };
            Ok((own_or(t[0], || gpu!(cuda::embedding(t[0], t[1])), composed)?, Vec::new()))
        };
        differentiable("embedding", t, forward, move |passed| {
            let [_, ids] = passed.operands else { bail!("an embedding without ids") };
            Ok(vec![Some(embedding_backward(passed.gradient, ids, of_table)?), None])
        })
    })
}

/// The gradient of a table of this size in [`embedding`], by that of the rows at `ids`. The rows of an id are summed in the order of
/// their places, in f32 for 16 bits.
///
/// # Errors
/// Shapes that do not agree.
pub(crate) fn embedding_backward(gradient: &Tensor, ids: &Tensor, table: (usize, usize)) -> Result<Tensor> {
    let composed = || {
        let (rows, hidden) = table;
        let (of_rows, ids) = (in_sums(gradient)?.reshape(((), hidden))?, ids.flatten_all()?);
        // The row behind the table takes those of the largest id, which stands for zeros.
        let ids = ids.to_dtype(DType::I64)?;
        let ids = ids.ge(rows as i64)?.where_cond(&Tensor::full(rows as i64, ids.shape(), ids.device())?, &ids)?;
        let sums = Tensor::zeros((rows + 1, hidden), of_rows.dtype(), of_rows.device())?;
        sums.index_add(&ids, &of_rows.contiguous()?, 0)?.narrow(0, 0, rows)?.contiguous()?.to_dtype(gradient.dtype())
    };
    own_or(gradient, || gpu!(cuda::gradient(gradient, ids, table)), composed)
}
