//! The cells to measure, and the contestants.

use candle::DType;
use opara_examples::{types, Native};
use opara_peers::results::Key;

/// Cells and contestants; flatten it into a subcommand's arguments.
#[derive(Debug, Clone, clap::Args)]
pub struct Parts {
    /// Models.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "bert,t5,deepfm,googlenet,inception,nasnet")]
    models: Vec<Native>,

    /// Types of weights and activations.
    #[arg(long, value_delimiter = ',', default_value = "f32,f16", value_parser = types(["f32", "f16"]))]
    dtypes: Vec<DType>,

    /// Batch sizes.
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16,32")]
    pub batches: Vec<usize>,

    #[command(flatten)]
    only: Only,
}

/// The choice of contestants; flatten it into a subcommand's arguments.
#[derive(Debug, Clone, clap::Args)]
pub struct Only {
    /// Contestants: candle, "candle tuned", "candle accurate", eager, a scheduler, or framework and mode as in "torch graph"; default: all.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
}

impl Parts {
    /// Models in their types.
    pub fn models(&self) -> impl Iterator<Item = (Native, DType)> + '_ {
        self.models.iter().flat_map(|model| self.dtypes.iter().map(|dtype| (*model, *dtype)))
    }

    /// The cells of one model.
    pub fn keys(&self, model: Native, dtype: DType) -> impl Iterator<Item = Key> + '_ {
        let key = move |&batch| Key { model: model.name(), dtype: dtype.as_str().into(), batch };
        self.batches.iter().map(key)
    }

    /// Does the contestant called `name` take part?
    pub fn wants(&self, name: &str) -> bool {
        self.only.wants(name)
    }

    /// Does any of a framework's modes take part?
    pub fn wants_any_of(&self, framework: &str) -> bool {
        let only = self.named();
        only.is_empty() || only.iter().any(|only| only.split(' ').next() == Some(framework))
    }

    /// The contestants that were named; empty if all take part.
    pub fn named(&self) -> &[String] {
        &self.only.only
    }
}

impl Only {
    /// Is the contestant called `name` selected?
    pub fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == name)
    }
}
