//! A text model on a device.

use std::collections::HashMap;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use candle::{Device, Tensor};
use opara_candle::{Builder, OparaExecutor};
use parking_lot::Mutex;

use super::architecture::Sizes;
use super::encoder::Encoder;
use super::finish::Finish;
use super::{EmbedError, Result, TextOptions, TextRow, TextTokenizer};
use crate::batch::{Bucket, Buckets, Engine, EngineError, Health, Queue};

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

/// Tokens of a text with which a GPU's time is measured.
const USUAL: usize = 64;

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

    /// One answer a text, in the order of the texts. They run in the largest buckets that texts of one length fill, or texts side by side.
    ///
    /// # Errors
    /// A text that is too long or has no tokens, a vector with NaN or infinity, and those of the executor.
    pub fn embed(&self, texts: &[impl AsRef<str>]) -> Result<Vec<Vec<f32>>> {
        let rows = self.tokenizer.rows(texts, &TextOptions::default())?;
        let limit = self.buckets.longest();
        let mut queue = Queue::new(self.buckets.lanes());
        for (text, row) in rows.iter().enumerate() {
            let tokens = row.ids.len();
            let lane = self.buckets.lane(tokens).ok_or(EmbedError::TooLong { text, tokens, limit })?;
            queue.push(lane, 0, self.buckets.taken(tokens), text);
        }
        let mut vectors = vec![Vec::new(); rows.len()];
        while let Some((bucket, batch)) = queue.take(&self.buckets, |_| false) {
            let batch_rows: Vec<&TextRow> = batch.iter().map(|&index| &rows[index]).collect();
            for (index, vector) in batch.into_iter().zip(self.run(bucket, &batch_rows)?) {
                vectors[index] = vector;
            }
        }
        Self::check_vectors(&vectors)?;
        Ok(vectors)
    }

    /// Inputs of a batch of texts as long as most.
    fn example(&self, bucket: Bucket) -> candle::Result<Vec<Tensor>> {
        self.encoder.example(bucket, USUAL.min(self.buckets.longest()), &self.device)
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
        let encoder = self.encoder.of_tokens();
        let made = (build(&encoder, &self.builder, &self.device, &self.buckets)?, encoder);
        Ok(self.all_tokens.get_or_init(|| made))
    }

    /// The answers of rows that all ask for the hidden states of tokens, or all do not, as they come from the device.
    fn answers(&self, bucket: Bucket, rows: &[&TextRow], has_tokens: bool) -> Result<Vec<Vec<f32>>> {
        let (executor, encoder) = match has_tokens {
            true => self.all_tokens().map(|(executor, encoder)| (executor, encoder))?,
            false => (&self.executor, &self.encoder),
        };
        encoder.answers(executor, bucket, rows, &self.device)
    }
}

/// An executor of an encoder, with a plan of the smallest bucket.
fn build(encoder: &Encoder, builder: &Builder, device: &Device, buckets: &Buckets) -> Result<OparaExecutor> {
    let smallest = match encoder.has_plans() {
        false => Bucket { batch: 1, length: 1 },
        true => buckets.iter().last().unwrap_or(Bucket { batch: 1, length: 1 }),
    };
    // Ids and masks are looked up and multiplied by operators alone: one long row and one short one show that.
    let (long, short) = (encoder.example(smallest, 2, device)?, encoder.example(smallest, 1, device)?);
    let forward = {
        let encoder = encoder.clone();
        move |inputs: &[Tensor]| Ok(vec![encoder.forward(inputs)?])
    };
    Ok(builder.clone().example(&short).build_fn(forward, &long)?)
}

impl Engine for Embedder {
    type Row = TextRow;
    type Answer = Vec<f32>;

    fn length(&self, row: &TextRow) -> usize {
        row.ids.len()
    }

    fn run(&self, bucket: Bucket, rows: &[&TextRow]) -> Result<Vec<Vec<f32>>, EngineError> {
        // The lookup of a position that there is not would cost the process its GPU.
        let limit = self.buckets.longest();
        if let Some((text, row)) = rows.iter().enumerate().find(|(_, row)| row.ids.len() > limit) {
            return Err(EmbedError::TooLong { text, tokens: row.ids.len(), limit }.into());
        }
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
        if !self.encoder.has_plans() {
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
        if !self.encoder.has_plans() {
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
