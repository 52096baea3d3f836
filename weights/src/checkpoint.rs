//! The files of one trained model.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use candle::{DType, Device};
use candle_nn::VarBuilder;
use serde::de::DeserializeOwned;
use serde::Deserialize;
use serde_json::Value;

use crate::lfs;
use crate::loaded::Loaded;
use crate::part::Part;
use crate::quantization::Quantization;
use crate::source::Source;
use crate::{Unread, WeightsError};

const CONFIG: &str = "config.json";
const TOKENIZER: &str = "tokenizer.json";
/// Files that say more of the model, of its tokenizer and of its conversations. Who reads them looks beside `config.json`.
const BESIDE: [&str; 7] = [
    ADAPTER,
    "added_tokens.json",
    "additional_chat_templates/tool_use.jinja",
    "chat_template.jinja",
    "generation_config.json",
    "special_tokens_map.json",
    "tokenizer_config.json",
];
/// transformers adds what it describes to the weights.
const ADAPTER: &str = "adapter_config.json";
/// Names of weights files in order of preference: one file, or the index of several.
const WEIGHTS: [&str; 4] =
    ["model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json"];

/// A trained model whose files are on this machine.
///
/// ```no_run
/// # use candle::{DType, Device};
/// # use opara_weights::Checkpoint;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # #[derive(serde::Deserialize)] struct Config {}
/// let checkpoint = Checkpoint::find("google-bert/bert-base-uncased")?;
/// let config: Config = checkpoint.config()?;
/// let weights = checkpoint.weights(DType::F32, &Device::Cpu)?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Checkpoint {
    model: String,
    config: Option<PathBuf>,
    tokenizer: Option<PathBuf>,
    /// The file that lists the tensors: the only weights file, or the index of several.
    pub(crate) listing: PathBuf,
    pub(crate) parts: Vec<Part>,
    unread: Unread,
    keeps_floats: bool,
}

