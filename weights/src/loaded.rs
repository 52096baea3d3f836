//! The weights of a checkpoint, with tracking of the requested tensors.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use candle::{DType, Device, Shape, Tensor};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};
use safetensors::Dtype;

use crate::floats::{Floats, PartOfFloats};
use crate::part::Part;
use crate::quantization::Quantization;
use crate::scale::{OF_ACTIVATIONS, SUFFIXES};
use crate::shard::Shard;
use crate::unread::{is_buffer, Unread};
use crate::WeightsError;

/// A checkpoint's weights, with a record of the tensors not yet requested.
pub struct Loaded {
    /// Hands out the tensors to a model.
    pub vb: VarBuilder<'static>,
    tensors: Arc<Tensors>,
    unread: Unread,
}

impl Loaded {
    pub(crate) fn new(
        parts: &[Part],
        listing: &Path,
        (quantization, keeps_floats): (Option<Quantization>, bool),
        unread: Unread,
        dtype: DType,
        device: &Device,
    ) -> Result<Self, WeightsError> {
        let mut shards = Vec::with_capacity(parts.len());
        let mut shard_of = HashMap::new();
        for part in parts {
            let shard = Shard::open(&part.path)?;
            for name in part.names.clone().unwrap_or_else(|| shard.names()) {
                shard.entry(&name)?;
                shard_of.insert(name, shards.len());
            }
            shards.push(shard);
        }
        let unrequested = Mutex::new(shard_of.keys().cloned().collect());
        let tensors =
            Tensors { shards, shard_of, listing: listing.to_path_buf(), quantization, keeps_floats, unrequested };
        let tensors = Arc::new(tensors);
        let vb = VarBuilder::from_backend(Box::new(Shared(tensors.clone())), dtype, device.clone());
        Ok(Self { vb, tensors, unread })
    }

    /// The tensors that were not requested so far, sorted by name. Once the model is built, these are the tensors that
    /// it does not use.
    pub fn surplus(&self) -> Vec<String> {
        self.tensors.unrequested().iter().cloned().collect()
    }

    /// Bytes that the matrices of 8-bit floats which [`Floats::of`] reads take as such, and elements of these.
    pub fn floats(&self) -> (u64, u64) {
        if !self.tensors.keeps_floats {
            return (0, 0);
        }
        let all = self.tensors.shard_of.iter().filter_map(|(name, shard)| self.tensors.shards[*shard].floats(name));
        let elements = all.sum::<u64>();
        (elements + elements / Floats::GROUP as u64 * size_of::<f32>() as u64, elements)
    }

    /// Refuses tensors that were not requested by now, unless `is_harmless` says of the name that the model's answer does not depend
    /// on the tensor. Names of buffers that every model computes itself (`position_ids`, `rotary_emb.inv_freq`, ..) are harmless.
    ///
    /// # Errors
    /// [`WeightsError::UnreadTensors`]; a warning instead, where [`Checkpoint::allow_unread`](crate::Checkpoint::allow_unread) was
    /// set.
    pub fn check(&self, is_harmless: impl Fn(&str) -> bool) -> Result<(), WeightsError> {
        let names: Vec<_> = self.surplus().into_iter().filter(|name| !is_buffer(name) && !is_harmless(name)).collect();
        match names.is_empty() {
            true => Ok(()),
            false => self.unread.report(WeightsError::UnreadTensors { file: self.tensors.listing.clone(), names }),
        }
    }

    /// Are both tensors there, with the same shape and the same bits? A tied head may be stored beside the table of embeddings.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn is_copy(&self, name: &str, of: &str) -> Result<bool, WeightsError> {
        match (self.tensors.shard(name), self.tensors.shard(of)) {
            (Some(one), Some(two)) => one.is_same(name, (of, two)),
            _ => Ok(false),
        }
    }
}

/// The tensors of all files of a checkpoint.
struct Tensors {
    shards: Vec<Shard>,
    /// The index in `shards` of the shard that has the tensor.
    shard_of: HashMap<String, usize>,
    listing: PathBuf,
    quantization: Option<Quantization>,
    /// Whether 8-bit floats are handed out as they are.
    keeps_floats: bool,
    /// The names of the tensors not yet requested.
    unrequested: Mutex<BTreeSet<String>>,
}

impl Tensors {
    fn unrequested(&self) -> MutexGuard<'_, BTreeSet<String>> {
        // No operation under this lock can leave the set inconsistent, so poisoning is ignored.
        self.unrequested.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn shard(&self, name: &str) -> Option<&Shard> {
        self.shard_of.get(name).map(|shard| &self.shards[*shard])
    }

