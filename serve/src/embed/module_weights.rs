//! The weights of a module behind the transformer.

use std::path::{Path, PathBuf};

use candle::{DType, Device};
use candle_nn::VarBuilder;
use opara_weights::{Checkpoint, Loaded, Unread, WeightsError};

use super::{EmbedError, Result};

/// Files of a module's weights; the first that is there counts.
const FILES: [&str; 2] = ["model.safetensors", "pytorch_model.bin"];

/// The weights in a module's folder, each of which the module has to read.
pub(super) struct ModuleWeights {
    /// Hands out the tensors.
    pub vb: VarBuilder<'static>,
    loaded: Loaded,
    path: PathBuf,
}

impl ModuleWeights {
    pub fn open(folder: &Path, dtype: DType, device: &Device) -> Result<Self> {
        let path = FILES.iter().map(|name| folder.join(name)).find(|path| path.is_file());
        let path = path.ok_or_else(|| WeightsError::MissingFile {
            model: folder.display().to_string(),
            file: FILES.join(" or "),
        })?;
        let loaded = Checkpoint::find(&path.display().to_string())?.load(dtype, device)?;
        Ok(Self { vb: loaded.vb.clone(), loaded, path })
    }

    /// Refuses or warns of tensors that the module did not read.
    pub fn finish(self, unread: Unread) -> Result<()> {
        self.loaded.surplus().iter().try_for_each(|name| {
            unread.report(EmbedError::Unsupported {
                path: self.path.clone(),
                name: format!("tensor `{name}`"),
                advice: "the module's configuration has no place for it".into(),
            })
        })
    }
}
