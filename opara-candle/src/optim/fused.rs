//! The optimizers.

use std::path::Path;
use std::sync::Arc;

use candle::backprop::GradStore;
#[cfg(feature = "cuda")]
use candle::TensorId;
use candle::{bail, DType, Tensor, Var};
use candle_nn::{Optimizer, ParamsAdamW, VarMap};

use super::check::finite;
use super::checkpoint::{CheckpointError, Position};
use super::claim::Claim;
use super::loss_scale::LossScale;
use super::mixed_precision::MixedPrecision;
use super::names::Names;
use super::params::{Params, ParamsAdam, ParamsLion, ParamsSGD};
use super::state::State;
use super::Schedule;
use crate::ops::optimizer::rule::place;
use crate::TrainError;

/// Stochastic gradient descent, with momentum and Nesterov's step.
pub type SGD = Fused<ParamsSGD>;

/// Adam (Kingma and Ba, 2015).
pub type Adam = Fused<ParamsAdam>;

/// AdamW (Loshchilov and Hutter, 2019): candle's, bit for bit.
pub type AdamW = Fused<ParamsAdamW>;

/// Lion (Chen et al., 2023).
pub type Lion = Fused<ParamsLion>;

/// An optimizer whose step is one launch for each 64 variables of a dtype. Clones share their state, so that a clone can set the learning rate of a step
/// that was captured.
///
/// The learning rate, the count of steps and all that follows from them lie on the variables' device.
#[derive(Clone)]
pub struct Fused<P> {
    state: Arc<State>,
    params: P,
}

impl<P: Params> Fused<P> {
    /// An optimizer of all variables of a map, in the order of their names.
    ///
    /// # Errors
    /// Variables on several devices, a variable or a name that is listed twice, settings that make values NaN, or no memory for the moments.
    pub fn of(variables: &VarMap, params: P) -> candle::Result<Self> {
        let Ok(data) = variables.data().lock() else { bail!("a thread panicked while it held the map of variables") };
        let mut named: Vec<_> = data.iter().map(|(name, variable)| (name.clone(), variable.clone())).collect();
        drop(data);
        named.sort_by(|a, b| a.0.cmp(&b.0));
        Self::of_named(named, params)
    }

    /// An optimizer of these variables.
    ///
    /// # Errors
    /// As for [`of`](Self::of).
    pub fn of_named(variables: Vec<(String, Var)>, params: P) -> candle::Result<Self> {
        Ok(Self { state: Arc::new(State::new(variables, params.rule(), params.rate(), params.decay())?), params })
    }

    /// Limits the norm of all gradients together: larger ones are scaled down. A step whose norm is not finite is left out, and counted in
    /// [`skipped`](Self::skipped).
    ///
    /// # Errors
    /// A limit that is not above 0, a clone of the optimizer, or no memory.
    pub fn clip_norm(mut self, most: f64) -> candle::Result<Self> {
        if most.is_nan() || most <= 0. {
            bail!("a norm is limited to a number above 0, not to {most}")
        }
        self.own()?.compute_norm(|control| control[place::MAX_NORM] = most)?;
        Ok(self)
    }

    /// Changes the learning rate from step to step.
    ///
    /// # Errors
    /// A part that remains which is no finite number, and a failed transfer.
    pub fn schedule(self, schedule: Schedule) -> candle::Result<Self> {
        schedule.check()?;
        self.state.set(|control| schedule.write(control))?;
        Ok(self)
    }

    /// Has a step go by the mean gradient of so many batches: all calls but the last of as many add gradients up. The count of batches lies on
    /// the device, so that a captured step knows it, too.
    ///
    /// # Errors
    /// No batch, a clone of the optimizer, or no memory.
    pub fn accumulate(mut self, batches: usize) -> candle::Result<Self> {
        self.own()?.accumulate(batches)?;
        Ok(self)
    }

    /// Keeps exponential moving averages of the variables, which keep the part `kept` of themselves at a step.
    ///
    /// # Errors
    /// A part that is not at least 0 and below 1, a clone of the optimizer, no memory, or a variable of 16 bits, whose average would not move.
    pub fn average(mut self, kept: f64) -> candle::Result<Self> {
        self.own()?.average(kept)?;
        Ok(self)
    }

    /// Rounds values to the working copies of a model that computes in 16 bits.
    ///
    /// # Errors
    /// A clone of the optimizer, or a failed launch.
    pub fn mixed(mut self, copies: &MixedPrecision) -> candle::Result<Self> {
        self.own()?.copy_to(copies)?;
        Ok(self)
    }

