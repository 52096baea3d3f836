//! A text model before it is on a device: where its weights come from, its architecture, its tokenizer.

use std::path::Path;

use candle::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use opara_candle::{ops, Builder, OparaExecutor};
use opara_models::bert::Config;
use opara_weights::{Checkpoint, Unread, WeightsError};
use serde_json::Value;

use super::architecture::{Architecture, Classifier, Padding, Sizes};
use super::encoder::Encoder;
use super::finish::Finish;
use super::head::{Head, Step};
use super::layers::Layers;
use super::modules::{self, Modules};
use super::packed::Packed;
use super::padded::Padded;
use super::task::{Folder, Task};
use super::transformer::TokenizerSettings;
use super::{Architectures, EmbedError, Embedder, Labels, Pooling, Result, TextTokenizer};
use crate::batch::Buckets;

/// Sizes of models with random weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[cfg_attr(feature = "server", derive(clap::ValueEnum))]
#[serde(rename_all = "kebab-case")]
pub enum Size {
    /// For tests: 2 layers of width 32, 64 positions.
    Tiny,
    /// That of all-MiniLM-L6-v2: 6 layers of width 384.
    MiniLm,
    /// BERT-base: 12 layers of width 768.
    Base,
    /// BERT-large: 24 layers of width 1,024.
    Large,
}

enum Weights {
    Checkpoint(Checkpoint),
    Seeded(u64),
}

/// An encoder of texts with its tokenizer and what is behind it, from a checkpoint or with random weights.
pub struct TextModel {
    weights: Weights,
    /// Its `model_type`.
    kind: String,
    architecture: Box<Architecture>,
    task: Task,
    /// Beginnings of the names of tensors that it leaves out.
    left_out: &'static [&'static str],
    tokenizer: TextTokenizer,
}

/// What a text model's answers are.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Answers {
    /// A vector a text, pooled so.
    Vectors(Pooling),
    /// Logits of these classes.
    Classes(Labels),
    /// A weight for each word of the vocabulary.
    Words,
}

/// What suits a GPU, which is fast with many rows and takes long to build a plan.
const BATCHES: &[usize] = &[1, 2, 4, 8, 16, 32];
const LENGTHS: &[usize] = &[16, 32, 64, 128, 256];

/// Tokens of the largest padded batch on a GPU.
const GPU_TOKENS: usize = 8_192;

/// Tokens of batches whose texts lie side by side, in steps beyond which the tokens that a batch lacks cost more than a plan. Of larger batches,
/// results of BERT-base no longer stay in the L2 cache of an H100 or H200: 8,192 tokens take 3.7 ms there, 4,096 1.7 ms.
const PACKED_TOKENS: usize = 4_096;
const PACKED: &[usize] =
    &[16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 640, 768, 1024, 1280, 1536, 1792, 2048, 2560, 3072, 3584];

/// What suits a CPU, which multiplies few rows as fast as many and builds a plan in some forwards: little padding.
const CPU_BATCHES: &[usize] = &[1];
const CPU_LENGTHS: &[usize] = &[16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448];

impl TextModel {
    /// The checkpoint in this folder: `config.json`, `tokenizer.json`, weights, and what sentence-transformers keeps beside
    /// them: `modules.json` and the modules that it lists, prompts, length.
    ///
    /// # Errors
    /// Files that are missing or not sound; a part that changes the vectors and is not supported.
    pub fn open(folder: &Path) -> Result<Self> {
        Self::open_with(folder, false)
    }

