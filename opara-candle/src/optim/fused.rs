//! The optimizers.

use std::path::Path;
use std::sync::Arc;

use candle::backprop::GradStore;
use candle::{bail, Tensor, Var};
use candle_nn::{Optimizer, ParamsAdamW, VarMap};

use super::checkpoint::CheckpointError;
use super::params::{Params, ParamsAdam, ParamsLion, ParamsSGD};
use super::state::State;
use super::Schedule;
use crate::ops::optimizer::rule::place;

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
    /// Variables on several devices, or no memory for the moments.
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
    /// A clone of the optimizer, or no memory.
    pub fn clip_norm(mut self, most: f64) -> candle::Result<Self> {
        self.own()?.clip_norm(most)?;
        Ok(self)
    }

    /// Changes the learning rate from step to step.
    ///
    /// # Errors
    /// A failed transfer.
    pub fn schedule(self, schedule: Schedule) -> candle::Result<Self> {
        self.state.set(|control| schedule.write(control))?;
        Ok(self)
    }

    /// Takes the decay from variables with these names.
    ///
    /// # Errors
    /// A clone of the optimizer.
    pub fn no_decay(mut self, is_without: impl Fn(&str) -> bool) -> candle::Result<Self> {
        self.own()?.for_each(|name, update| {
            if is_without(name) {
                update.decay = 0.;
            }
        });
        Ok(self)
    }

    /// Multiplies the learning rate of each variable with a number for its name.
    ///
    /// # Errors
    /// A clone of the optimizer.
    pub fn scale_rates(mut self, scale: impl Fn(&str) -> f64) -> candle::Result<Self> {
        self.own()?.for_each(|name, update| update.rate *= scale(name));
        Ok(self)
    }

    /// Updates the variables that have a gradient, as [`Optimizer::step`] does.
    ///
    /// # Errors
    /// Gradients that do not fit their variables, and failed launches.
    pub fn update(&self, gradients: &GradStore) -> candle::Result<()> {
        self.state.step(gradients)
    }

    /// The variables by name.
    pub fn variables(&self) -> impl Iterator<Item = (&str, &Var)> {
        self.state.variables()
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
        self.state.step_number()
    }

    /// Steps that were left out, since the norm of their gradients was not finite. Waits for the device.
    ///
    /// # Errors
    /// A failed transfer.
    pub fn skipped(&self) -> candle::Result<u64> {
        Ok(self.state.control()?[place::SKIPPED] as u64)
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
        self.state.save(path.as_ref(), &self.name())
    }

    /// Reads a file that [`save`](Self::save) wrote: later steps are those that would have followed then, bit for bit. Captured steps take
    /// it up, too.
    ///
    /// # Errors
    /// A file that is missing, damaged, of another optimizer or of another model. Variables and optimizer are as they were.
    pub fn load(&self, path: impl AsRef<Path>) -> Result<(), CheckpointError> {
        self.state.load(path.as_ref(), &self.name())
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
