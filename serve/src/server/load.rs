//! Makes the models that the settings name.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{ensure, Context, Result};
use candle::Device;
use opara_candle::ops::alike_rows;
use opara_candle::OparaExecutor;
use opara_models::engine::Engine;
use opara_weights::Checkpoint;

use crate::batch::{self, Batcher, Registry};
use crate::embed::{has_modules, is_encoder, Architectures, Size, TextModel};
use crate::generate::{is_gguf, KvBudget, TextDecoder, Writer};
use crate::model::{EmbeddingModel, GenerationModel, Loader, Model, Models, TensorModel, PIXELS};

use super::settings::Settings;

/// The models that the settings name, not loaded yet.
///
/// # Errors
/// Settings that contradict each other; a GPU that cannot be used.
pub fn models(settings: &Settings, registry: &Arc<Registry>) -> Result<Models> {
    let devices = devices(settings)?;
    let loader = |name: String, open: Box<dyn Fn() -> Result<Source> + Send + Sync>| -> (String, Loader) {
        let of = Load {
            name: name.clone(),
            settings: settings.clone(),
            registry: registry.clone(),
            devices: devices.clone(),
        };
        let load = move || match open()? {
            Source::Embedder(model) => of.embedder(&model),
            Source::Decoder(decoder) => of.decoder(&decoder),
        };
        (name, Arc::new(load))
    };
    let named = settings.models()?;
    if named.is_empty() {
        let (size, seed) = (settings.size.unwrap_or(Size::Base), settings.seed.unwrap_or(0));
        return Ok(Models::new([
            loader("bert".into(), Box::new(move || Ok(Source::Embedder(TextModel::random(size, seed))))),
            loader("tiny-decoder".into(), Box::new(move || Ok(Source::Decoder(TextDecoder::random(seed)?)))),
        ]));
    }
    let (allow_unread, keep_fp8) = (settings.allow_unread, settings.keep_fp8);
    let open = move |path: &Path| Source::open(path, allow_unread).map(|source| source.keep_floats(keep_fp8));
    let of_path = |(name, path): (String, PathBuf)| loader(name, Box::new(move || open(&path)));
    Ok(Models::new(named.into_iter().map(of_path)))
}

/// A model that is not on a device yet.
enum Source {
    Embedder(TextModel),
    Decoder(TextDecoder),
}

impl Source {
    /// Whether a decoder's 8-bit floats are kept as they are.
    fn keep_floats(self, are_kept: bool) -> Self {
        match self {
            Self::Decoder(decoder) => Self::Decoder(decoder.keep_floats(are_kept)),
            Self::Embedder(_) => self,
        }
    }

    /// What a checkpoint says it is: an encoder that is known and a folder of sentence-transformers are embedders, all else must be a
    /// decoder that is known.
    fn open(path: &Path, allow_unread: bool) -> Result<Self> {
        if is_gguf(path) {
            return Ok(Self::Decoder(TextDecoder::open_with(path, allow_unread)?));
        }
        ensure!(path.is_dir(), "{}: there is no such folder", path.display());
        if has_modules(path) {
            return Ok(Self::Embedder(TextModel::open_with(path, allow_unread)?));
        }
        let config: serde_json::Value = Checkpoint::find(&path.display().to_string())?.config()?;
        match is_encoder(&config, &Architectures::default()) {
            true => Ok(Self::Embedder(TextModel::open_with(path, allow_unread)?)),
            false => {
                let known = Architectures::default().names().collect::<Vec<_>>().join(", ");
                let context = format!("no decoder, and no encoder that is known ({known})");
                Ok(Self::Decoder(TextDecoder::open_with(path, allow_unread).context(context)?))
            }
        }
    }
}

