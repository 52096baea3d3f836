//! The weights of a checkpoint, as a model asks for them.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use candle::{DType, Device, Shape, Tensor};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};

use crate::part::Part;
use crate::shard::Shard;
use crate::WeightsError;

/// A checkpoint's weights with an account of what was asked for.
pub struct Loaded {
    /// Hands the tensors to a model.
    pub vb: VarBuilder<'static>,
    unasked: Unasked,
}

impl Loaded {
    pub(crate) fn new(parts: &[Part], listing: &Path, dtype: DType, device: &Device) -> Result<Self, WeightsError> {
        let mut shards = Vec::with_capacity(parts.len());
        let mut routes = HashMap::new();
        for part in parts {
            let shard = Shard::open(&part.path)?;
            for name in part.names.clone().unwrap_or_else(|| shard.names()) {
                shard.entry(&name)?;
                routes.insert(name, shards.len());
            }
            shards.push(shard);
        }
        let unasked = Unasked::new(routes.keys().cloned());
        let tensors = Tensors { shards, routes, listing: listing.to_path_buf(), unasked: unasked.clone() };
        Ok(Self { vb: VarBuilder::from_backend(Box::new(tensors), dtype, device.clone()), unasked })
    }

    /// The tensors that nothing asked for so far, sorted by name. Once the
    /// model is built, these are the ones that it has no use for.
    pub fn surplus(&self) -> Vec<String> {
        self.unasked.names().iter().cloned().collect()
    }
}

/// The tensors that nothing asked for yet. Clones share one account, since the
/// var builder swallows its backend.
#[derive(Clone)]
struct Unasked(Arc<Mutex<BTreeSet<String>>>);

impl Unasked {
    fn new(names: impl Iterator<Item = String>) -> Self {
        Self(Arc::new(Mutex::new(names.collect())))
    }

    fn names(&self) -> MutexGuard<'_, BTreeSet<String>> {
        // Nothing is left half done under this lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The tensors of all files of a checkpoint.
struct Tensors {
    shards: Vec<Shard>,
    /// Which shard has which tensor.
    routes: HashMap<String, usize>,
    listing: PathBuf,
    unasked: Unasked,
}

impl Tensors {
    fn read(&self, name: &str, shape: Option<&Shape>, dtype: DType, device: &Device) -> candle::Result<Tensor> {
        let Some(shard) = self.routes.get(name) else {
            return Err(WeightsError::MissingTensor { name: name.to_owned(), file: self.listing.clone() }.into());
        };
        self.unasked.names().remove(name);
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
        self.routes.contains_key(name)
    }
}
