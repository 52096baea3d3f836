//! Makes the models that the settings name.

use std::sync::Arc;

use anyhow::{Context, Result};
use candle::{DType, Device};
use opara_candle::OparaExecutor;

use crate::batch::{self, Batcher, Registry};
use crate::embed::{Size, TextModel};
use crate::model::{EmbeddingModel, Loader, Model, Models};

use super::settings::{Dtype, Settings};

/// The models that the settings name, not loaded yet.
///
/// # Errors
/// Settings that contradict each other; a GPU that cannot be used.
pub fn models(settings: &Settings, registry: &Arc<Registry>) -> Result<Models> {
    let devices = devices(settings)?;
    let named = settings.models()?;
    let loader = |name: &str, open: Box<dyn Fn() -> Result<TextModel> + Send + Sync>| -> Loader {
        let (settings, registry, devices, name) =
            (settings.clone(), registry.clone(), devices.clone(), name.to_owned());
        Arc::new(move || load(&name, &open()?, &devices, &settings, &registry))
    };
    if named.is_empty() {
        let (size, seed) = (settings.size.unwrap_or(Size::Base), settings.seed.unwrap_or(0));
        let open = move || Ok(TextModel::random(size, seed));
        return Ok(Models::new([("bert".to_owned(), loader("bert", Box::new(open)))]));
    }
    let of_folder = |(name, folder): (String, std::path::PathBuf)| {
        let loader = loader(&name, Box::new(move || Ok(TextModel::open(&folder)?)));
        (name, loader)
    };
    Ok(Models::new(named.into_iter().map(of_folder)))
}

fn devices(settings: &Settings) -> Result<Vec<Device>> {
    if settings.cpu {
        return Ok(vec![Device::Cpu]);
    }
    let ordinals = if settings.devices.is_empty() { vec![0] } else { settings.devices.clone() };
    let device = |ordinal| {
        opara_candle::cuda_device(ordinal)
            .with_context(|| format!("GPU {ordinal} cannot be used: --cpu runs on the CPU instead"))
    };
    ordinals.into_iter().map(device).collect()
}

/// Loads a model on every device and builds all of its plans.
fn load(
    name: &str,
    model: &TextModel,
    devices: &[Device],
    settings: &Settings,
    registry: &Registry,
) -> Result<Arc<dyn Model>> {
    if model.is_random() {
        tracing::warn!(model = name, "its weights are random and its tokenizer hashes words: its vectors mean nothing");
    }
    let buckets = settings.buckets(model)?;
    let dtype = match settings.dtype.unwrap_or_default() {
        Dtype::F32 => DType::F32,
        Dtype::F16 => DType::F16,
        Dtype::Bf16 => DType::BF16,
    };
    let embedder = |device: &Device| {
        let builder = OparaExecutor::builder().recheck(settings.recheck.unwrap_or(0));
        model.embedder_by(builder, device, dtype, &buckets)
    };
    let engines = devices.iter().map(embedder).collect::<Result<Vec<_>, _>>()?;
    let metrics = registry.model(name);
    let batching = batch::Settings::default()
        .queue_rows(settings.queue_rows.unwrap_or(4_096))
        .in_flight(settings.in_flight())
        .metrics(metrics.clone());
    let batcher = Batcher::start(engines, buckets, batching);
    batcher.warm_up(|bucket, done, all| tracing::info!(model = name, %bucket, done, all, "a plan is built"))?;
    for (bucket, reason) in batcher.health().eager {
        tracing::warn!(model = name, %bucket, reason, "batches of this bucket run eagerly");
    }
    let tokenizer = model.tokenizer().clone().cut(settings.truncate);
    Ok(Arc::new(EmbeddingModel::new(batcher, tokenizer, model.vocabulary(), model.width(), metrics)))
}
