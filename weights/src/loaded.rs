//! The weights of a checkpoint, with tracking of the requested tensors.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use candle::{DType, Device, Shape, Tensor};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};

use crate::part::Part;
use crate::shard::Shard;
use crate::WeightsError;

/// A checkpoint's weights, with a record of the tensors not yet requested.
pub struct Loaded {
    /// Hands out the tensors to a model.
    pub vb: VarBuilder<'static>,
    unrequested: Unrequested,
}

impl Loaded {
    pub(crate) fn new(parts: &[Part], listing: &Path, dtype: DType, device: &Device) -> Result<Self, WeightsError> {
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
        let unrequested = Unrequested::new(shard_of.keys().cloned());
        let tensors = Tensors { shards, shard_of, listing: listing.to_path_buf(), unrequested: unrequested.clone() };
        Ok(Self { vb: VarBuilder::from_backend(Box::new(tensors), dtype, device.clone()), unrequested })
    }

    /// The tensors that were not requested so far, sorted by name. Once the model is built, these are the tensors that
    /// it does not use.
    pub fn surplus(&self) -> Vec<String> {
        self.unrequested.names().iter().cloned().collect()
    }
}

/// The names of the tensors not yet requested. Clones share one set, because the `VarBuilder` takes ownership of its
/// backend.
#[derive(Clone)]
struct Unrequested(Arc<Mutex<BTreeSet<String>>>);

impl Unrequested {
    fn new(names: impl Iterator<Item = String>) -> Self {
        Self(Arc::new(Mutex::new(names.collect())))
    }

    fn names(&self) -> MutexGuard<'_, BTreeSet<String>> {
        // No operation under this lock can leave the set inconsistent, so poisoning is ignored.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The tensors of all files of a checkpoint.
struct Tensors {
    shards: Vec<Shard>,
    /// The index in `shards` of the shard that has the tensor.
    shard_of: HashMap<String, usize>,
    listing: PathBuf,
    unrequested: Unrequested,
}

impl Tensors {
    fn read(&self, name: &str, shape: Option<&Shape>, dtype: DType, device: &Device) -> candle::Result<Tensor> {
        let Some(shard) = self.shard_of.get(name) else {
            return Err(WeightsError::MissingTensor { name: name.to_owned(), file: self.listing.clone() }.into());
        };
        self.unrequested.names().remove(name);
        Ok(self.shards[*shard].read(name, shape, dtype, device)?)
    }
}

impl SimpleBackend for Tensors {
    fn get(&self, shape: Shape, name: &str, _: Init, dtype: DType, device: &Device) -> candle::Result<Tensor> {
        self.read(name, Some(&shape), dtype, device)
    }

    fn get_unchecked(&self, name: &str, dtype: DType, device: &Device) -> candle::Result<Tensor> {
        self.read(name, None, dtype, device)
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.shard_of.contains_key(name)
    }
}
