//! Weights of 32 bits, and copies of 16 bits that a model computes with.

use std::collections::BTreeMap;
use std::sync::Arc;

use candle::{bail, DType, Device, Result, Shape, Tensor};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder, VarMap};
use parking_lot::Mutex;

use crate::ops::optimizer::round;

/// Master weights of f32 in a `VarMap`, and working copies of 16 bits for a model: forward and backward compute with the copies, gradients
/// reach the variables, and an optimizer that knows of them ([`Fused::mixed`](super::Fused::mixed)) rounds its results to the copies.
///
/// ```
/// use candle::{DType, Device::Cpu, Tensor};
/// use candle_nn::{Module, Optimizer, VarMap};
/// use opara_candle::optim::{AdamW, LossScale, MixedPrecision};
///
/// let weights = VarMap::new();
/// let mixed = MixedPrecision::new(&weights, DType::F16);
/// let layer = candle_nn::linear(4, 1, mixed.var_builder(&Cpu))?; // computes in f16
/// let mut optimizer = AdamW::of(&weights, Default::default())?.mixed(&mixed)?.scale_loss(LossScale::default())?;
/// let x = Tensor::ones((2, 4), DType::F16, &Cpu)?;
/// for _ in 0..3 {
///     optimizer.backward_step(&layer.forward(&x)?.sqr()?.mean_all()?)?;
/// }
/// assert_eq!(weights.all_vars()[0].dtype(), DType::F32);
/// # Ok::<(), candle::Error>(())
/// ```
#[derive(Clone)]
pub struct MixedPrecision {
    masters: VarMap,
    dtype: DType,
    copies: Arc<Mutex<BTreeMap<String, Tensor>>>,
}

impl MixedPrecision {
    /// Copies of `dtype`, f16 or bf16, of the variables of a map.
    pub fn new(masters: &VarMap, dtype: DType) -> Self {
        Self { masters: masters.clone(), dtype, copies: Arc::default() }
    }

    /// Gives a model its weights: copies of variables that the map has, or gets here. Where a model asks for f32 by itself, it gets the
    /// variable.
    pub fn var_builder(&self, device: &Device) -> VarBuilder<'static> {
        VarBuilder::from_backend(Box::new(self.clone()), self.dtype, device.clone())
    }

    /// Writes the copies anew, after the variables were changed other than by the optimizer, as by `VarMap::load`.
    ///
    /// # Errors
    /// A failed launch.
    pub fn refresh(&self) -> Result<()> {
        let copies = self.copies.lock();
        let Ok(masters) = self.masters.data().lock() else {
            bail!("a thread panicked while it held the map of variables")
        };
        let pairs =
            copies.iter().filter_map(|(name, copy)| Some((copy.detach(), masters.get(name)?.as_detached_tensor())));
        let pairs: Vec<_> = pairs.collect();
        round(&pairs.iter().map(|(copy, master)| (copy, master)).collect::<Vec<_>>())
    }

    /// The memory of a variable's copy.
    pub(super) fn of(&self, name: &str) -> Option<Tensor> {
        self.copies.lock().get(name).map(Tensor::detach)
    }

    /// A master, or its copy. Its gradient goes through the conversion to the master.
    fn copy(&self, name: &str, master: Tensor, dtype: DType) -> Result<Tensor> {
        if master.dtype() != DType::F32 || dtype == DType::F32 {
            return Ok(master);
        }
        if !matches!(self.dtype, DType::F16 | DType::BF16) {
            bail!("working copies are of f16 or bf16, not of {:?}", self.dtype)
        }
        if dtype != self.dtype {
            bail!("`{name}` is asked for in {dtype:?}, but working copies are of {:?}", self.dtype)
        }
        let mut copies = self.copies.lock();
        if let Some(copy) = copies.get(name) {
            return Ok(copy.clone());
        }
        let copy = master.to_dtype(dtype)?;
        copies.insert(name.into(), copy.clone());
        Ok(copy)
    }
}

impl SimpleBackend for MixedPrecision {
    fn get(&self, shape: Shape, name: &str, init: Init, dtype: DType, device: &Device) -> Result<Tensor> {
        self.copy(name, self.masters.get(shape, name, init, DType::F32, device)?, dtype)
    }

    fn get_unchecked(&self, name: &str, dtype: DType, _: &Device) -> Result<Tensor> {
        let Ok(data) = self.masters.data().lock() else {
            bail!("a thread panicked while it held the map of variables")
        };
        let master = data.get(name).map(|variable| variable.as_tensor().clone());
        drop(data);
        let Some(master) = master else { bail!("there is no variable `{name}`") };
        self.copy(name, master, dtype)
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.masters.data().lock().is_ok_and(|data| data.contains_key(name))
    }
}
