//! A text model on a device.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use candle::{Device, Tensor};
use opara_candle::{ops, Builder, OparaExecutor};
use opara_models::bert::{BertModel, Config};
use parking_lot::Mutex;

use super::head::Head;
use super::{EmbedError, Result, TextOptions, TextRow, TextTokenizer};
use crate::batch::{Bucket, Buckets, Engine, EngineError, Health};

/// A text model on a device: token ids in, one vector a text out.
pub struct Embedder {
    executor: OparaExecutor,
    model: Arc<Encoder>,
    tokenizer: TextTokenizer,
    device: Device,
    buckets: Buckets,
    width: usize,
    vocabulary: usize,
    token_types: usize,
    /// What a GPU takes for a batch of each bucket.
    times: Mutex<HashMap<Bucket, Duration>>,
}

/// A transformer and the modules behind it.
pub(super) struct Encoder {
    pub bert: BertModel,
    pub head: Head,
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

impl Encoder {
    fn forward(&self, batch: &Batch) -> candle::Result<Tensor> {
        let Batch { ids, mask, pooled, types } = batch;
        let types = match types {
            Some(types) => types.clone(),
            None => {
                let (shape, device) = (ids.shape().clone(), ids.device().clone());
                ops::constant("token_types", move || Tensor::zeros(&shape, candle::DType::U32, &device))?
            }
        };
        let hidden = self.bert.forward(ids, &types, Some(mask))?;
        self.head.apply(&hidden, pooled.as_ref().unwrap_or(mask))
    }
}

/// Calls one after another by which a GPU's time is measured. The host enqueues each while the one before runs, so that its own
/// time is hidden.
const CALLS: u32 = 16;

impl Embedder {
    pub(super) fn new(
        encoder: Encoder,
        tokenizer: TextTokenizer,
        config: &Config,
        width: usize,
        builder: Builder,
        device: &Device,
        buckets: &Buckets,
    ) -> Result<Self> {
        let model = Arc::new(encoder);
        let smallest = buckets.iter().last().unwrap_or(Bucket { batch: 1, length: 1 });
        let inputs = |ids: &[u32]| model.batch(smallest, &[&TextRow::from(ids.to_vec())], device).map(Batch::inputs);
        // Ids and masks are looked up and multiplied by operators alone: one full row and one short one show that.
        let (example, short) = (inputs(&[1, 2])?, inputs(&[1])?);
        let forward = {
            let model = model.clone();
            move |inputs: &[Tensor]| {
                let (ids, mask, pooled) = (inputs[0].clone(), inputs[1].clone(), inputs.get(2).cloned());
                Ok(vec![model.forward(&Batch { ids, mask, pooled, types: None })?])
            }
        };
        let executor = builder.max_shapes(buckets.len()).example(&short).build_fn(forward, &example)?;
        let (vocabulary, token_types) = (config.vocab_size, config.type_vocab_size);
        let (device, buckets, times) = (device.clone(), buckets.clone(), Mutex::default());
        Ok(Self { executor, model, tokenizer, device, buckets, width, vocabulary, token_types, times })
    }

    /// Elements of a vector.
    pub fn width(&self) -> usize {
        self.width
    }