    /// Multiplies losses with a factor that follows from the gradients, for a model that computes in f16.
    ///
    /// # Errors
    /// A clone of the optimizer, or no memory.
    pub fn scale_loss(mut self, scale: LossScale) -> candle::Result<Self> {
        self.own()?.scale_loss(&scale)?;
        Ok(self)
    }

    /// Leaves variables with these names out: they stay as they are, and no step computes their gradients in vain. In exact numerics on a
    /// CPU candle computes those.
    ///
    /// # Errors
    /// A clone of the optimizer, or a pattern that chooses nothing.
    pub fn freeze(mut self, names: impl Names) -> candle::Result<Self> {
        self.own()?.freeze(names)?;
        Ok(self)
    }

    /// Takes the decay from variables with these names.
    ///
    /// # Errors
    /// A clone of the optimizer, or a pattern that chooses nothing.
    pub fn no_decay(mut self, names: impl Names) -> candle::Result<Self> {
        self.own()?.for_each(names, |update| update.decay = 0.)?;
        Ok(self)
    }

    /// Multiplies the learning rate of variables with these names.
    ///
    /// # Errors
    /// A factor that is no finite number, a clone of the optimizer, or a pattern that chooses nothing.
    pub fn scale_rates(mut self, names: impl Names, factor: f64) -> candle::Result<Self> {
        finite("factor of the learning rate", factor)?;
        self.own()?.for_each(names, |update| update.rate *= factor)?;
        Ok(self)
    }

    /// A loss by the factor of [`scale_loss`](Self::scale_loss). [`update`](Self::update) takes the factor out of its gradients.
    ///
    /// # Errors
    /// A failed launch.
    pub fn scaled(&self, loss: &Tensor) -> candle::Result<Tensor> {
        match self.scale()? {
            Some(scale) => loss.to_dtype(DType::F32)? * scale.reshape(loss.shape())?,
            None => Ok(loss.clone()),
        }
    }

    /// Updates the variables that have a gradient, as [`Optimizer::step`] does.
    ///
    /// # Errors
    /// Gradients that do not fit their variables, and failed launches.
    pub fn update(&self, gradients: &GradStore) -> candle::Result<()> {
        self.state.step(gradients, &[])
    }

    /// The same by several launches, which may run beside the rest of a backward pass: `ready` has variables in the order in which their
    /// gradients are computed.
    #[cfg(feature = "cuda")]
    pub(crate) fn update_in_order(&self, gradients: &GradStore, ready: &[TensorId]) -> candle::Result<()> {
        self.state.step(gradients, ready)
    }

    /// The variables by name.
    pub fn variables(&self) -> impl Iterator<Item = (&str, &Var)> {
        self.state.slots().iter().map(|slot| (&slot.name[..], &slot.variable))
    }

    /// Its settings.
    pub fn params(&self) -> &P {
        &self.params
    }

    /// Steps that were taken. Waits for the device.
    ///
    /// # Errors
    /// A failed transfer.
    pub fn steps(&self) -> candle::Result<u64> {
        Ok(self.state.control()?[place::STEPS] as u64)
    }

    /// The number of steps that were taken, where it lies: one number of f64 on the device, for [`dropout`](crate::ops::dropout).
    ///
    /// # Errors
    /// None.
    pub fn step_number(&self) -> candle::Result<Tensor> {
        self.state.number(place::STEPS)
    }

    /// The averages of [`average`](Self::average) by name, where they lie.
    pub fn averages(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.state.slots().iter().filter_map(|slot| Some((&slot.name[..], slot.average.as_ref()?)))
    }

    /// Exchanges the variables and their averages, for evaluation. The second call exchanges them back.
    ///
    /// # Errors
    /// No averages, and failed launches.
    pub fn swap_averages(&self) -> candle::Result<()> {
        self.state.swap_averages()
    }

    /// Steps that were left out, since the norm of their gradients was not finite. Waits for the device.
    ///
    /// # Errors
    /// A failed transfer.
    pub fn skipped(&self) -> candle::Result<u64> {
        Ok(self.state.control()?[place::SKIPPED] as u64)
    }

    /// What losses are multiplied with; 1 without [`scale_loss`](Self::scale_loss). Waits for the device.
    ///
    /// # Errors
    /// A failed transfer.
    pub fn loss_scale(&self) -> candle::Result<f64> {
        Ok(self.state.control()?[place::SCALE])
    }

    /// The norm of all gradients at the latest step, if it is [limited](Self::clip_norm). Waits for the device.
    ///
    /// # Errors
    /// A failed transfer.
    pub fn norm(&self) -> candle::Result<Option<f64>> {
        let control = self.state.control()?;
        Ok((control[place::MAX_NORM] > 0.).then_some(control[place::NORM]))
    }

