//! A decoder before it is on a device: where its weights come from, its sizes, its tokenizer.

use std::path::Path;
use std::sync::Arc;

use candle::{DType, Device};
use opara_candle::ops::PAGE;
use opara_candle::Builder;
use opara_models::decoder::{Config, Decoder, DecoderError, GgufFile, Text};
use opara_models::engine::{Engine, Options, TextModel};
use opara_weights::Checkpoint;

use super::{GenerateError, Result};

/// Parts of prompts that are read together at most. More are read faster, and hold up texts that are written for longer.
const MOST_PARTS: usize = 64;

/// The least number that is chosen where there is little memory for pages.
const LEAST_PARTS: usize = 16;

/// Building graphs reads parts into pages of its own. These take at most this part of the memory for pages: one in 50.
const OWN_PAGES_ONE_IN: u64 = 50;

enum Weights {
    Checkpoint(Box<Checkpoint>),
    Gguf(GgufFile),
    Seeded(u64),
}

/// A decoder with its tokenizer, from a checkpoint, a GGUF file or with random weights.
pub struct TextDecoder {
    weights: Weights,
    config: Config,
    text: Arc<Text>,
}

/// The keys and values that a decoder may hold on a device, and their type.
#[derive(Debug, Clone, Copy)]
pub struct KvBudget {
    /// Texts at once.
    pub sequences: usize,
    /// Tokens of the longest, prompt and answer together.
    pub context: usize,
    /// Bytes of keys and values of all texts. Default: as many as all of them need at their longest, or, if that is less, four fifths of what
    /// is free once the weights are loaded, divided by the number of models.
    pub bytes: Option<u64>,
    /// Parts of prompts that a GPU reads together at most; texts that are written wait for that. Default: 64, or where there is little memory
    /// for pages, down to 16.
    pub parts: Option<usize>,
    /// Models that share the device.
    pub models: usize,
    /// Type of weights and activations. Quantised weights stay so on the CPU.
    pub dtype: DType,
}

/// Is this a GGUF file, by its name?
pub(crate) fn is_gguf(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"))
}

impl TextDecoder {
    /// The checkpoint in this folder (`config.json`, `tokenizer.json`, weights and, for conversations, a chat template), or this
    /// GGUF file.
    ///
    /// # Errors
    /// Files that are missing or not sound; an architecture that is not known.
    pub fn open(path: &Path) -> Result<Self> {
        Self::open_with(path, false)
    }

