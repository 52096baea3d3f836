//! Weights that are the same in each run, and the file that gives them and a batch to PyTorch.

use std::collections::HashMap;
use std::path::Path;

use candle::{DType, Device, Result, Shape, Tensor};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder, VarMap};
use opara_examples::variables;

use crate::models::{Loss, Model};

/// The model, and its weights: another call with the same arguments gives the same bits.
pub fn seeded(model: &Model, dtype: DType, device: &Device) -> Result<(VarMap, Loss)> {
    let weights = VarMap::new();
    let vb = VarBuilder::from_backend(Box::new(Seeded(weights.clone())), dtype, device.clone());
    Ok((weights, (model.make)(vb)?))
}

/// Draws each weight from a seed of its name. Only vectors that begin constant stay so.
struct Seeded(VarMap);

impl SimpleBackend for Seeded {
    fn get(&self, shape: Shape, name: &str, init: Init, dtype: DType, device: &Device) -> Result<Tensor> {
        let most = match init {
            _ if shape.rank() > 1 => ((shape.elem_count() / shape.dims()[0]) as f64).powf(-0.5),
            Init::Uniform { up, .. } => up,
            _ => return self.0.get(shape, name, init, dtype, device),
        };
        if !self.contains_tensor(name) {
            self.0.get(shape.clone(), name, Init::Const(0.), dtype, device)?;
            let seed = name.bytes().fold(0, |seed: u64, byte| seed.wrapping_mul(31).wrapping_add(byte.into()));
            let mut rng = fastrand::Rng::with_seed(seed);
            let numbers = (0..shape.elem_count()).map(|_| 2. * rng.f32() - 1.);
            let numbers = (Tensor::from_iter(numbers, device)? * most)?.reshape(&shape)?.to_dtype(dtype)?;
            self.0.clone().set_one(name, numbers)?;
        }
        self.0.get(shape, name, init, dtype, device)
    }

    fn get_unchecked(&self, name: &str, dtype: DType, device: &Device) -> Result<Tensor> {
        self.0.get_unchecked(name, dtype, device)
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.0.contains_tensor(name)
    }
}

/// Writes all weights by name, and the tensors of the batch as `batch.0` and `batch.1`.
pub fn write(path: &Path, weights: &VarMap, batch: &[Tensor]) -> Result<()> {
    let weights = variables(weights)?.into_iter().map(|(name, variable)| (name, variable.as_tensor().clone()));
    let batch = batch.iter().enumerate().map(|(at, tensor)| (format!("batch.{at}"), tensor.clone()));
    candle::safetensors::save(&weights.chain(batch).collect::<HashMap<_, _>>(), path)
}
