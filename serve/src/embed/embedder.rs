//! A text model on a device.

use std::collections::HashMap;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use candle::{Device, Tensor};
use opara_candle::{Builder, OparaExecutor};
use parking_lot::Mutex;

use super::architecture::{Padding, Sizes};
use super::encoder::Encoder;
use super::finish::Finish;
use super::head::Head;
use super::{EmbedError, Result, TextOptions, TextRow, TextTokenizer};
use crate::batch::{Bucket, Buckets, Engine, EngineError, Health};

/// A text model on a device: token ids in, one answer a text out: a vector, the logits of classes, or a weight for each word of the
/// vocabulary.
pub struct Embedder {
    executor: OparaExecutor,
    encoder: Encoder,
    /// For the hidden states of all tokens, made when they are first asked for.
    all_tokens: OnceLock<(OparaExecutor, Encoder)>,
    /// What both executors are built by.
    builder: Builder,
    tokenizer: TextTokenizer,
    device: Device,
    buckets: Buckets,
    width: usize,
    sizes: Sizes,
    finish: Finish,
    /// What a GPU takes for a batch of each bucket.
    times: Mutex<HashMap<Bucket, Duration>>,
}

/// Calls one after another by which a GPU's time is measured. The host enqueues each while the one before runs, so that its own
/// time is hidden.
const CALLS: u32 = 16;

impl Embedder {
    pub(super) fn new(
        encoder: Encoder,
        tokenizer: TextTokenizer,
        (sizes, width, finish): (Sizes, usize, Finish),
        builder: Builder,
        device: &Device,
        buckets: &Buckets,
    ) -> Result<Self> {
        let builder = builder.max_shapes(buckets.len());
        let executor = build(&encoder, &builder, device, buckets)?;
        let tokenizer = tokenizer.limited(buckets.longest());
        let (device, buckets, times, all_tokens) = (device.clone(), buckets.clone(), Mutex::default(), OnceLock::new());
        Ok(Self { executor, encoder, all_tokens, builder, tokenizer, device, buckets, width, sizes, finish, times })
    }

    /// Numbers of an answer.
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

    /// One answer a text, in the order of the texts. They are sorted by length and run in the largest buckets that they fill.
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
        example(&self.encoder, bucket, 1, &self.device)
    }

    /// Checks rows that did not come from the tokenizer, for a model with these numbers of tokens and of token types.
    ///
    /// # Errors
    /// A row that is empty, or that names a token or a type that the model does not have.
    pub fn check(rows: &[TextRow], vocabulary: usize, token_types: usize) -> Result<()> {
        for (row, TextRow { ids, types, unpooled, .. }) in rows.iter().enumerate() {
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

    /// The executor and the encoder of the hidden states of all tokens.
    fn all_tokens(&self) -> Result<&(OparaExecutor, Encoder)> {
        if let Some(made) = self.all_tokens.get() {
            return Ok(made);
        }
        let encoder = Encoder { head: Head::Tokens.into(), ..self.encoder.clone() };
        let made = (build(&encoder, &self.builder, &self.device, &self.buckets)?, encoder);
        Ok(self.all_tokens.get_or_init(|| made))
    }

    /// The answers of rows that all ask for the hidden states of tokens, or all do not, as they come from the device.
    fn answers(&self, bucket: Bucket, rows: &[&TextRow], has_tokens: bool) -> Result<Vec<Vec<f32>>> {
        let (executor, encoder) = match has_tokens {
            true => self.all_tokens().map(|(executor, encoder)| (executor, encoder))?,
            false => (&self.executor, &self.encoder),
        };
        if encoder.padding == Padding::None {
            // Without a mask a batch would have other answers than its texts alone.
            let alone = |row: &&TextRow| {
                let batch = encoder.batch(Bucket { batch: 1, length: row.ids.len() }, &[row], &self.device)?;
                Ok(encoder.forward(&batch)?.flatten_all()?.to_vec1()?)
            };
            return rows.iter().map(alone).collect();
        }
        let all = match encoder.batch(bucket, rows, &self.device)?.inputs(encoder) {
            Ok(inputs) => executor.call_to_host(&inputs)?.swap_remove(0),
            // The executor's plans have a sum of the tables of types and positions. Other types are rare and run eagerly.
            Err(batch) => encoder.forward(&batch)?.flatten_all()?.to_vec1()?,
        };
        Ok(all.chunks(all.len() / bucket.batch).take(rows.len()).map(<[f32]>::to_vec).collect())
    }
}

/// Inputs of a batch whose first row has `tokens` tokens, and the others one.
fn example(encoder: &Encoder, bucket: Bucket, tokens: usize, device: &Device) -> candle::Result<Vec<Tensor>> {
    let batch = encoder.batch(bucket, &[&TextRow::from(vec![1; tokens])], device)?;
    batch.inputs(encoder).map_err(|_| candle::Error::Msg("a batch without types has types".into()))
}

/// An executor of an encoder, with a plan of the smallest bucket.
fn build(encoder: &Encoder, builder: &Builder, device: &Device, buckets: &Buckets) -> Result<OparaExecutor> {
    let smallest = match encoder.padding {
        // Batches have no plans.
        Padding::None => Bucket { batch: 1, length: 1 },
        _ => buckets.iter().last().unwrap_or(Bucket { batch: 1, length: 1 }),
    };
    // Ids and masks are looked up and multiplied by operators alone: one full row and one short one show that.
    let (full, short) = (smallest.length.min(2), 1);
    let (full, short) = (example(encoder, smallest, full, device)?, example(encoder, smallest, short, device)?);
    let forward = {
        let encoder = encoder.clone();
        move |inputs: &[Tensor]| Ok(vec![encoder.forward(&encoder.of_inputs(inputs))?])
    };
    Ok(builder.clone().example(&short).build_fn(forward, &full)?)
}

impl Engine for Embedder {
    type Row = TextRow;
    type Answer = Vec<f32>;

    fn length(&self, row: &TextRow) -> usize {
        row.ids.len()
    }

    fn run(&self, bucket: Bucket, rows: &[&TextRow]) -> Result<Vec<Vec<f32>>, EngineError> {
        for row in rows {
            Self::check(std::slice::from_ref(row), self.sizes.vocabulary, self.sizes.token_types)
                .map_err(EngineError::new)?;
        }
        let mut answers = vec![Vec::new(); rows.len()];
        for has_tokens in [false, true] {
            let (places, part): (Vec<usize>, Vec<&TextRow>) =
                rows.iter().enumerate().filter(|(_, row)| row.has_tokens == has_tokens).unzip();
            if part.is_empty() {
                continue;
            }
            let part_answers = self.answers(bucket, &part, has_tokens)?;
            for ((place, row), mut answer) in places.into_iter().zip(part).zip(part_answers) {
                answers[place] = match has_tokens {
                    true => {
                        answer.truncate(row.ids.len() * self.sizes.width);
                        answer
                    }
                    false => self.finish.apply(answer, row.vector),
                };
            }
        }
        Ok(answers)
    }

    fn prepare(&self, bucket: Bucket) -> Result<(), EngineError> {
        if self.encoder.padding == Padding::None {
            return Ok(());
        }
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
        if self.encoder.padding == Padding::None {
            let reason = "its module has no mask: each text runs at its own length".to_owned();
            health.eager.extend(buckets.iter().map(|bucket| (bucket, reason.clone())));
            return health;
        }
        for bucket in buckets.iter() {
            let report = self.example(bucket).ok().and_then(|x| self.executor.report_for(&x).ok());
            if let Some(report) = report {
                health.note(bucket, &report);
            }
        }
        health
    }
}