    fn read(&self, name: &str, shape: Option<&Shape>, dtype: DType, device: &Device) -> candle::Result<Tensor> {
        if let Some((weight, part)) = PartOfFloats::in_name(name) {
            return match self.read_floats(weight, part)? {
                Some(tensor) => tensor.to_device(device),
                None => Err(WeightsError::MissingTensor { name: name.to_owned(), file: self.listing.clone() }.into()),
            };
        }
        let shard = self.shard(name);
        let stored = shard.map(|shard| shard.entry(name)).transpose()?.map(|entry| entry.dtype);
        if stored.is_none_or(is_integer) && dtype.is_float() {
            self.check_packed(name)?;
        }
        let Some(shard) = shard else {
            return Err(WeightsError::MissingTensor { name: name.to_owned(), file: self.listing.clone() }.into());
        };
        self.unrequested().remove(name);
        if stored != Some(Dtype::F8_E4M3) {
            return Ok(shard.read(name, shape, dtype, device)?);
        }
        let Some((scale, of)) = self.scale_of(name, shard)? else {
            return Ok(shard.read(name, shape, dtype, device)?);
        };
        let scale = (scale.as_str(), of);
        self.forget_scales(name, scale.0);
        Ok(shard.read_scaled(name, shape, scale, self.quantization.unwrap_or_default(), (dtype, device))?)
    }

    /// The name of the scale of 8-bit floats, and where it is; `None` if they were rounded and not scaled.
    fn scale_of(&self, name: &str, shard: &Shard) -> Result<Option<(String, &Shard)>, WeightsError> {
        let scale = SUFFIXES.map(|suffix| format!("{name}{suffix}"));
        let found = scale.iter().find_map(|scale| Some((scale.clone(), self.shard(scale)?)));
        if found.is_none() && self.quantization.is_some() {
            return Err(shard.unscaled(name, format!("neither `{}` nor `{}` is there", scale[0], scale[1])));
        }
        Ok(found)
    }

    /// A part of a weight of 8-bit floats; `None` for other tensors.
    fn read_floats(&self, name: &str, part: PartOfFloats) -> candle::Result<Option<Tensor>> {
        let Some(shard) = self.shard(name).filter(|_| self.keeps_floats) else { return Ok(None) };
        if shard.entry(name)?.dtype != Dtype::F8_E4M3 {
            return Ok(None);
        }
        let scale = self.scale_of(name, shard)?;
        match part {
            PartOfFloats::Bytes => {
                self.unrequested().remove(name);
                if let Some((scale, _)) = &scale {
                    self.forget_scales(name, scale);
                }
                Ok(Some(shard.read_bytes(name)?))
            }
            PartOfFloats::Scales => {
                let scale = scale.as_ref().map(|(scale, of)| (scale.as_str(), *of));
                Ok(shard.read_scales(name, scale, self.quantization.unwrap_or_default(), Floats::GROUP)?)
            }
        }
    }

    /// Says of a weight that is no floats, or not there, that it is quantised, if what stands beside it says so.
    fn check_packed(&self, name: &str) -> Result<(), WeightsError> {
        let layer = name.strip_suffix("weight");
        let beside = layer.and_then(|layer| {
            PACKED.iter().map(|of| format!("{layer}{of}")).find(|beside| self.shard_of.contains_key(beside))
        });
        match beside {
            Some(beside) => Err(WeightsError::Packed { name: name.to_owned(), beside, file: self.listing.clone() }),
            None => Ok(()),
        }
    }

    /// Takes the scales of a weight as requested.
    fn forget_scales(&self, name: &str, scale: &str) {
        let mut unrequested = self.unrequested();
        unrequested.remove(scale);
        let Some(layer) = name.strip_suffix("weight") else { return };
        // Those of a cache stand beside the products.
        let attention = layer.trim_end_matches('.').rsplit_once('.').map_or("", |(attention, _)| attention);
        for of in OF_ACTIVATIONS {
            unrequested.remove(&format!("{layer}{of}"));
            unrequested.remove(&format!("{attention}.{of}"));
        }
    }
}

/// Names, in place of `weight`, of what methods of quantization put beside weights, or instead of them: GPTQ and AWQ,
/// compressed-tensors, bitsandbytes, HQQ, MLX.
const PACKED: [&str; 9] = [
    "qweight",
    "weight_packed",
    "weight_scale",
    "weight_scale_inv",
    "SCB",
    "weight.absmax",
    "weight.quant_map",
    "W_q",
    "scales",
];

fn is_integer(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::I8 | Dtype::U8 | Dtype::I16 | Dtype::U16 | Dtype::I32 | Dtype::U32 | Dtype::I64 | Dtype::U64)
}

/// A `VarBuilder` takes ownership of its backend.
struct Shared(Arc<Tensors>);

impl SimpleBackend for Shared {
    fn get(&self, shape: Shape, name: &str, _: Init, dtype: DType, device: &Device) -> candle::Result<Tensor> {
        self.0.read(name, Some(&shape), dtype, device)
    }

    fn get_unchecked(&self, name: &str, dtype: DType, device: &Device) -> candle::Result<Tensor> {
        self.0.read(name, None, dtype, device)
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.0.shard_of.contains_key(name)
    }
}