/// What models are loaded by.
struct Load {
    name: String,
    settings: Settings,
    registry: Arc<Registry>,
    devices: Vec<Device>,
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

impl Load {
    /// Loads an embedder on every device and builds all of its plans.
    fn embedder(&self, model: &TextModel) -> Result<Arc<dyn Model>> {
        let Self { name, settings, registry, devices } = self;
        if model.is_random() {
            tracing::warn!(
                model = name,
                "its weights are random and its tokenizer hashes words: its vectors mean nothing"
            );
        }
        // Texts lie side by side if all devices take them so.
        let mut all = devices.iter().map(|device| settings.buckets(model, device)).collect::<Result<Vec<_>>>()?;
        let buckets = all.swap_remove(all.iter().position(|buckets| !buckets.is_packed()).unwrap_or(0));
        let embedder = |device: &Device| {
            let builder = OparaExecutor::builder().recheck(settings.recheck.unwrap_or(0));
            model.embedder_by(builder, device, settings.dtype(), &buckets)
        };
        let engines = devices.iter().map(embedder).collect::<Result<Vec<_>, _>>()?;
        let metrics = registry.model(name);
        let batching = batch::Settings::default()
            .queue_rows(settings.queue_rows())
            .in_flight(settings.in_flight())
            .share_cores(settings.cpu)
            .metrics(metrics.clone());
        let batcher = Batcher::start(engines, buckets, batching);
        batcher.warm_up(|bucket, done, all| tracing::info!(model = name, %bucket, done, all, "a plan is built"))?;
        for (bucket, reason) in batcher.health().eager {
            tracing::warn!(model = name, %bucket, reason, "batches of this bucket run eagerly");
        }
        let tokenizer = model.tokenizer().clone().limited(batcher.buckets().longest()).cut(settings.truncate);
        let pictures = self.pictures(model)?;
        let served = EmbeddingModel::new(batcher, tokenizer, model.vocabulary(), model.width(), metrics);
        Ok(Arc::new(served.of(model).seeing(pictures)))
    }

    /// Loads what sees pictures, if the model has such a tower, on the first device.
    fn pictures(&self, model: &TextModel) -> Result<Option<TensorModel>> {
        let Self { name, settings, registry, devices } = self;
        let batches: &[usize] = match (&settings.batches[..], settings.cpu) {
            ([], true) => &[1],
            ([], false) => &[1, 2, 4, 8, 16, 32],
            (given, _) => given,
        };
        let builder = OparaExecutor::builder().max_shapes(batches.len() + 1);
        let Some((executor, example)) = model.pictures(builder, &devices[0], settings.dtype())? else {
            return Ok(None);
        };
        let pictures = TensorModel::new(executor, &[example], batches.iter().copied(), registry.model(name))?;
        tracing::info!(model = name, "it sees pictures");
        Ok(Some(pictures.named(&[PIXELS], &["embedding"])?))
    }

    /// Loads a decoder on every device and builds its graphs.
    fn decoder(&self, decoder: &TextDecoder) -> Result<Arc<dyn Model>> {
        let Self { name, settings, registry, devices } = self;
        if decoder.is_random() {
            tracing::warn!(model = name, "its weights are random and its tokens are bytes: its texts mean nothing");
        }
        if !decoder.text().has_template() {
            tracing::warn!(model = name, "it has no chat template: /v1/chat/completions refuses it");
        }
        // By default a text's bits do not depend on the load.
        let mut sequences = if decoder.is_quantized() { 8 } else { usize::MAX };
        for device in devices {
            sequences = sequences.min(if device.is_cpu() { 4 } else { alike_rows(settings.dtype(), device)? });
        }
        let budget = settings.kv_budget(decoder.config().max_positions, sequences);
        let engine = |device: &Device| decoder.engine(budget, device, Some(OparaExecutor::builder()));
        let engines = devices.iter().map(engine).collect::<Result<Vec<_>, _>>()?;
        for reason in engines.iter().flat_map(Engine::eager) {
            tracing::warn!(model = name, reason, "it runs eagerly");
        }
        let KvBudget { sequences, context, .. } = budget;
        let pages = engines.iter().filter_map(|engine| Some(engine.pages()?.1)).min();
        tracing::info!(model = name, sequences, context, pages, "its graphs are built");
        let writer = Writer::start(engines, decoder.text().clone(), settings.queue_rows(), registry.texts(name));
        Ok(Arc::new(GenerationModel::new(writer, registry.model(name))))
    }
}