    /// The learning rate of the latest step. Waits for the device.
    ///
    /// # Errors
    /// A failed transfer.
    pub fn latest_rate(&self) -> candle::Result<f64> {
        Ok(self.state.control()?[place::RATE])
    }

    /// Writes variables, moments, the count of steps, schedule and learning rate to a file of safetensors. It is written beside `path` and
    /// then renamed, so that an earlier checkpoint stays whole until then. Waits for the device.
    ///
    /// # Errors
    /// [`CheckpointError::File`], and a failed transfer.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), CheckpointError> {
        self.save_at(path.as_ref(), None)
    }

    /// Reads a file that [`save`](Self::save) wrote: later steps are those that would have followed then, bit for bit. Captured steps take
    /// it up, too.
    ///
    /// # Errors
    /// A file that is missing, damaged, of another optimizer or of another model. Variables and optimizer are as they were.
    pub fn load(&self, path: impl AsRef<Path>) -> Result<(), CheckpointError> {
        self.load_of(path.as_ref(), None).map(drop)
    }

    /// [`save`](Self::save) with the position of a loader.
    pub(crate) fn save_at(&self, path: &Path, at: Option<Position>) -> Result<(), CheckpointError> {
        self.state.save(path, &self.name(), at)
    }

    /// [`load`](Self::load) with the position of a loader of this order, if one is given.
    pub(crate) fn load_of(&self, path: &Path, order: Option<String>) -> Result<Option<u64>, CheckpointError> {
        self.state.load(path, &self.name(), order)
    }

    /// The variables by name, and their copies of 16 bits.
    pub(crate) fn variables_and_copies(&self) -> impl Iterator<Item = (&str, &Var, Option<&Tensor>)> {
        self.state.slots().iter().map(|slot| (&slot.name[..], &slot.variable, slot.copy.as_ref()))
    }

    /// What losses are multiplied with, if that is anything.
    pub(crate) fn scale(&self) -> candle::Result<Option<Tensor>> {
        self.state.scale()
    }

    /// Batches of a step.
    pub(crate) fn batches(&self) -> usize {
        self.state.batches
    }

    /// What says that a trainer has the variables.
    pub(crate) fn claim(&self) -> Result<Arc<Claim>, TrainError> {
        Claim::of(&self.state)
    }

    /// Copies of all that a step writes, by name.
    pub(crate) fn snapshot(&self) -> candle::Result<Vec<(String, Tensor)>> {
        self.state.snapshot()
    }

    /// Puts a snapshot of this optimizer back.
    pub(crate) fn restore(&self, snapshot: &[(String, Tensor)]) -> candle::Result<()> {
        self.state.restore(snapshot)
    }

    /// The optimizer, for checkpoints: its rule.
    fn name(&self) -> String {
        format!("{:?}", self.params.rule())
    }

    fn own(&mut self) -> candle::Result<&mut State> {
        match Arc::get_mut(&mut self.state) {
            Some(state) => Ok(state),
            None => bail!("an optimizer is set up before it is cloned"),
        }
    }
}

impl Fused<ParamsSGD> {
    /// Without momentum.
    ///
    /// # Errors
    /// As for [`of`](Self::of).
    pub fn new_lr(variables: Vec<Var>, lr: f64) -> candle::Result<Self> {
        Self::new(variables, lr.into())
    }
}

impl Fused<ParamsAdamW> {
    /// With candle's other settings.
    ///
    /// # Errors
    /// As for [`of`](Self::of).
    pub fn new_lr(variables: Vec<Var>, lr: f64) -> candle::Result<Self> {
        Self::new(variables, ParamsAdamW { lr, ..ParamsAdamW::default() })
    }
}

impl<P: Params> Optimizer for Fused<P> {
    type Config = P;

    fn new(variables: Vec<Var>, params: P) -> candle::Result<Self> {
        let numbered = variables.into_iter().enumerate().map(|(at, variable)| (at.to_string(), variable));
        Self::of_named(numbered.collect(), params)
    }

    fn backward_step(&mut self, loss: &Tensor) -> candle::Result<()> {
        self.update(&self.scaled(loss)?.backward()?)
    }

    fn step(&mut self, gradients: &GradStore) -> candle::Result<()> {
        self.update(gradients)
    }

    fn learning_rate(&self) -> f64 {
        self.state.rate()
    }

    fn set_learning_rate(&mut self, rate: f64) {
        self.state.set_rate(rate);
    }
}
