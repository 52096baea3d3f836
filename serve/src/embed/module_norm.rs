//! The module `LayerNorm`.

use std::path::{Path, PathBuf};

use candle::{DType, Device};
use opara_candle::nn::{layer_norm, LayerNorm};
use opara_weights::Unread;

use super::file_fields::FileFields;
use super::module_weights::ModuleWeights;
use super::Result;

/// PyTorch's default.
const EPSILON: f64 = 1e-5;

/// The configuration of a LayerNorm module.
#[derive(Debug, Clone)]
pub(super) struct NormConfig {
    folder: PathBuf,
    width: usize,
}

impl NormConfig {
    /// The module in this folder, whose configuration is `fields`, over vectors of `width` elements.
    pub fn of(folder: &Path, fields: FileFields, width: usize) -> Result<Self> {
        let dimension: usize = fields.need("dimension")?;
        if dimension != width {
            return Err(
                fields.wrong(format!("`dimension` is {dimension}, and the module before gives {width} elements"))
            );
        }
        fields.finish(&[])?;
        Ok(Self { folder: folder.into(), width })
    }

    /// The module on a device.
    pub fn load(&self, device: &Device, unread: Unread) -> Result<LayerNorm> {
        let weights = ModuleWeights::open(&self.folder, DType::F32, device)?;
        let norm = layer_norm(self.width, EPSILON, weights.vb.pp("norm"))?;
        weights.finish(unread)?;
        Ok(norm)
    }
}
