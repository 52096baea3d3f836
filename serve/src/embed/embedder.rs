//! A text model on a device.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use candle::{Device, Tensor};
use opara_candle::{ops, Builder, OparaExecutor};
use opara_models::bert::{BertModel, Config};
use parking_lot::Mutex;

use super::{EmbedError, Pooling, Result, TextTokenizer};
use crate::batch::{Bucket, Buckets, Engine, EngineError, Health};

/// A text model on a device: token ids in, one vector of length 1 a text out.
pub struct Embedder {
    executor: OparaExecutor,
    tokenizer: TextTokenizer,
    device: Device,
    buckets: Buckets,
    width: usize,
    vocabulary: usize,
    /// What a GPU takes for a batch of each bucket.
    times: Mutex<HashMap<Bucket, Duration>>,
}

/// Calls one after another by which a GPU's time is measured. The host enqueues each while the one before runs, so that its own
/// time is hidden.
const CALLS: u32 = 16;

impl Embedder {
    pub(super) fn new(
        bert: BertModel,
        pooling: Pooling,
        tokenizer: TextTokenizer,
        config: &Config,
        builder: Builder,
        device: &Device,
        buckets: &Buckets,
    ) -> Result<Self> {
        let forward = move |inputs: &[Tensor]| {
            let (ids, mask) = (&inputs[0], &inputs[1]);
            let (shape, device) = (ids.shape().clone(), ids.device().clone());
            let types = ops::constant("token_types", move || Tensor::zeros(&shape, candle::DType::U32, &device))?;
            Ok(vec![pooling.apply(&bert.forward(ids, &types, Some(mask))?, mask)?])
        };
        let smallest = buckets.iter().last().unwrap_or(Bucket { batch: 1, length: 1 });
        // Ids and masks are looked up and multiplied by operators alone: one full row and one short one show that.
        let (example, short) = (inputs(smallest, &[[1u32, 2]], device)?, inputs(smallest, &[[1u32]], device)?);
        let executor = builder.max_shapes(buckets.len()).example(&short).build_fn(forward, &example)?;
        let (width, vocabulary) = (config.hidden_size, config.vocab_size);
        let (device, buckets, times) = (device.clone(), buckets.clone(), Mutex::default());
        Ok(Self { executor, tokenizer, device, buckets, width, vocabulary, times })
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
    /// A text that is too long, and those of the executor.
    pub fn embed(&self, texts: &[impl AsRef<str>]) -> Result<Vec<Vec<f32>>> {
        let rows = self.tokenizer.encode(texts)?;
        let lane = |(index, row): (usize, &Vec<u32>)| {
            let limit = self.buckets.longest();
            let too_long = EmbedError::TooLong { text: index, tokens: row.len(), limit };
            Ok((self.buckets.lane(row.len()).ok_or(too_long)?, index))
        };
        let mut order = rows.iter().enumerate().map(lane).collect::<Result<Vec<_>>>()?;
        order.sort_unstable();
        let mut vectors = vec![Vec::new(); rows.len()];
        for lane in order.chunk_by(|a, b| a.0 == b.0) {
            for batch in lane.chunks(self.buckets.capacity(lane[0].0)) {
                let bucket = self.buckets.fit(lane[0].0, batch.len());
                let batch_rows: Vec<&Vec<u32>> = batch.iter().map(|&(_, index)| &rows[index]).collect();
                for (&(_, index), vector) in batch.iter().zip(self.run(bucket, &batch_rows)?) {
                    vectors[index] = vector;
                }
            }
        }
        Ok(vectors)
    }

    /// Checks ids that did not come from the tokenizer.
    ///
    /// # Errors
    /// [`EmbedError::UnknownToken`].
    pub fn check(rows: &[Vec<u32>], vocabulary: usize) -> Result<()> {
        let unknown = |(row, ids): (usize, &Vec<u32>)| Some((row, *ids.iter().find(|&&id| id as usize >= vocabulary)?));
        match rows.iter().enumerate().find_map(unknown) {
            Some((row, id)) => Err(EmbedError::UnknownToken { row, id, limit: vocabulary }),
            None => Ok(()),
        }
    }
}

/// Ids and mask, both `(batch, tokens)` of u32. Padding is 0. Rows that are missing have one token, so that their means
/// are numbers.
fn inputs(bucket: Bucket, rows: &[impl AsRef<[u32]>], device: &Device) -> candle::Result<[Tensor; 2]> {
    let (mut ids, mut mask) = (vec![0u32; bucket.batch * bucket.length], vec![0u32; bucket.batch * bucket.length]);
    for (index, start) in (0..bucket.batch).map(|index| index * bucket.length).enumerate() {
        let row = rows.get(index).map_or(&[0][..], AsRef::as_ref);
        let row = &row[..row.len().min(bucket.length)];
        ids[start..start + row.len()].copy_from_slice(row);
        mask[start..start + row.len()].fill(1);
    }
    let shape = (bucket.batch, bucket.length);
    Ok([Tensor::from_vec(ids, shape, device)?, Tensor::from_vec(mask, shape, device)?])
}

impl Engine for Embedder {
    type Row = Vec<u32>;
    type Answer = Vec<f32>;

    fn length(&self, row: &Vec<u32>) -> usize {
        row.len()
    }

    fn run(&self, bucket: Bucket, rows: &[&Vec<u32>]) -> Result<Vec<Vec<f32>>, EngineError> {
        if let Some(id) = rows.iter().flat_map(|row| row.iter()).find(|&&id| id as usize >= self.vocabulary) {
            return Err(EngineError::new(format!("token {id} is outside the vocabulary of {}", self.vocabulary)));
        }
        let outputs = self.executor.call_to_host(&inputs(bucket, rows, &self.device)?)?;
        Ok(outputs[0].chunks(self.width).take(rows.len()).map(<[f32]>::to_vec).collect())
    }

    fn prepare(&self, bucket: Bucket) -> Result<(), EngineError> {
        let inputs = inputs(bucket, &[[1u32]], &self.device)?;
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
            let report = inputs(bucket, &[[1u32]], &self.device).ok().and_then(|x| self.executor.report_for(&x).ok());
            if let Some(report) = report {
                health.note(bucket, &report);
            }
        }
        health
    }
}