    /// The executor.
    pub fn executor(&self) -> &OparaExecutor {
        &self.executor
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &TextTokenizer {
        &self.tokenizer
    }

    /// One vector a text, in the order of the texts. They are sorted by length and run in the largest buckets that they
    /// fill.
    ///
    /// # Errors
    /// A text that is too long or has no tokens, a vector with NaN or infinity, and those of the executor.
    pub fn embed(&self, texts: &[impl AsRef<str>]) -> Result<Vec<Vec<f32>>> {
        let rows = self.tokenizer.rows(texts, &TextOptions::default())?;
        let lane = |(index, row): (usize, &TextRow)| {
            let limit = self.buckets.longest();
            let too_long = EmbedError::TooLong { text: index, tokens: row.ids.len(), limit };
            Ok((self.buckets.lane(row.ids.len()).ok_or(too_long)?, index))
        };
        let mut order = rows.iter().enumerate().map(lane).collect::<Result<Vec<_>>>()?;
        order.sort_unstable();
        let mut vectors = vec![Vec::new(); rows.len()];
        for lane in order.chunk_by(|a, b| a.0 == b.0) {
            for batch in lane.chunks(self.buckets.capacity(lane[0].0)) {
                let bucket = self.buckets.fit(lane[0].0, batch.len());
                let batch_rows: Vec<&TextRow> = batch.iter().map(|&(_, index)| &rows[index]).collect();
                for (&(_, index), vector) in batch.iter().zip(self.run(bucket, &batch_rows)?) {
                    vectors[index] = vector;
                }
            }
        }
        Self::check_vectors(&vectors)?;
        Ok(vectors)
    }

    /// Inputs of a batch with one token a row.
    fn example(&self, bucket: Bucket) -> candle::Result<Vec<Tensor>> {
        self.model.batch(bucket, &[&TextRow::from(vec![1])], &self.device).map(Batch::inputs)
    }

    /// Checks rows that did not come from the tokenizer, for a model with these numbers of tokens and of token types.
    ///
    /// # Errors
    /// A row that is empty, or that names a token or a type that the model does not have.
    pub fn check(rows: &[TextRow], vocabulary: usize, token_types: usize) -> Result<()> {
        for (row, TextRow { ids, types, unpooled }) in rows.iter().enumerate() {
            if ids.len() <= *unpooled {
                return Err(EmbedError::Empty { text: row });
            }
            if !types.is_empty() && types.len() != ids.len() {
                return Err(EmbedError::Types { row, ids: ids.len(), types: types.len() });
            }
            if let Some(&id) = ids.iter().find(|&&id| id as usize >= vocabulary) {
                return Err(EmbedError::UnknownToken { row, id, limit: vocabulary });
            }
            if let Some(&token_type) = types.iter().find(|&&kind| kind as usize >= token_types) {
                return Err(EmbedError::UnknownType { row, token_type, limit: token_types });
            }
        }
        Ok(())
    }

    /// Checks vectors that [`Engine::run`] gave: a text may overflow a type of 16 bits.
    ///
    /// # Errors
    /// [`EmbedError::NotFinite`].
    pub fn check_vectors(vectors: &[Vec<f32>]) -> Result<()> {
        match vectors.iter().position(|vector| !vector.iter().all(|x| x.is_finite())) {
            Some(text) => Err(EmbedError::NotFinite { text }),
            None => Ok(()),
        }
    }
}

impl Encoder {
    /// Rows of a bucket. Padding is 0. Rows that are missing have one token, so that their means are numbers.
    fn batch(&self, bucket: Bucket, rows: &[&TextRow], device: &Device) -> candle::Result<Batch> {
        let size = bucket.batch * bucket.length;
        let (mut ids, mut mask, mut pooled, mut types) = (vec![0; size], vec![0; size], vec![0; size], vec![0; size]);
        for (index, start) in (0..bucket.batch).map(|index| index * bucket.length).enumerate() {
            let Some(row) = rows.get(index) else {
                (mask[start], pooled[start]) = (1, 1);
                continue;
            };
            let length = row.ids.len().min(bucket.length);
            let end = start + length;
            ids[start..end].copy_from_slice(&row.ids[..length]);
            mask[start..end].fill(1u32);
            pooled[start + row.unpooled.min(length)..end].fill(1u32);
            if !row.types.is_empty() {
                types[start..end].copy_from_slice(&row.types[..length]);
            }
        }
        let tensor = |values| Tensor::from_vec(values, (bucket.batch, bucket.length), device);
        let has_types = rows.iter().any(|row| !row.types.is_empty());
        Ok(Batch {
            ids: tensor(ids)?,
            mask: tensor(mask)?,
            pooled: if self.head.pooling.has_prompt { None } else { Some(tensor(pooled)?) },
            types: if has_types { Some(tensor(types)?) } else { None },
        })
    }
}

impl Batch {
    /// The inputs of the executor, which takes tokens of type 0 alone.
    fn inputs(self) -> Vec<Tensor> {
        [self.ids, self.mask].into_iter().chain(self.pooled).collect()
    }
}

impl Engine for Embedder {
    type Row = TextRow;
    type Answer = Vec<f32>;

    fn length(&self, row: &TextRow) -> usize {
        row.ids.len()
    }

    fn run(&self, bucket: Bucket, rows: &[&TextRow]) -> Result<Vec<Vec<f32>>, EngineError> {
        for row in rows {
            Self::check(std::slice::from_ref(row), self.vocabulary, self.token_types).map_err(EngineError::new)?;
        }
        let batch = self.model.batch(bucket, rows, &self.device)?;
        let vectors = match batch.types {
            // The executor's plans have a sum of the tables of types and positions. Other types are rare and run eagerly.
            Some(_) => self.model.forward(&batch)?.flatten_all()?.to_vec1()?,
            None => self.executor.call_to_host(&batch.inputs())?.swap_remove(0),
        };
        Ok(vectors.chunks(self.width).take(rows.len()).map(<[f32]>::to_vec).collect())
    }

    fn prepare(&self, bucket: Bucket) -> Result<(), EngineError> {
        let inputs = self.example(bucket)?;
        self.executor.call_to_host(&inputs)?;
        // On a CPU batches share the cores that the host's work needs, too: there is no time of the device by itself.
        if self.device.is_cuda() {
            self.device.synchronize()?;
            let start = Instant::now();
            (0..CALLS).try_for_each(|_| self.executor.call(&inputs).map(drop))?;
            self.device.synchronize()?;
            self.times.lock().insert(bucket, start.elapsed() / CALLS);
        }
        Ok(())
    }

    fn device_time(&self, bucket: Bucket) -> Option<Duration> {
        self.times.lock().get(&bucket).copied()
    }

    fn health(&self, buckets: &Buckets) -> Health {
        let mut health = Health::default();
        for bucket in buckets.iter() {
            let report = self.example(bucket).ok().and_then(|x| self.executor.report_for(&x).ok());
            if let Some(report) = report {
                health.note(bucket, &report);
            }
        }
        health
    }
}
