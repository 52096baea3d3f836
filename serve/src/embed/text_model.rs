//! A text model before it is on a device: where its weights come from, its sizes, its tokenizer.

use std::path::{Path, PathBuf};

use candle::{DType, Device};
use candle_nn::VarBuilder;
use opara_models::bert::{BertModel, Config};
use opara_weights::Checkpoint;
use serde::Deserialize;

use super::pooling::read_json;
use super::{EmbedError, Embedder, Pooling, Result, TextTokenizer};
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

/// A BERT with its tokenizer and pooling, from a checkpoint or with random weights.
pub struct TextModel {
    weights: Weights,
    config: Config,
    tokenizer: TextTokenizer,
    pooling: Pooling,
}

/// What suits a GPU, which is fast with many rows and takes long to build a plan.
const BATCHES: &[usize] = &[1, 2, 4, 8, 16, 32];
const LENGTHS: &[usize] = &[16, 32, 64, 128, 256];

/// What suits a CPU, which multiplies few rows as fast as many and builds a plan in some forwards: little padding.
const CPU_BATCHES: &[usize] = &[1];
const CPU_LENGTHS: &[usize] = &[16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448];

/// Which architecture a checkpoint's `config.json` names.
#[derive(Deserialize)]
struct Kind {
    model_type: Option<String>,
}

/// What a checkpoint of sentence-transformers says of lengths, in `sentence_bert_config.json`.
#[derive(Deserialize)]
struct SentenceConfig {
    max_seq_length: Option<usize>,
}

impl TextModel {
    /// The checkpoint in this folder: `config.json`, `tokenizer.json`, weights, and what sentence-transformers keeps beside
    /// them of pooling and length.
    ///
    /// # Errors
    /// Files that are missing or not sound; a pooling other than mean and CLS.
    pub fn open(folder: &Path) -> Result<Self> {
        let folder: PathBuf = folder.into();
        let model = folder.display().to_string();
        if !folder.is_dir() {
            return Err(EmbedError::File { path: folder, reason: "there is no such folder".into() });
        }
        let checkpoint = Checkpoint::find(&model)?;
        if let Kind { model_type: Some(kind) } = checkpoint.config()? {
            if kind != "bert" {
                return Err(EmbedError::Architecture { model, kind });
            }
        }
        let config: Config = checkpoint.config()?;
        let sentence: Option<SentenceConfig> = read_json(&folder.join("sentence_bert_config.json"))?;
        let limit = sentence.and_then(|config| config.max_seq_length).unwrap_or(usize::MAX);
        let limit = limit.min(config.max_position_embeddings);
        let path = checkpoint.tokenizer_path().ok_or(EmbedError::NoTokenizer { model })?;
        let tokenizer = TextTokenizer::trained(path, limit)?;
        Ok(Self { tokenizer, pooling: Pooling::of(&folder)?, config, weights: Weights::Checkpoint(checkpoint) })
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
        Self { weights: Weights::Seeded(seed), config, tokenizer, pooling: Pooling::Mean }
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
        self.config.hidden_size
    }

    /// Tokens of the vocabulary.
    pub fn vocabulary(&self) -> usize {
        self.config.vocab_size
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
        let weights: VarBuilder = match &self.weights {
            Weights::Checkpoint(checkpoint) => checkpoint.weights(dtype, device)?,
            Weights::Seeded(seed) => opara_weights::seeded(*seed, dtype, device),
        };
        let bert = BertModel::load(weights, &self.config)?;
        Embedder::new(bert, self.pooling, self.tokenizer.clone(), &self.config, builder, device, buckets)
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