    /// The same. With `allow_unread`, warnings name parts of the configuration and tensors that are not known, where errors do
    /// otherwise.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub fn open_with(folder: &Path, allow_unread: bool) -> Result<Self> {
        Self::open_by(folder, allow_unread, &Architectures::default())
    }

    /// The same, with a transformer of one of these architectures.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub fn open_by(folder: &Path, allow_unread: bool, architectures: &Architectures) -> Result<Self> {
        if !folder.is_dir() {
            return Err(EmbedError::File { path: folder.into(), reason: "there is no such folder".into() });
        }
        let unread = Unread::allowed(allow_unread);
        let list = modules::list(folder, unread)?;
        let transformer = list.as_ref().map_or(Ok(folder.into()), |list| modules::transformer(folder, list))?;
        let model = transformer.display().to_string();
        let checkpoint = Checkpoint::find(&model)?.allow_unread(allow_unread);
        let config: Value = checkpoint.config()?;
        let architecture = Box::new(architectures.read(&config, &model, unread)?);
        let read = Folder { path: folder, transformer: &transformer, list: list.as_deref(), config: &config, unread };
        let (task, prompts) = read.task(&architecture)?;
        let left_out = if matches!(task, Task::Vectors(_)) { read.left_out() } else { &[] };
        let settings = TokenizerSettings::read(&transformer, architecture.sizes.positions, unread)?;
        let path = checkpoint.tokenizer_path().ok_or(EmbedError::NoTokenizer { model })?;
        let tokenizer = TextTokenizer::trained(path, settings, architecture.sizes.vocabulary)?;
        let pools_prompt = !matches!(&task, Task::Vectors(modules) if !modules.pooling().has_prompt);
        let tokenizer = tokenizer.with_prompts(prompts, pools_prompt).barring(architecture.barred);
        let kind = config.get("model_type").and_then(Value::as_str).unwrap_or("bert").to_owned();
        Ok(Self { tokenizer, task, left_out, architecture, kind, weights: Weights::Checkpoint(checkpoint) })
    }

    /// Random weights of a seed, and a tokenizer that hashes words: its vectors mean nothing.
    pub fn random(size: Size, seed: u64) -> Self {
        let config = match size {
            Size::Tiny => Config::tiny(),
            Size::MiniLm => Config::mini_lm(),
            Size::Base => Config::base(),
            Size::Large => Config::large(),
        };
        let tokenizer = TextTokenizer::hashing(config.vocab_size, config.max_position_embeddings);
        let task = Task::Vectors(Modules::mean(config.hidden_size));
        let architecture = Architectures::bert(config).into();
        Self { weights: Weights::Seeded(seed), architecture, task, left_out: &[], tokenizer, kind: "bert".into() }
    }

    /// Whether texts that are too long are cut; see [`TextTokenizer::cut`].
    pub fn cut(mut self, cut: bool) -> Self {
        self.tokenizer = self.tokenizer.cut(cut);
        self
    }

    /// Whether its weights are random.
    pub fn is_random(&self) -> bool {
        matches!(self.weights, Weights::Seeded(_))
    }

    /// Tokens that a text may have.
    pub fn limit(&self) -> usize {
        self.tokenizer.limit()
    }

    /// Numbers of an answer: elements of a vector, classes, or tokens of the vocabulary.
    pub fn width(&self) -> usize {
        match &self.task {
            Task::Vectors(modules) => modules.width(),
            Task::Classes(labels) => labels.names.len(),
            Task::Words(_) => self.architecture.sizes.vocabulary,
        }
    }

    /// What its answers are.
    pub fn answers(&self) -> Answers {
        match &self.task {
            Task::Vectors(modules) => Answers::Vectors(modules.pooling().clone()),
            Task::Classes(labels) => Answers::Classes(labels.clone()),
            Task::Words(_) => Answers::Words,
        }
    }

    /// The `model_type` of its configuration.
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// Sizes of its transformer.
    pub fn sizes(&self) -> Sizes {
        self.architecture.sizes
    }

    /// Whether it gives a vector a text alone, and no hidden states of tokens.
    pub fn is_pooled(&self) -> bool {
        self.architecture.is_pooled
    }

    /// Tokens of the vocabulary.
    pub fn vocabulary(&self) -> usize {
        self.architecture.sizes.vocabulary
    }

    /// Types that a token may have.
    pub fn token_types(&self) -> usize {
        self.architecture.sizes.token_types
    }

    /// Its tokenizer.
    pub fn tokenizer(&self) -> &TextTokenizer {
        &self.tokenizer
    }

    /// Buckets that end at the model's limit, or at `tokens` if that is less: of these numbers of rows, lengths, and tokens of a batch. An
    /// empty list or `None` stands for numbers that suit the device. Where both lists are empty and the model takes texts side by side on it,
    /// buckets are [packed](Buckets::packed).
    ///
    /// # Errors
    /// As for [`Buckets::new`], and failed driver calls.
    pub fn buckets(
        &self,
        device: &Device,
        dtype: DType,
        batches: &[usize],
        lengths: &[usize],
        tokens: Option<usize>,
    ) -> Result<Buckets> {
        let is_cpu = device.is_cpu();
        if batches.is_empty() && lengths.is_empty() && !is_cpu && self.is_packed_on(device, dtype)? {
            let tokens = tokens.unwrap_or(PACKED_TOKENS.max(self.limit().min(GPU_TOKENS)));
            let more = std::iter::successors(Some(PACKED_TOKENS), |some| some.checked_add(some / 4))
                .take_while(|&some| some < tokens);
            let all = PACKED.iter().copied().chain(more).filter(|&some| some < tokens).chain([tokens]);
            return Ok(Buckets::packed(all, self.limit().min(tokens))?);
        }
        let batches = match batches {
            [] if is_cpu => CPU_BATCHES,
            [] => BATCHES,
            given => given,
        };
        let lengths = match lengths {
            [] if is_cpu => CPU_LENGTHS,
            [] => LENGTHS,
            given => given,
        };
        let default = match &self.task {
            _ if is_cpu => 512,
            // Logits of a whole vocabulary for each token take gigabytes.
            Task::Words(_) => 2_048,
            _ => GPU_TOKENS,
        };
        let tokens = tokens.unwrap_or(default);
        let limit = self.limit().min(tokens);
        let lengths = match self.architecture.padding {
            Padding::Full => &[],
            _ => lengths,
        };
        let lengths = lengths.iter().copied().filter(|&length| length < limit).chain([limit]);
        Ok(Buckets::new(batches.iter().copied(), lengths, tokens)?)
    }

    /// Whether it takes texts side by side on a device, and attention over them is one launch there.
    fn is_packed_on(&self, device: &Device, dtype: DType) -> Result<bool> {
        let Some(packing) = self.architecture.packing.as_ref().filter(|_| self.can_be_packed()) else {
            return Ok(false);
        };
        Ok(ops::has_ranged_attention(device, dtype, packing.head)?)
    }

    /// Whether what is behind the transformer takes texts side by side.
    fn can_be_packed(&self) -> bool {
        match (&self.task, &self.architecture.classifier) {
            (Task::Vectors(modules), _) => modules.pooling().is_of_ranges(),
            (Task::Classes(_), Some(Classifier { pooling, .. })) => Pooling::from(*pooling).is_of_ranges(),
            (Task::Classes(_), None) | (Task::Words(_), _) => false,
        }
    }

    /// The model on a device, with weights of `dtype`, for batches of these shapes. The plan of the smallest is built; others
    /// are built by [`Engine::prepare`](crate::batch::Engine::prepare), or when they are first run.
    ///
    /// # Errors
    /// Weights that do not fit, buckets longer than the model's positions, and what building an executor may fail with.
    pub fn embedder(&self, device: &Device, dtype: DType, buckets: &Buckets) -> Result<Embedder> {
        self.embedder_by(OparaExecutor::builder(), device, dtype, buckets)
    }

    /// The same with settings of the executor. Its `max_shapes` becomes the number of buckets.
    ///
    /// # Errors
    /// As for [`embedder`](Self::embedder).
    pub fn embedder_by(&self, builder: Builder, device: &Device, dtype: DType, buckets: &Buckets) -> Result<Embedder> {
        let Self { architecture, task, .. } = self;
        let (length, sizes) = (buckets.longest(), architecture.sizes);
        if length > sizes.positions {
            return Err(EmbedError::Positions { length, positions: sizes.positions });
        }
        let (vb, loaded, unread) = match &self.weights {
            Weights::Checkpoint(checkpoint) => {
                if architecture.is_f32_only && dtype != DType::F32 {
                    let model = checkpoint.config_path().map(|path| path.display().to_string()).unwrap_or_default();
                    return Err(EmbedError::Dtype { model, kind: self.kind.clone(), dtype });
                }
                let loaded = checkpoint.load(dtype, device)?;
                (loaded.vb.clone(), Some(loaded), checkpoint.unread())
            }
            Weights::Seeded(seed) => (opara_weights::seeded(*seed, dtype, device), None, Unread::Refuse),
        };
        let head = self.head(&vb, device, unread)?;
        let encoder = match (&architecture.packing, buckets.is_packed()) {
            (Some(packing), true)
                if self.can_be_packed() && (device.is_cpu() || self.is_packed_on(device, dtype)?) =>
            {
                Encoder::Packed(Packed { transformer: (packing.load)(vb)?.into(), head: head.into() })
            }
            (_, true) => return Err(EmbedError::Packing { kind: self.kind.clone() }),
            (_, false) => Encoder::Padded(Padded {
                transformer: (architecture.load)(vb, length)?.into(),
                head: head.into(),
                padding: architecture.padding,
                pad: architecture.pad,
                takes_types: matches!(task, Task::Classes(_)) && sizes.token_types > 1,
            }),
        };
        let is_unused =
            |name: &str| (architecture.is_unused)(name) || self.left_out.iter().any(|part| name.starts_with(part));
        loaded.map_or(Ok(()), |loaded| loaded.check(is_unused))?;
        let finish = match task {
            Task::Vectors(modules) => modules.finish(),
            Task::Classes(_) | Task::Words(_) => Finish::default(),
        };
        let builder = if architecture.has_own_operators { builder } else { builder.accurate() };
        let end = (sizes, self.width(), finish);
        Embedder::new(encoder, self.tokenizer.clone(), end, builder, device, buckets)
    }

    /// The tower that sees pictures on a device, in an executor built for one picture, and that picture: pixels `(1, channels, side, side)`.
    /// Its vectors have length 1 if those of texts have. `None` if the model sees none.
    ///
    /// # Errors
    /// As for [`embedder`](Self::embedder).
    pub fn pictures(&self, builder: Builder, device: &Device, dtype: DType) -> Result<Option<(OparaExecutor, Tensor)>> {
        let (Some(pictures), Weights::Checkpoint(checkpoint)) = (&self.architecture.pictures, &self.weights) else {
            return Ok(None);
        };
        let normalizes = matches!(&self.task, Task::Vectors(modules) if modules.finish().normalizes);
        let tower = (pictures.load)(checkpoint.load(dtype, device)?.vb)?;
        let forward = move |x: &[Tensor]| {
            let vectors = ops::to_dtype(&tower(&x[0])?, DType::F32)?;
            Ok(vec![if normalizes { Step::Normalize.apply(&vectors)? } else { vectors }])
        };
        let shape = (1, pictures.channels, pictures.side, pictures.side);
        let example = Tensor::rand(-1f32, 1., shape, &Device::Cpu)?.to_dtype(dtype)?.to_device(device)?;
        let executor = builder.accurate().build_fn(forward, std::slice::from_ref(&example))?;
        Ok(Some((executor, example)))
    }

    /// What follows the transformer, on a device.
    fn head(&self, vb: &VarBuilder, device: &Device, unread: Unread) -> Result<Head> {
        let (sizes, expected) = (self.architecture.sizes, self.width());
        let check = |(layers, width): (Layers, usize)| match width == expected {
            true => Ok(layers),
            false => {
                let reason = format!("its head gives {width} numbers, and its configuration names {expected}");
                Err(EmbedError::from(WeightsError::Config { reason }))
            }
        };
        Ok(match (&self.task, &self.architecture.classifier) {
            (Task::Vectors(modules), _) => modules.load(device, unread)?,
            (Task::Classes(_), Some(Classifier { pooling, layers })) => Head::Classes {
                pooling: (*pooling).into(),
                layers: check(Layers::load(layers, vb, DType::F32, sizes.width)?)?,
            },
            (Task::Classes(_), None) => return Err(EmbedError::NoHead { model: self.kind.clone() }),
            (Task::Words(splade), _) => Head::Words {
                layers: check(Layers::load(&self.architecture.vocabulary_head, vb, vb.dtype(), sizes.width)?)?,
                splade: *splade,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_end_at_the_models_length() -> Result<()> {
        for (size, length) in [(Size::Tiny, 64), (Size::Base, 512)] {
            let buckets = TextModel::random(size, 0).buckets(&Device::Cpu, DType::F32, &[], &[], None)?;
            assert_eq!(buckets.longest(), length);
        }
        Ok(())
    }
}
