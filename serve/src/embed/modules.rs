//! The modules of a folder of sentence-transformers, in the order of its `modules.json`.

use std::collections::HashSet;
use std::path::{Component, Path, PathBuf};

use candle::Device;
use opara_weights::Unread;
use serde_json::{Map, Value};

use super::dense::DenseConfig;
use super::file_fields::{read_json, FileFields};
use super::finish::Finish;
use super::head::{Head, Step};
use super::module_norm::NormConfig;
use super::splade::Splade;
use super::{EmbedError, Pooling, PoolingMode, Result};

const LIST: &str = "modules.json";

/// Where modules are in sentence-transformers: before version 5.4, and since.
const PACKAGES: [&str; 3] = [
    "sentence_transformers.models.",
    "sentence_transformers.base.modules.",
    "sentence_transformers.sentence_transformer.modules.",
];

/// Where those of encoders to words are.
const OF_WORDS: [&str; 2] =
    ["sentence_transformers.sparse_encoder.models.", "sentence_transformers.sparse_encoder.modules."];

const KINDS: &str = "Transformer, Pooling, Dense, LayerNorm, Normalize and Dropout are";

/// A module of the list.
pub(super) struct Entry {
    class: String,
    folder: PathBuf,
}

/// The modules of a folder: a transformer, a pooling, and steps behind them.
pub(super) struct Modules {
    pooling: Pooling,
    steps: Vec<StepConfig>,
    width: usize,
    finish: Finish,
}

/// A module behind the pooling.
enum StepConfig {
    Dense(DenseConfig),
    LayerNorm(NormConfig),
    Normalize,
}

/// Does sentence-transformers read this folder by a list of modules?
pub fn has_modules(folder: &Path) -> bool {
    folder.join(LIST).is_file()
}

/// The entries of `modules.json`; `None` if there is no such file.
pub(super) fn list(folder: &Path, unread: Unread) -> Result<Option<Vec<Entry>>> {
    let path = folder.join(LIST);
    let Some(maps) = read_json::<Vec<Map<String, Value>>>(&path)? else {
        return refuse_unlisted(folder).map(|()| None);
    };
    let mut names = HashSet::new();
    let mut entry = |map| {
        let fields = FileFields::of(&path, map, unread);
        let (class, at): (String, PathBuf) = (fields.need("type")?, fields.need("path")?);
        if let Some(name) = fields.take::<String>("name")? {
            if !names.insert(name.clone()) {
                return Err(fields.wrong(format!("two modules have the name {name:?}")));
            }
        }
        if at.components().any(|part| !matches!(part, Component::Normal(_) | Component::CurDir)) {
            return Err(fields.wrong(format!("the path {at:?} is not within the folder")));
        }
        fields.finish(&["idx"])?;
        Ok(Entry { class, folder: folder.join(at) })
    };
    maps.into_iter().map(&mut entry).collect::<Result<_>>().map(Some)
}

/// Refuses folders of modules that no list mentions: without it nobody knows where they stand.
fn refuse_unlisted(folder: &Path) -> Result<()> {
    for file in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = file.file_name().to_string_lossy().into_owned();
        let kind = name.split_once('_').filter(|(number, _)| number.parse::<u32>().is_ok()).map(|(_, kind)| kind);
        if !matches!(kind, None | Some("Pooling" | "Normalize" | "Dropout")) && file.path().is_dir() {
            return Err(EmbedError::Unsupported {
                path: file.path(),
                name: "a module without modules.json".into(),
                advice: "copy that file from the checkpoint, too".into(),
            });
        }
    }
    Ok(())
}

impl Entry {
    /// The name of the module's class, if it is one of sentence-transformers.
    fn kind(&self) -> Option<&str> {
        self.kind_in(&PACKAGES)
    }

    fn kind_in(&self, packages: &[&str]) -> Option<&str> {
        let rest = packages.iter().find_map(|package| self.class.strip_prefix(package))?;
        match rest.rsplit_once('.') {
            None => Some(rest),
            Some((file, name)) => file.replace('_', "").eq_ignore_ascii_case(name).then_some(name),
        }
    }

    fn unsupported(&self, list: &Path) -> EmbedError {
        let name = format!("module {}", self.class);
        EmbedError::Unsupported { path: list.join(LIST), name, advice: KINDS.into() }
    }

    fn config(&self, unread: Unread) -> Result<FileFields> {
        let path = self.folder.join("config.json");
        let missing = || EmbedError::File { path: path.clone(), reason: "the file is missing".into() };
        FileFields::read(&path, unread)?.ok_or_else(missing)
    }
}

/// The folder of the transformer: that of the first module.
pub(super) fn transformer(folder: &Path, list: &[Entry]) -> Result<PathBuf> {
    match list.first() {
        Some(first) if first.kind() == Some("Transformer") => Ok(first.folder.clone()),
        Some(first) if first.kind_in(&OF_WORDS) == Some("MLMTransformer") => Ok(first.folder.clone()),
        Some(first)
            if matches!(first.kind(), None | Some("Pooling" | "Dense" | "LayerNorm" | "Normalize" | "Dropout")) =>
        {
            match first.kind() {
                None => Err(first.unsupported(folder)),
                Some(kind) => Err(wrong(folder, format!("its first module is {kind}, and must be Transformer"))),
            }
        }
        Some(first) => Err(first.unsupported(folder)),
        None => Err(wrong(folder, "it lists no modules".into())),
    }
}