    /// The same. With `allow_unread`, warnings name parts of the file and tensors that are not known, where errors do otherwise.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub fn open_with(path: &Path, allow_unread: bool) -> Result<Self> {
        if !path.exists() {
            return Err(GenerateError::NoSuchPath { path: path.into() });
        }
        if is_gguf(path) {
            let file = GgufFile::from(path).allow_unread(allow_unread);
            let (config, text) = (Config::of_gguf(file.clone())?, Text::of_gguf(path)?);
            text.check_vocabulary(config.vocab)?;
            return Ok(Self { weights: Weights::Gguf(file), config, text: Arc::new(text) });
        }
        let checkpoint = Checkpoint::find(&path.display().to_string()).map_err(DecoderError::from)?;
        let checkpoint = checkpoint.allow_unread(allow_unread);
        let (config, text) = (Config::of_checkpoint(&checkpoint)?, Text::of_checkpoint(&checkpoint)?);
        text.check_vocabulary(config.vocab)?;
        Ok(Self { weights: Weights::Checkpoint(Box::new(checkpoint)), config, text: Arc::new(text) })
    }

    /// Whether [8-bit floats](Checkpoint::keep_floats) of a checkpoint are kept as they are.
    pub fn keep_floats(mut self, are_kept: bool) -> Self {
        if let Weights::Checkpoint(checkpoint) = self.weights {
            self.weights = Weights::Checkpoint(Box::new(checkpoint.keep_floats(are_kept)));
        }
        self
    }

    /// A tiny one of random weights of a seed, whose tokens are bytes: its texts mean nothing.
    ///
    /// # Errors
    /// None in practice.
    pub fn random(seed: u64) -> Result<Self> {
        let config = Config { vocab: 256, max_positions: 1_024, eos: vec![0], ..Config::tiny() };
        Ok(Self { weights: Weights::Seeded(seed), config, text: Arc::new(Text::of_bytes()?) })
    }

    /// Whether its weights are random.
    pub fn is_random(&self) -> bool {
        matches!(self.weights, Weights::Seeded(_))
    }

    /// Whether its matrices are quantised.
    pub fn is_quantized(&self) -> bool {
        matches!(self.weights, Weights::Gguf(_))
    }

    /// What the model is.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Its tokenizer and chat template.
    pub fn text(&self) -> &Arc<Text> {
        &self.text
    }

    /// The model on a device, ready to write, by executors with these settings, whose graphs are built, or eagerly.
    ///
    /// # Errors
    /// A context that is longer than the model's, no room on the device for the weights and one text, fewer bytes for keys and values than
    /// one text needs, weights that do not fit, and what building an executor may fail with.
    pub fn engine(&self, budget: KvBudget, device: &Device, builder: Option<Builder>) -> Result<Engine<Decoder>> {
        let KvBudget { sequences, context, bytes, parts, dtype, .. } = budget;
        let model = match &self.weights {
            Weights::Gguf(file) => Decoder::load_gguf(file.clone(), dtype, device, 1, context)?,
            Weights::Checkpoint(checkpoint) => {
                Decoder::of_checkpoint(checkpoint, &self.config, dtype, device, 1, context)?
            }
            Weights::Seeded(seed) => {
                self.config.fits(1, context, dtype, device)?;
                Decoder::load(opara_weights::seeded(*seed, dtype, device), &self.config, context)?
            }
        };
        let longest = model.pages().unwrap_or(0);
        let free = model.free_bytes()?;
        let of_part = model.page_bytes() * model.part().div_ceil(PAGE) as u64;
        let room = bytes.unwrap_or(u64::MAX).min(free.unwrap_or(0));
        let fitting = ((room / OWN_PAGES_ONE_IN / of_part.max(1)) as usize).clamp(LEAST_PARTS, MOST_PARTS);
        let most_parts = parts.unwrap_or(fitting);
        let options = Options { slots: sequences, most_parts, builder, ..Options::default() };
        let pages = match bytes {
            Some(bytes) => ((bytes / model.page_bytes()) as usize).saturating_sub(options.own_pages(&model)),
            None => {
                let most = free.unwrap_or(u64::MAX) / 5 * 4 / budget.models.max(1) as u64;
                (most / model.page_bytes()).max(longest as u64) as usize
            }
        };
        let options = Options { pages: Some(pages.min(sequences * longest)), ..options };
        let mut engine = Engine::new(Arc::new(model), options)?;
        engine.build()?;
        Ok(engine)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_say_how_many_pages_there_are() {
        let decoder = TextDecoder::random(3).expect("random weights");
        let engine = |bytes| {
            let budget = KvBudget { sequences: 4, context: 256, bytes, parts: None, models: 1, dtype: DType::F32 };
            decoder.engine(budget, &Device::Cpu, None)
        };
        let all = engine(None).expect("memory");
        assert_eq!(all.pages(), Some((0, 4 * 4)), "of all texts at their longest");
        let page = all.model().page_bytes();
        // On a CPU one part is read at a time, whose two pages are no text's.
        let few = engine(Some((2 + 5) * page)).expect("memory");
        assert_eq!(few.pages(), Some((0, 5)));
        assert_eq!(engine(Some(1 << 30)).expect("memory").pages(), Some((0, 4 * 4)), "more have no use");
        let error = engine(Some((2 + 3) * page)).err().expect("too few").to_string();
        assert!(error.contains("3 pages") && error.contains("takes 4"), "{error}");
    }
}
