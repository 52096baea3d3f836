//! Batches of padded texts: a row a text.

use std::sync::Arc;

use candle::{bail, DType, Device, Tensor};
use opara_candle::{ops, OparaExecutor};

use super::architecture::{Padding, Tokens, Transformer};
use super::head::Head;
use super::{Result, TextRow};
use crate::batch::Bucket;

/// A transformer and the modules behind it. Clones share the transformer.
#[derive(Clone)]
pub(super) struct Padded {
    pub transformer: Arc<Transformer>,
    pub head: Arc<Head>,
    pub padding: Padding,
    /// The token of padding.
    pub pad: u32,
    /// Whether the types of tokens are an input of their own. Otherwise plans have a sum of the tables of types and positions.
    pub takes_types: bool,
}

/// A batch of a bucket, each `(batch, tokens)` of u32.
struct Batch {
    ids: Tensor,
    /// One for tokens, zero for padding.
    mask: Tensor,
    /// One for tokens that are pooled; `None` if the model pools all.
    pooled: Option<Tensor>,
    /// `None` if all tokens are of type 0.
    types: Option<Tensor>,
}

impl Padded {
    /// The answers of an executor's inputs, one behind another.
    pub fn forward(&self, inputs: &[Tensor]) -> candle::Result<Tensor> {
        self.answer(&self.of_inputs(inputs))
    }

    fn answer(&self, batch: &Batch) -> candle::Result<Tensor> {
        let Batch { ids, mask, pooled, types } = batch;
        let types = match types {
            Some(types) => types.clone(),
            None => {
                let (shape, device) = (ids.shape().clone(), ids.device().clone());
                ops::constant("token_types", move || Tensor::zeros(&shape, DType::U32, &device))?
            }
        };
        let hidden = (self.transformer)(&Tokens { ids, mask, types: &types })?;
        self.head.apply(&hidden, pooled.as_ref().unwrap_or(mask))
    }

    /// Rows of a bucket. Rows that are missing have one token, so that their means are numbers.
    fn batch(&self, bucket: Bucket, rows: &[&TextRow], device: &Device) -> candle::Result<Batch> {
        let size = bucket.batch * bucket.length;
        let mut ids = vec![self.pad; size];
        let (mut mask, mut pooled, mut types) = (vec![0; size], vec![0; size], vec![0; size]);
        for (index, start) in (0..bucket.batch).map(|index| index * bucket.length).enumerate() {
            let Some(row) = rows.get(index) else {
                (mask[start], pooled[start]) = (1, 1);
                continue;
            };
            let length = row.ids.len();
            if length > bucket.length {
                bail!("a row of {length} tokens, and those of the batch have at most {}", bucket.length);
            }
            let end = start + length;
            ids[start..end].copy_from_slice(&row.ids);
            mask[start..end].fill(1u32);
            pooled[start + row.unpooled.min(length)..end].fill(1u32);
            if !row.types.is_empty() {
                types[start..end].copy_from_slice(&row.types);
            }
        }
        let tensor = |values| Tensor::from_vec(values, (bucket.batch, bucket.length), device);
        let has_types = self.takes_types || rows.iter().any(|row| !row.types.is_empty());
        Ok(Batch {
            ids: tensor(ids)?,
            mask: tensor(mask)?,
            pooled: if self.head.skips_prompt() { Some(tensor(pooled)?) } else { None },
            types: if has_types { Some(tensor(types)?) } else { None },
        })
    }

    /// Inputs of a batch whose first row has `tokens` tokens, and the others one.
    pub fn example(&self, bucket: Bucket, tokens: usize, device: &Device) -> candle::Result<Vec<Tensor>> {
        let batch = self.batch(bucket, &[&TextRow::from(vec![1; tokens.min(bucket.length)])], device)?;
        batch.inputs(self).map_err(|_| candle::Error::Msg("a batch without types has types".into()))
    }

    /// The answers of rows, by an executor of this.
    pub fn answers(
        &self,
        executor: &OparaExecutor,
        bucket: Bucket,
        rows: &[&TextRow],
        device: &Device,
    ) -> Result<Vec<Vec<f32>>> {
        if self.padding == Padding::None {
            // Without a mask a batch would have other answers than its texts alone.
            let alone = |row: &&TextRow| {
                let batch = self.batch(Bucket { batch: 1, length: row.ids.len() }, &[row], device)?;
                Ok(self.answer(&batch)?.flatten_all()?.to_vec1()?)
            };
            return rows.iter().map(alone).collect();
        }
        let all: Vec<f32> = match self.batch(bucket, rows, device)?.inputs(self) {
            Ok(inputs) => executor.call_to_host(&inputs)?.swap_remove(0),
            // The executor's plans have a sum of the tables of types and positions. Other types are rare and run eagerly.
            Err(batch) => self.answer(&batch)?.flatten_all()?.to_vec1()?,
        };
        Ok(all.chunks(all.len() / bucket.batch).take(rows.len()).map(<[f32]>::to_vec).collect())
    }

    /// A batch of an executor's inputs.
    fn of_inputs(&self, inputs: &[Tensor]) -> Batch {
        let mut rest = inputs.iter().skip(2).cloned();
        let types = if self.takes_types { rest.next() } else { None };
        Batch { ids: inputs[0].clone(), mask: inputs[1].clone(), pooled: rest.next(), types }
    }
}

impl Batch {
    /// The inputs of an executor; `None` if they have types that it does not take.
    fn inputs(self, encoder: &Padded) -> std::result::Result<Vec<Tensor>, Self> {
        if self.types.is_some() != encoder.takes_types {
            return Err(self);
        }
        Ok([self.ids, self.mask].into_iter().chain(self.types).chain(self.pooled).collect())
    }
}
