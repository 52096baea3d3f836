//! Common code of the image classification examples.

use std::path::PathBuf;

use anyhow::{Context, Result};
use candle::{DType, Module, Tensor};
use candle_nn::VarBuilder;
use opara_weights::{Checkpoint, WeightsError};
use serde::de::DeserializeOwned;
use serde::Deserialize;

use crate::picture::{self, Preprocess};
use crate::{Model, Options, Show};

/// The names of ImageNet's classes, one per line, from torchvision's `torchvision/models/_meta.py`.
const IMAGENET: &str = include_str!("imagenet.txt");

/// The default picture.
const BOAT: &[u8] = include_bytes!("../examples/data/boat.png");

/// Number of classes to print.
const BEST: usize = 5;

/// Options of an example that classifies a picture; flatten them into its own.
#[derive(Debug, Clone, clap::Args)]
pub struct Classify {
    #[command(flatten)]
    options: Options,

    #[command(flatten)]
    show: Show,

    /// The picture, JPEG or PNG; by default a drawing of a sailing boat. It is repeated to fill a batch.
    #[arg(long)]
    image: Option<PathBuf>,
}

/// The part of timm's `config.json` that describes preprocessing.
#[derive(Deserialize)]
struct Pretrained {
    pretrained_cfg: Option<Preprocess>,
}

impl Classify {
    /// Loads a model, prints the most probable classes of the picture, and reports how the model ran.
    ///
    /// The model's configuration is the checkpoint's, or else `default` of the number of classes, which is the length
    /// of the tensor called `bias`. `usual` is the preprocessing for checkpoints that do not specify it.
    ///
    /// # Errors
    /// A picture or a checkpoint that cannot be read, or an error of the model.
    pub fn run<C, M>(
        &self,
        bias: &str,
        usual: Preprocess,
        default: impl FnOnce(usize) -> C,
        load: impl FnOnce(VarBuilder, C) -> candle::Result<M>,
    ) -> Result<()>
    where
        C: DeserializeOwned,
        M: Module + Send + Sync + 'static,
    {
        let options = &self.options;
        options.start();
        let mut out = options.out();

        let device = options.device();
        let picture = match &self.image {
            Some(path) => picture::open(path)?,
            None => image::load_from_memory(BOAT).context("the picture that comes with the example")?,
        };
        let checkpoint = options.checkpoint()?;
        let config = config_of(checkpoint.as_ref())?;
        let load = |vb: VarBuilder<'static>| {
            let classes = || vb.get_unchecked(bias).and_then(|bias| bias.dim(0)).unwrap_or(labels().count());
            let config = config.unwrap_or_else(|| default(classes()));
            load(vb, config)
        };
        let model = options.load(checkpoint.as_ref(), &device, load, |loaded| loaded.check(is_auxiliary))?;
        let pretrained = config_of::<Pretrained>(checkpoint.as_ref())?.and_then(|config| config.pretrained_cfg);
        let preprocess = pretrained.unwrap_or(usual);

        let image = preprocess.apply(&picture, &device)?.to_dtype(options.dtype())?;
        let example = [image.repeat((options.batch, 1, 1, 1))?];
        let model = Model::of(model);
        let fast = model.executor(options.builder(), &example)?;
        for (label, probability) in best(&fast.call(&example)?[0])? {
            writeln!(out, "{:>6.2} %  {label}", 100. * probability)?;
        }
        self.show.run(out, options, &model, &fast, &example)
    }
}

/// Reads the checkpoint's `config.json`; a single weights file may have none.
fn config_of<C: DeserializeOwned>(checkpoint: Option<&Checkpoint>) -> Result<Option<C>> {
    match checkpoint.map(Checkpoint::config).transpose() {
        Err(WeightsError::MissingFile { .. }) => Ok(None),
        config => Ok(config?),
    }
}

/// Is this the name of a tensor of a classifier that only training uses?
fn is_auxiliary(name: &str) -> bool {
    ["aux1.", "aux2.", "AuxLogits."].iter().any(|part| name.starts_with(part))
}

fn labels() -> impl Iterator<Item = &'static str> {
    IMAGENET.lines()
}

/// Lists the first image's most probable classes with their probabilities.
fn best(logits: &Tensor) -> Result<Vec<(String, f32)>> {
    let logits = logits.get(0)?.to_dtype(DType::F32)?;
    let probabilities = candle_nn::ops::softmax_last_dim(&logits)?.to_vec1::<f32>()?;
    let name = |class: usize| match labels().nth(class) {
        Some(label) if probabilities.len() == labels().count() => label.to_owned(),
        _ => format!("class {class}"),
    };
    let mut classes: Vec<usize> = (0..probabilities.len()).collect();
    classes.sort_by(|&a, &b| probabilities[b].total_cmp(&probabilities[a]));
    Ok(classes.into_iter().take(BEST).map(|class| (name(class), probabilities[class])).collect())
}

#[cfg(test)]
mod tests {
    use candle::Device;

    use super::*;

    #[test]
    fn the_best_classes_have_names_and_probabilities() -> Result<()> {
        assert_eq!(labels().count(), 1000);
        let mut logits = [0f32; 1000];
        (logits[0], logits[999]) = (20., 30.);
        let best = best(&Tensor::new(&[logits], &Device::Cpu)?)?;
        assert_eq!((best[0].0.as_str(), best[1].0.as_str(), best.len()), ("toilet tissue", "tench", BEST));
        assert!(best[0].1 > 0.999 && best[1].1 < 0.001);
        Ok(())
    }

    #[test]
    fn classes_of_other_data_have_numbers() -> Result<()> {
        let best = best(&Tensor::new(&[[0f32, 2., 1.]], &Device::Cpu)?)?;
        let names: Vec<&str> = best.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["class 1", "class 2", "class 0"]);
        Ok(())
    }
}
