//! The flags that load models.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{ensure, Context, Result};
use candle::{DType, Device};
use opara_serve::embed::{Answers, Size, TextModel};
use serde::de::{value::StrDeserializer, Deserialize, IntoDeserializer};

use crate::Models;

/// Where models run if no flag says so.
const DEFAULT_DEVICE: &str = if cfg!(feature = "cuda") { "0" } else { "cpu" };

/// A device by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceName {
    /// `cpu`.
    Cpu,
    /// A GPU by its number.
    Gpu(usize),
}

impl FromStr for DeviceName {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "cpu" => Ok(Self::Cpu),
            number => number.parse().map(Self::Gpu).map_err(|_| "give `cpu` or a GPU's number".into()),
        }
    }
}

/// Which models a process has, and how it runs them.
#[derive(Debug, Clone, clap::Args)]
pub struct ModelOptions {
    /// A model: its name, and the folder of its checkpoint. May be given several times; the first is that of `embed(text)`.
    /// Without one, there is a model `bert` with random weights.
    #[arg(long = "model", value_name = "NAME=DIR", value_parser = named)]
    pub models: Vec<(String, PathBuf)>,

    /// Size of the model with random weights: tiny, mini-lm, base or large.
    #[arg(long, default_value = "base", value_parser = size)]
    pub size: Size,

    /// Seed of random weights.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,

    /// `cpu`, or a GPU's number.
    #[arg(long, default_value = DEFAULT_DEVICE)]
    pub device: DeviceName,

    /// Threads for arithmetic on the CPU. Default: one for each core that the process may use.
    #[arg(long)]
    pub threads: Option<usize>,

    /// Batches of rows that are in work at a time. Default: 1 on the CPU, 2 on a GPU.
    #[arg(long)]
    pub tasks: Option<usize>,

    /// Type of weights and activations: f32, f16 or bf16. Vectors are always f32.
    #[arg(long, default_value = "f32", value_parser = dtype)]
    pub dtype: DType,

    /// Rows that a batch of padded texts may have. Default: 1,2,4,8,16,32, and 1 on the CPU; BERT's kin are not padded on a GPU.
    #[arg(long, value_delimiter = ',')]
    pub batches: Vec<usize>,

    /// Lengths in tokens that rows are padded to; the model's longest is added. Default: 16,32,64,128,256.
    #[arg(long, value_delimiter = ',')]
    pub lengths: Vec<usize>,

    /// Tokens that a batch of the model may have. Default: 4096 without padding, or the longest text's up to 8192; 8192 with
    /// it, and 512 on the CPU.
    #[arg(long)]
    pub batch_tokens: Option<usize>,

    /// Cut texts that are too long, instead of failing.
    #[arg(long)]
    pub truncate: bool,
}

impl ModelOptions {
    /// Batches of rows that are in work at a time.
    pub fn tasks(&self) -> usize {
        self.tasks.unwrap_or(if self.device == DeviceName::Cpu { 1 } else { 2 }).max(1)
    }

    /// Loads the models. Their plans are built when they are first needed.
    ///
    /// # Errors
    /// A GPU that cannot be used; checkpoints that are missing or not sound; flags that contradict each other.
    pub fn load(&self) -> Result<Models> {
        let device = match self.device {
            DeviceName::Cpu => Device::Cpu,
            DeviceName::Gpu(number) => opara_candle::cuda_device(number)
                .with_context(|| format!("GPU {number} cannot be used: `--device cpu` runs on the CPU instead"))?,
        };
        let mut named = Vec::new();
        for (name, folder) in &self.models {
            ensure!(named.iter().all(|(other, _)| other != name), "the model {name:?} is given twice");
            let model = TextModel::open(folder).with_context(|| format!("the model {name:?} cannot be loaded"))?;
            ensure!(matches!(model.answers(), Answers::Vectors(_)), "the model {name:?} has no vectors");
            named.push((name.clone(), self.embedder(model, &device)?));
        }
        if named.is_empty() {
            tracing::warn!("no --model is given: `bert` has random weights, and its vectors mean nothing");
            named.push(("bert".into(), self.embedder(TextModel::random(self.size, self.seed), &device)?));
        }
        Ok(Models::new(named))
    }

    fn embedder(&self, model: TextModel, device: &Device) -> Result<opara_serve::embed::Embedder> {
        let buckets = model.buckets(device, self.dtype, &self.batches, &self.lengths, self.batch_tokens)?;
        Ok(model.cut(self.truncate).embedder(device, self.dtype, &buckets)?)
    }
}

fn named(text: &str) -> Result<(String, PathBuf), String> {
    match text.split_once('=') {
        Some((name, folder)) if !name.is_empty() && !folder.is_empty() => Ok((name.into(), Path::new(folder).into())),
        _ => Err("give a name and a folder, as in minilm=/models/all-MiniLM-L6-v2".into()),
    }
}

fn size(name: &str) -> Result<Size, String> {
    let name: StrDeserializer<serde::de::value::Error> = name.into_deserializer();
    Size::deserialize(name).map_err(|error| error.to_string())
}

fn dtype(name: &str) -> Result<DType, String> {
    match name {
        "f32" => Ok(DType::F32),
        "f16" => Ok(DType::F16),
        "bf16" => Ok(DType::BF16),
        _ => Err("give f32, f16 or bf16".into()),
    }
}
