//! Compares full-size models with torch's results for the same weights and inputs.
//!
//!     python3 models/tests/reference/full.py references
//!     cargo run --release --features cudnn --example parity -- references

use std::collections::HashMap;
use std::io::{stdout, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{bail, Context, Result};
use candle::{DType, Device, Module, Tensor};
use candle_nn::VarBuilder;
use clap::builder::PossibleValuesParser;
use clap::Parser;
use opara_examples::{exit_code, relative_error, types};
use opara_models::{bert, deepfm, googlenet, inception, nasnet, t5};
use opara_weights::seeded_with_gain;

/// Seed of the weights and images.
const SEED: u64 = 0;

/// Compares full-size models with torch's results for the same weights and inputs.
///
/// For each output, prints the largest difference relative to torch's largest value. The next column is torch's own
/// relative error in that dtype against f32.
#[derive(Parser)]
struct Args {
    /// Folder that models/tests/reference/full.py wrote to.
    folder: PathBuf,

    /// Models to compare; by default all.
    #[arg(long, value_delimiter = ',', value_parser = PossibleValuesParser::new(MODELS.map(|model| model.name)))]
    only: Vec<String>,

    /// Dtypes of weights and activations; by default both.
    #[arg(long, value_delimiter = ',', value_parser = types(["f32", "f16"]), default_value = "f32,f16")]
    dtype: Vec<DType>,

    /// Run on the CPU even where there is a GPU.
    #[arg(long)]
    cpu: bool,
}

type Outputs = Vec<(&'static str, Tensor)>;

/// One of full.py's models, under the same name.
struct Model {
    name: &'static str,
    /// Factor for the convolution kernels.
    gain: f32,
    outputs: fn(VarBuilder) -> candle::Result<Outputs>,
}

const SQRT_2: f32 = std::f32::consts::SQRT_2;

const MODELS: [Model; 6] = [
    Model { name: "bert", gain: 1., outputs: bert },
    Model { name: "t5", gain: 1., outputs: t5 },
    Model { name: "googlenet", gain: SQRT_2, outputs: googlenet },
    Model { name: "inception_v3", gain: SQRT_2, outputs: inception_v3 },
    Model { name: "nasnet", gain: 1.2, outputs: nasnet },
    Model { name: "deepfm", gain: 1., outputs: deepfm },
];

fn bert(vb: VarBuilder) -> candle::Result<Outputs> {
    let config = bert::Config::base();
    let ids = ids((2, 128), config.vocab_size, vb.device())?;
    Ok(vec![("hidden", Module::forward(&bert::BertModel::load(vb, &config)?, &ids)?)])
}

fn t5(vb: VarBuilder) -> candle::Result<Outputs> {
    let config = t5::Config::small();
    let (ids, decoder_ids) = (ids((2, 128), 32000, vb.device())?, ids((2, 16), 32000, vb.device())?);
    let model = t5::T5::load(vb, &config)?;
    Ok(vec![("encoder", model.encoder().forward(&ids, None)?), ("logits", model.forward(&ids, &decoder_ids, None)?)])
}

fn googlenet(vb: VarBuilder) -> candle::Result<Outputs> {
    let images = images(224, &vb)?;
    Ok(vec![("logits", googlenet::GoogLeNet::load(vb, &googlenet::Config::default())?.forward(&images)?)])
}

fn inception_v3(vb: VarBuilder) -> candle::Result<Outputs> {
    let images = images(299, &vb)?;
    Ok(vec![("logits", inception::InceptionV3::load(vb, &inception::Config::default())?.forward(&images)?)])
}

fn nasnet(vb: VarBuilder) -> candle::Result<Outputs> {
    let images = images(331, &vb)?;
    Ok(vec![("logits", nasnet::NasNet::load(vb, &nasnet::Config::large())?.forward(&images)?)])
}

fn deepfm(vb: VarBuilder) -> candle::Result<Outputs> {
    let config = deepfm::Config { field_sizes: vec![10_000; 26], ..deepfm::Config::criteo() };
    let ids = ids((64, 26), 10_000, vb.device())?;
    Ok(vec![("probability", deepfm::DeepFm::load(vb, &config)?.forward(&ids)?)])
}

/// Generates ids: element `i` is `37 * i % vocab`.
fn ids(shape: (usize, usize), vocab: usize, device: &Device) -> candle::Result<Tensor> {
    Tensor::from_iter((0..shape.0 * shape.1).map(|i| (37 * i % vocab) as u32), device)?.reshape(shape)
}

/// Generates two images with values in [-1, 1).
fn images(side: usize, vb: &VarBuilder) -> candle::Result<Tensor> {
    let shape = (2, 3, side, side);
    let values = opara_weights::seeded(SEED, DType::F32, &Device::Cpu).get(2 * 3 * side * side, "input")?;
    (values * 10.)?.reshape(shape)?.to_dtype(vb.dtype())?.to_device(vb.device())
}

/// Reads torch's results, converted to f32.
fn reference(folder: &Path, model: &str, dtype: DType) -> Result<HashMap<String, Tensor>> {
    let path = folder.join(format!("{model}.{}.safetensors", dtype.as_str()));
    let tensors = candle::safetensors::load(&path, &Device::Cpu).with_context(|| path.display().to_string())?;
    tensors.into_iter().map(|(name, tensor)| Ok((name, tensor.to_dtype(DType::F32)?))).collect()
}

fn main() -> ExitCode {
    exit_code(run())
}

fn run() -> Result<()> {
    let Args { folder, only, dtype: dtypes, cpu } = Args::parse();
    let device = if cpu { Device::Cpu } else { opara_candle::cuda_device(0)? };
    writeln!(stdout(), "{:<14}{:<6}{:<14}{:>12}{:>16}", "model", "dtype", "output", "error", "torch's own")?;
    for model in MODELS.iter().filter(|model| only.is_empty() || only.iter().any(|name| name == model.name)) {
        let exact = reference(&folder, model.name, DType::F32)?;
        for &dtype in &dtypes {
            let reference = reference(&folder, model.name, dtype)?;
            for (name, got) in (model.outputs)(seeded_with_gain(SEED, model.gain, dtype, &device))? {
                let (Some(expected), Some(exact)) = (reference.get(name), exact.get(name)) else {
                    bail!("no output {name} of {} in {}", model.name, folder.display())
                };
                let error = relative_error(&got, expected)?;
                let own = relative_error(expected, exact)?;
                writeln!(stdout(), "{:<14}{:<6}{name:<14}{error:>12.1e}{own:>16.1e}", model.name, dtype.as_str())?;
            }
        }
    }
    Ok(())
}