/// What makes weights of words, if the list is of a transformer and that.
pub(super) fn splade(list: &[Entry], vocabulary: usize, unread: Unread) -> Result<Option<Splade>> {
    match list {
        [_, second] if second.kind_in(&OF_WORDS) == Some("SpladePooling") => {
            Splade::of(second.config(unread)?, vocabulary).map(Some)
        }
        _ => Ok(None),
    }
}

fn wrong(folder: &Path, reason: String) -> EmbedError {
    EmbedError::File { path: folder.join(LIST), reason }
}

impl Modules {
    /// The modules of a list behind a transformer whose vectors have `width` elements, and are pooled so where a module does not say.
    pub fn of(folder: &Path, list: &[Entry], (width, mode): (usize, PoolingMode), unread: Unread) -> Result<Self> {
        let behind = |entry: &&Entry| entry.kind() != Some("Dropout");
        let mut entries = list.iter().skip(1).filter(behind);
        let first = entries.next().ok_or_else(|| wrong(folder, "it has no Pooling behind the Transformer".into()))?;
        let pooling = match first.kind() {
            Some("Pooling") => Pooling::of(first.config(unread)?, width, mode)?,
            Some(kind @ ("Dense" | "LayerNorm" | "Normalize")) => {
                return Err(wrong(folder, format!("{kind} stands before a Pooling, which is not supported")));
            }
            _ => return Err(first.unsupported(folder)),
        };
        let mut modules = Self::pooled(pooling, width);
        for entry in entries {
            modules.add(folder, entry, unread)?;
        }
        // Requests may ask for vectors of another length.
        modules.finish.normalizes = matches!(modules.steps.last(), Some(StepConfig::Normalize));
        if modules.finish.normalizes {
            modules.steps.pop();
        }
        Ok(modules)
    }

    fn pooled(pooling: Pooling, width: usize) -> Self {
        Self { width: width * pooling.modes.len(), pooling, steps: Vec::new(), finish: Finish::default() }
    }

    /// Those of a folder without a list: the pooling of `1_Pooling` or else this one, and vectors of length 1.
    pub fn unlisted(folder: &Path, (width, mode): (usize, PoolingMode), unread: Unread) -> Result<Self> {
        let config = FileFields::read(&folder.join("1_Pooling/config.json"), unread)?;
        let pooling = config.map_or(Ok(mode.into()), |fields| Pooling::of(fields, width, mode))?;
        Ok(Self { finish: Finish { normalizes: true, width: None }, ..Self::pooled(pooling, width) })
    }

    /// The mean, and vectors of length 1.
    pub fn mean(width: usize) -> Self {
        Self { finish: Finish { normalizes: true, width: None }, ..Self::pooled(PoolingMode::Mean.into(), width) }
    }

    fn add(&mut self, folder: &Path, entry: &Entry, unread: Unread) -> Result<()> {
        let step = match entry.kind() {
            Some("Dense") => {
                let dense = DenseConfig::of(&entry.folder, entry.config(unread)?, self.width)?;
                self.width = dense.width();
                StepConfig::Dense(dense)
            }
            Some("LayerNorm") => {
                StepConfig::LayerNorm(NormConfig::of(&entry.folder, entry.config(unread)?, self.width)?)
            }
            Some("Normalize") => {
                // Before version 6 it had no file. Other fields are not its own: it may share a folder.
                if let Some(fields) = FileFields::read(&entry.folder.join("config.json"), unread)? {
                    fields.expect("module_input_name", "sentence_embedding")?;
                    fields.expect("module_output_name", "sentence_embedding")?;
                }
                StepConfig::Normalize
            }
            Some("Transformer" | "Pooling") => {
                return Err(wrong(folder, format!("a second {} is not supported", entry.class)));
            }
            _ => return Err(entry.unsupported(folder)),
        };
        self.steps.push(step);
        Ok(())
    }

    /// Cuts vectors to their first `width` elements, without a new length.
    pub fn truncate(&mut self, width: usize) {
        if width < self.width {
            self.width = width;
            self.finish.width = Some(width);
        }
    }

    /// The end of its vectors.
    pub fn finish(&self) -> Finish {
        self.finish
    }

    /// How hidden states become a vector.
    pub fn pooling(&self) -> &Pooling {
        &self.pooling
    }

    /// Elements of a vector.
    pub fn width(&self) -> usize {
        self.width
    }

    /// The modules behind the transformer on a device.
    pub fn load(&self, device: &Device, unread: Unread) -> Result<Head> {
        let step = |config: &StepConfig| {
            Ok(match config {
                StepConfig::Dense(dense) => Step::Dense(dense.load(device, unread)?),
                StepConfig::LayerNorm(norm) => Step::LayerNorm(norm.load(device, unread)?),
                StepConfig::Normalize => Step::Normalize,
            })
        };
        Ok(Head::Vector { pooling: self.pooling.clone(), steps: self.steps.iter().map(step).collect::<Result<_>>()? })
    }
}
