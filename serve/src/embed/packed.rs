//! Batches of texts that lie side by side, without padding between them.

use std::sync::Arc;

use candle::{bail, DType, Device, Tensor};
use opara_candle::{ops, OparaExecutor};

use super::architecture::{PackedTokens, PackedTransformer};
use super::head::Head;
use super::{Result, TextRow};
use crate::batch::{rows_of, Bucket};

/// A transformer and the modules behind it. Clones share the transformer.
#[derive(Clone)]
pub(super) struct Packed {
    pub transformer: Arc<PackedTransformer>,
    pub head: Arc<Head>,
}

/// Numbers of a token: its id, type, position, and the range of its text.
const OF_TOKEN: usize = 5;

impl Packed {
    /// The answers of an executor's inputs, one behind another, or the hidden states of all tokens. The inputs are ids, types, positions
    /// and ranges, `(5, tokens)`, and the ranges that are pooled, `(modes * rows, 2)`.
    pub fn forward(&self, inputs: &[Tensor]) -> candle::Result<Tensor> {
        let tokens = inputs[0].dim(1)?;
        let line = |at: usize| ops::squeeze(&ops::narrow(&inputs[0], 0, at, 1)?, 0);
        let (ids, types, positions) = (line(0)?, line(1)?, line(2)?);
        let ranges = ops::reshape(&ops::narrow(&inputs[0], 0, 3, 2)?, (tokens, 2))?;
        let hidden =
            (self.transformer)(&PackedTokens { ids: &ids, types: &types, positions: &positions, ranges: &ranges })?;
        let (Some(pooling), Some(pooled)) = (self.head.pooling(), inputs.get(1)) else {
            return ops::to_dtype(&hidden, DType::F32);
        };
        let (means, modes) = (ops::range_means(&hidden, pooled)?, pooling.modes.len());
        if modes == 1 {
            return self.head.behind(&means);
        }
        let rows = pooled.dim(0)? / modes;
        let each = (0..modes).map(|mode| ops::narrow(&means, 0, mode * rows, rows));
        let each = each.collect::<candle::Result<Vec<_>>>()?;
        self.head.behind(&ops::cat(&each.iter().collect::<Vec<_>>(), 1)?)
    }

    /// The inputs of rows that the bucket holds. Tokens behind them see themselves alone, and rows that are missing are the first token.
    fn inputs(&self, bucket: Bucket, rows: &[&TextRow], device: &Device) -> candle::Result<Vec<Tensor>> {
        let (tokens, most) = (bucket.length, rows_of(bucket.length));
        let given = tokens_of(rows);
        if given > tokens || rows.len() > most {
            bail!(
                "{} rows of {given} tokens together, and a batch has {most} rows of {tokens} tokens at most",
                rows.len()
            );
        }
        let mut numbers = vec![0; OF_TOKEN * tokens];
        let (lines, ranges) = numbers.split_at_mut(3 * tokens);
        for (at, range) in ranges.chunks_exact_mut(2).enumerate() {
            range.copy_from_slice(&[at as u32, at as u32 + 1]);
        }
        let mut first = 0;
        for row in rows {
            let end = first + row.ids.len();
            lines[first..end].copy_from_slice(&row.ids);
            if !row.types.is_empty() {
                lines[tokens + first..tokens + end].copy_from_slice(&row.types);
            }
            lines[2 * tokens + first..2 * tokens + end].iter_mut().zip(0..).for_each(|(to, position)| *to = position);
            ranges[2 * first..2 * end]
                .chunks_exact_mut(2)
                .for_each(|to| to.copy_from_slice(&[first as u32, end as u32]));
            first = end;
        }
        let tensor = |numbers: Vec<u32>, shape: (usize, usize)| Tensor::from_vec(numbers, shape, device);
        let mut inputs = vec![tensor(numbers, (OF_TOKEN, tokens))?];
        if let Some(pooling) = self.head.pooling() {
            let mut pooled = Vec::with_capacity(2 * most * pooling.modes.len());
            for mode in &pooling.modes {
                let mut first = 0;
                for row in rows {
                    let begin = if pooling.has_prompt { 0 } else { row.unpooled };
                    let range = mode.range(first + begin, first + row.ids.len()).unwrap_or_default();
                    pooled.extend(range.map(|at| at as u32));
                    first += row.ids.len();
                }
                pooled.extend(std::iter::repeat_n([0, 1], most - rows.len()).flatten());
            }
            inputs.push(tensor(pooled, (pooling.modes.len() * most, 2))?);
        }
        Ok(inputs)
    }

    /// Inputs of a batch of as many texts of `tokens` tokens as it holds.
    pub fn example(&self, bucket: Bucket, tokens: usize, device: &Device) -> candle::Result<Vec<Tensor>> {
        let row = TextRow::from(vec![1; tokens.min(bucket.length)]);
        let count = (bucket.length / row.ids.len().max(1)).clamp(1, rows_of(bucket.length));
        self.inputs(bucket, &vec![&row; count], device)
    }

    /// The answers of rows, by an executor of this.
    pub fn answers(
        &self,
        executor: &OparaExecutor,
        bucket: Bucket,
        rows: &[&TextRow],
        device: &Device,
    ) -> Result<Vec<Vec<f32>>> {
        let (inputs, tokens) = (self.inputs(bucket, rows, device)?, tokens_of(rows));
        let is_pooled = self.head.pooling().is_some();
        let all = executor.call_to_host_rows(&inputs, if is_pooled { rows.len() } else { tokens })?.swap_remove(0);
        if is_pooled {
            return Ok(all.chunks((all.len() / rows.len().max(1)).max(1)).map(<[f32]>::to_vec).collect());
        }
        let (width, mut first) = (all.len() / tokens.max(1), 0);
        let of_row = |row: &&TextRow| {
            let begin = first * width;
            first += row.ids.len();
            all[begin..first * width].to_vec()
        };
        Ok(rows.iter().map(of_row).collect())
    }
}

/// Tokens of rows together.
fn tokens_of(rows: &[&TextRow]) -> usize {
    rows.iter().map(|row| row.ids.len()).sum()
}