/// The contents of an index of several weights files.
#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl Checkpoint {
    /// Finds `model`: a weights file or folder of that name if there is one, else a repository of the Hugging Face hub.
    /// Missing files of a repository are downloaded into the hub's cache.
    ///
    /// A weights file is `.safetensors`, or a dict of tensors saved by `torch.save`: `.pth`, `.pt`, `.bin`. A folder or
    /// repository has `config.json` and the first of these that exists: `model.safetensors`, the index of its shards,
    /// `pytorch_model.bin`, the index of its shards. `config.json` and `tokenizer.json` in the folder of a weights file
    /// belong to it. Of a repository, what tokenizers and decoders read beside them is downloaded, too.
    ///
    /// The environment variables `HF_HOME` and `HF_ENDPOINT` select the cache and the hub.
    pub fn find(model: &str) -> Result<Self, WeightsError> {
        let path = Path::new(model);
        if path.is_file() {
            let part = Part { path: path.to_path_buf(), names: None };
            let beside = |name| Some(path.with_file_name(name)).filter(|path| path.is_file());
            return Self::check_lfs(Self {
                model: model.to_owned(),
                config: beside(CONFIG),
                tokenizer: beside(TOKENIZER),
                listing: path.to_path_buf(),
                parts: vec![part],
                unread: Unread::default(),
                keeps_floats: false,
            });
        }
        let source = Source::of(model)?;
        let required = |names: &[&str]| match source.first(names)? {
            Some(path) => Ok(path),
            // An adapter has the files of its model elsewhere.
            None => Err(match source.first(&[ADAPTER])? {
                Some(path) => WeightsError::Adapter { path },
                None => WeightsError::MissingFile { model: model.to_owned(), file: names.join(" or ") },
            }),
        };

        let config = required(&[CONFIG])?;
        let listing = required(&WEIGHTS)?;
        let parts = if listing.extension().is_some_and(|extension| extension == "json") {
            let mut files = BTreeMap::<String, Vec<String>>::new();
            lfs::check(&listing)?;
            for (name, file) in read_json::<Index>(&listing)?.weight_map {
                files.entry(file).or_default().push(name);
            }
            let part = |(file, names): (String, Vec<String>)| {
                // An index must not refer to files outside its own folder.
                if Path::new(&file).file_name() != Some(file.as_ref()) {
                    return Err(WeightsError::Malformed {
                        path: listing.clone(),
                        reason: format!("`{file}` is not the name of a file in the same folder"),
                    });
                }
                Ok(Part { path: required(&[&file])?, names: Some(names) })
            };
            files.into_iter().map(part).collect::<Result<_, _>>()?
        } else {
            vec![Part { path: listing.clone(), names: None }]
        };
        let tokenizer = match source.first(&[TOKENIZER]) {
            // All required files came from the cache, so loading must not fail without a network just because the
            // optional tokenizer is missing.
            Err(WeightsError::Hub { .. } | WeightsError::HubSilent { .. }) => None,
            found => found?,
        };
        source.fetch(&BESIDE)?;
        let (model, config, unread) = (model.to_owned(), Some(config), Unread::default());
        Self::check_lfs(Self { model, config, tokenizer, listing, parts, unread, keeps_floats: false })
    }

    /// Whether a model is loaded from this checkpoint though parts of it are not known and may change the answer: fields of the
    /// configuration, a quantization, tensors. Warnings name them then. Without this, errors do.
    pub fn allow_unread(mut self, is_allowed: bool) -> Self {
        self.unread = Unread::allowed(is_allowed);
        self
    }

    /// Whether models that multiply with [8-bit floats](crate::Floats) get them as they are, rather than expanded.
    pub fn keep_floats(mut self, are_kept: bool) -> Self {
        self.keeps_floats = are_kept;
        self
    }

    /// What becomes of parts that are not known.
    pub fn unread(&self) -> Unread {
        self.unread
    }

    /// Checks that no file is a Git LFS pointer.
    fn check_lfs(self) -> Result<Self, WeightsError> {
        let parts = self.parts.iter().map(|part| &part.path);
        self.config.iter().chain(&self.tokenizer).chain(parts).try_for_each(|path| lfs::check(path))?;
        Ok(self)
    }

    /// Reads the model's configuration, `config.json`. For a single weights file, the `config.json` in its folder is
    /// read.
    pub fn config<T: DeserializeOwned>(&self) -> Result<T, WeightsError> {
        let missing = || WeightsError::MissingFile { model: self.model.clone(), file: CONFIG.to_owned() };
        read_json(self.config_path().ok_or_else(missing)?)
    }

    /// The model's `config.json`; `None` for a single weights file without one.
    pub fn config_path(&self) -> Option<&Path> {
        self.config.as_deref()
    }

    /// The model's `tokenizer.json`, if it has one.
    pub fn tokenizer_path(&self) -> Option<&Path> {
        self.tokenizer.as_deref()
    }

    /// Loads the model's weights as tensors of `dtype` on `device`.
    ///
    /// Only the files' headers are read here and validated against the file sizes. Each tensor is read when the model
    /// requests it. Floats of another dtype are converted to the requested one; all other dtypes must match exactly. 8-bit floats
    /// are multiplied with their scales, which stand beside them by the names `weight_scale_inv` or `weight_scale`.
    ///
    /// # Errors
    /// Files that cannot be read or are not sound; [`WeightsError::Quantization`], [`WeightsError::Adapter`].
    pub fn weights(&self, dtype: DType, device: &Device) -> Result<VarBuilder<'static>, WeightsError> {
        Ok(self.load(dtype, device)?.vb)
    }

    /// Like [`weights`](Self::weights), and tracks which tensors were requested.
    ///
    /// # Errors
    /// Those of [`weights`](Self::weights).
    pub fn load(&self, dtype: DType, device: &Device) -> Result<Loaded, WeightsError> {
        let adapter = self.listing.with_file_name(ADAPTER);
        if adapter.is_file() {
            self.unread.report(WeightsError::Adapter { path: adapter })?;
        }
        let config = self.config_path().map(read_json::<Value>).transpose()?;
        let quantization = config.map(|config| Quantization::of(&config, self.unread)).transpose()?.flatten();
        let quantization = (quantization, self.keeps_floats);
        Loaded::new(&self.parts, &self.listing, quantization, self.unread, dtype, device)
    }
}

fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T, WeightsError> {
    let bytes = fs::read(path).map_err(|source| WeightsError::Read { path: path.to_path_buf(), source })?;
    serde_json::from_slice(&bytes).map_err(|source| WeightsError::Json { path: path.to_path_buf(), source })
}
