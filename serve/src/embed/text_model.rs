//! A text model before it is on a device: where its weights come from, its sizes, its tokenizer.

use std::path::Path;

use candle::{DType, Device};
use opara_models::bert::{BertModel, Config};
use opara_weights::{Checkpoint, Unread};
use serde::Deserialize;

use super::embedder::Encoder;
use super::modules::{self, Modules};
use super::prompts::SentenceConfig;
use super::transformer::TokenizerSettings;
use super::{EmbedError, Embedder, Result, TextTokenizer};
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

/// A BERT with its tokenizer and the modules behind it, from a checkpoint or with random weights.
pub struct TextModel {
    weights: Weights,
    config: Config,
    tokenizer: TextTokenizer,
    modules: Modules,
}

/// What suits a GPU, which is fast with many rows and takes long to build a plan.
const BATCHES: &[usize] = &[1, 2, 4, 8, 16, 32];
const LENGTHS: &[usize] = &[16, 32, 64, 128, 256];

/// What suits a CPU, which multiplies few rows as fast as many and builds a plan in some forwards: little padding.
const CPU_BATCHES: &[usize] = &[1];
const CPU_LENGTHS: &[usize] = &[16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448];

/// Ends of the names of architectures whose encoder gives a vector a token. Their heads are left out.
const ENCODERS: [&str; 4] = ["Model", "ForMaskedLM", "ForPreTraining", "ForNextSentencePrediction"];

/// Which architecture a checkpoint's `config.json` names.
#[derive(Deserialize)]
struct Kind {
    model_type: Option<String>,
    architectures: Option<Vec<String>>,
}

impl Kind {
    fn check(self, model: &str) -> Result<()> {
        let model = model.to_owned();
        if let Some(kind) = self.model_type.filter(|kind| kind != "bert") {
            return Err(EmbedError::Architecture { model, kind });
        }
        let is_encoder =
            |name: &String| ENCODERS.iter().any(|end| name.ends_with(end)) && !name.ends_with("LMHeadModel");
        match self.architectures.into_iter().flatten().find(|name| !is_encoder(name)) {
            Some(architecture) => Err(EmbedError::Head { model, architecture }),
            None => Ok(()),
        }
    }
}

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
        if !folder.is_dir() {
            return Err(EmbedError::File { path: folder.into(), reason: "there is no such folder".into() });
        }
        let unread = Unread::allowed(allow_unread);
        let list = modules::list(folder, unread)?;
        let transformer = list.as_ref().map_or(Ok(folder.into()), |list| modules::transformer(folder, list))?;
        let model = transformer.display().to_string();
        let checkpoint = Checkpoint::find(&model)?.allow_unread(allow_unread);
        checkpoint.config::<Kind>()?.check(&model)?;
        let config = Config::of_checkpoint(&checkpoint)?;
        let mut modules = match &list {
            Some(list) => Modules::of(folder, list, config.hidden_size, unread)?,
            None => Modules::unlisted(folder, config.hidden_size, unread)?,
        };
        let SentenceConfig { prompts, truncate } = SentenceConfig::read(folder, unread)?;
        truncate.into_iter().for_each(|width| modules.truncate(width));
        let settings = TokenizerSettings::read(&transformer, config.max_position_embeddings, unread)?;
        let path = checkpoint.tokenizer_path().ok_or(EmbedError::NoTokenizer { model })?;
        let tokenizer = TextTokenizer::trained(path, settings, config.vocab_size)?;
        let tokenizer = tokenizer.with_prompts(prompts, modules.pools_prompt());
        Ok(Self { tokenizer, modules, config, weights: Weights::Checkpoint(checkpoint) })
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
        let modules = Modules::mean(config.hidden_size);
        Self { weights: Weights::Seeded(seed), config, tokenizer, modules }
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

    /// Elements of a vector.
    pub fn width(&self) -> usize {
        self.modules.width()
    }

    /// Tokens of the vocabulary.
    pub fn vocabulary(&self) -> usize {
        self.config.vocab_size
    }

    /// Types that a token may have.
    pub fn token_types(&self) -> usize {
        self.config.type_vocab_size
    }

    /// Its tokenizer.
    pub fn tokenizer(&self) -> &TextTokenizer {
        &self.tokenizer
    }

    /// Buckets that end at the model's limit: of these numbers of rows, lengths, and tokens of a batch. An empty list or
    /// `None` stands for numbers that suit a CPU, or a GPU.
    ///
    /// # Errors
    /// As for [`Buckets::new`].
    pub fn buckets(
        &self,
        is_cpu: bool,
        batches: &[usize],
        lengths: &[usize],
        tokens: Option<usize>,
    ) -> crate::batch::Result<Buckets> {
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
        let lengths = lengths.iter().copied().filter(|&length| length < self.limit()).chain([self.limit()]);
        Buckets::new(batches.iter().copied(), lengths, tokens.unwrap_or(if is_cpu { 512 } else { 8_192 }))
    }

    /// The model on a device, with weights of `dtype`, for batches of these shapes. The plan of the smallest is built; others
    /// are built by [`Engine::prepare`](crate::batch::Engine::prepare), or when they are first run.
    ///
    /// # Errors
    /// Weights that do not fit, buckets longer than the model's positions, and what building an executor may fail with.
    pub fn embedder(&self, device: &Device, dtype: DType, buckets: &Buckets) -> Result<Embedder> {
        self.embedder_by(opara_candle::OparaExecutor::builder(), device, dtype, buckets)
    }

    /// The same with settings of the executor. Its `max_shapes` becomes the number of buckets.
    ///
    /// # Errors
    /// As for [`embedder`](Self::embedder).
    pub fn embedder_by(
        &self,
        builder: opara_candle::Builder,
        device: &Device,
        dtype: DType,
        buckets: &Buckets,
    ) -> Result<Embedder> {
        let (length, positions) = (buckets.longest(), self.config.max_position_embeddings);
        if length > positions {
            return Err(EmbedError::Positions { length, positions });
        }
        let (bert, unread) = match &self.weights {
            Weights::Checkpoint(checkpoint) => {
                let loaded = checkpoint.load(dtype, device)?;
                let bert = BertModel::load(loaded.vb.clone(), &self.config)?;
                loaded.check(BertModel::is_head)?;
                (bert, checkpoint.unread())
            }
            Weights::Seeded(seed) => {
                let weights = opara_weights::seeded(*seed, dtype, device);
                (BertModel::load(weights, &self.config)?, Unread::Refuse)
            }
        };
        let encoder = Encoder { bert, head: self.modules.load(device, unread)? };
        Embedder::new(encoder, self.tokenizer.clone(), &self.config, self.width(), builder, device, buckets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_end_at_the_models_length() -> crate::batch::Result<()> {
        for (size, length) in [(Size::Tiny, 64), (Size::Base, 512)] {
            assert_eq!(TextModel::random(size, 0).buckets(true, &[], &[], None)?.longest(), length);
        }
        Ok(())
    }
}
