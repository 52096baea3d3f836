//! How a step is computed, for batches of any shapes.

#[cfg(feature = "cuda")]
use std::sync::atomic::{AtomicU64, Ordering};
#[cfg(feature = "cuda")]
use std::sync::Arc;

use candle::Tensor;
#[cfg(feature = "cuda")]
use hashbrown::HashMap;
#[cfg(feature = "cuda")]
use parking_lot::Mutex;

use super::gradient_error::GradientError;
#[cfg(feature = "cuda")]
use super::lifted::Lifted;
use crate::backend::Function;
use crate::executor::OparaExecutor;
use crate::optim::{check_gradients, Fused, Params};
use crate::panics::caught;
#[cfg(feature = "cuda")]
use crate::shapes::{key, Key};
use crate::{ops, verify, Error, Result, TrainError};

/// Steps that are compared while building, of one batch each.
const COMPARED: usize = 3;

/// A loss, and the optimizer that follows its gradients.
pub(super) struct Steps<P> {
    loss: Function,
    optimizer: Fused<P>,
    /// The loss as a graph for each shape of batch, if that is what is differentiated.
    #[cfg(feature = "cuda")]
    lifted: Option<LiftedSteps>,
}

/// Losses as graphs.
#[cfg(feature = "cuda")]
struct LiftedSteps {
    of: Mutex<HashMap<Key, Arc<Lifted>>>,
    /// Bytes that a step may take.
    limit: Option<u64>,
    /// Bytes that a step was seen to take beside the values of the forward pass.
    besides: AtomicU64,
}

impl<P: Params> Steps<P> {
    /// `is_lifted`: is the recorded loss differentiated, in place of candle's backward pass? Then a step may take `limit` bytes.
    pub fn new(loss: Function, optimizer: &Fused<P>, is_lifted: bool, limit: Option<u64>) -> Self {
        #[cfg(not(feature = "cuda"))]
        let _ = (is_lifted, limit);
        #[cfg(feature = "cuda")]
        let steps = || LiftedSteps { of: Mutex::default(), limit, besides: AtomicU64::default() };
        Self {
            loss,
            optimizer: optimizer.clone(),
            #[cfg(feature = "cuda")]
            lifted: is_lifted.then(steps),
        }
    }

    /// Checks the loss of a batch, and differentiates it, before a step has a batch of these shapes.
    ///
    /// # Errors
    /// A loss that is no number, variables that no gradient reaches, and gradients that are not accurate.
    pub fn prepare(&self, batch: &[Tensor]) -> Result<Vec<GradientError>> {
        let before = self.leaves(|leaf| leaf.copy())?;
        let outputs = caught(|| Ok((self.loss)(batch)?));
        let written = self.put_back(&before)?;
        let outputs = outputs?;
        let first = check_loss(&outputs)?;
        #[cfg(feature = "cuda")]
        if let Some(LiftedSteps { of, limit, besides }) = &self.lifted {
            let first = first.detach();
            drop(outputs);
            // The capture runs the loss, too, even one that fails then.
            let lifted = Lifted::of(&self.loss, batch, &self.optimizer);
            self.put_back(&before)?;
            let mut lifted = lifted?;
            if let Some(limit) = limit {
                lifted.keep_less(limit.saturating_sub(besides.load(Ordering::Relaxed)));
            }
            let errors = lifted.judge(batch, &first, self.optimizer.loss_scale()?)?;
            of.lock().insert(key(batch), Arc::new(lifted));
            return Ok(errors);
        }
        let is_trained = |name: &str| !written.iter().any(|written| written == name);
        let variables = self.optimizer.variables().filter(|(name, _)| is_trained(name));
        let variables = variables.map(|(name, variable)| (name, variable.clone()));
        check_gradients(first, variables).map_err(TrainError::Unreached)?;
        Ok(Vec::new())
    }

    #[cfg(feature = "cuda")]
    fn lifted(&self, batch: &[Tensor]) -> Option<Arc<Lifted>> {
        self.lifted.as_ref()?.of.lock().get(&key(batch)).cloned()
    }

    /// Has steps of such batches, which took `taken` bytes, keep fewer values. False if they cannot.
    pub fn keep_less(&self, batch: &[Tensor], taken: u64) -> bool {
        #[cfg(feature = "cuda")]
        if let (Some(steps), Some(lifted)) = (&self.lifted, self.lifted(batch)) {
            let besides = taken.saturating_sub(lifted.bytes());
            steps.besides.store(besides, Ordering::Relaxed);
            return lifted.keep_less(steps.limit.unwrap_or(u64::MAX).saturating_sub(besides));
        }
        let _ = (batch, taken);
        false
    }

    /// The segments of the forward pass of such batches.
    pub fn segments(&self, batch: &[Tensor]) -> usize {
        #[cfg(feature = "cuda")]
        if let Some(lifted) = self.lifted(batch) {
            return lifted.segments();
        }
        let _ = batch;
        1
    }

    /// All that a module may read as a variable, by the variable's name.
    fn leaves(&self, of: impl Fn(&Tensor) -> candle::Result<Tensor>) -> Result<Vec<(String, Tensor)>> {
        let mut leaves = Vec::new();
        for (name, variable, copy) in self.optimizer.variables_and_copies() {
            leaves.push((name.to_string(), of(&variable.as_detached_tensor())?));
            if let Some(copy) = copy {
                leaves.push((name.to_string(), of(copy)?));
            }
        }
        Ok(leaves)
    }

    /// Puts the variables back as they were, and names those that were others.
    fn put_back(&self, before: &[(String, Tensor)]) -> Result<Vec<String>> {
        let mut written = Vec::new();
        for ((name, leaf), (_, before)) in self.leaves(|leaf| Ok(leaf.clone()))?.into_iter().zip(before) {
            match verify::same_bits_by_device("loss", std::slice::from_ref(&leaf), std::slice::from_ref(before)) {
                Err(Error::Mismatch(_)) => {
                    ops::assign(&leaf, before)?;
                    written.push(name);
                }
                result => result?,
            }
        }
        Ok(written)
    }

    /// Takes a step, and gives the closure's outputs.
    ///
    /// # Errors
    /// A loss that is no number, and candle's errors.
    pub fn step(&self, batch: &[Tensor]) -> candle::Result<Vec<Tensor>> {
        #[cfg(feature = "cuda")]
        if self.lifted.is_some() {
            let Some(lifted) = self.lifted(batch) else {
                candle::bail!("no loss was recorded for batches of these shapes")
            };
            return lifted.step(batch, &self.optimizer);
        }
        let mut outputs = (self.loss)(batch)?;
        let loss = check_loss(&outputs).map_err(Error::from)?;
        self.optimizer.update(&self.optimizer.scaled(loss)?.backward()?)?;
        outputs.iter_mut().for_each(|output| *output = output.detach());
        Ok(outputs)
    }

    /// Takes eager steps and captured ones from the same state on, and compares all that they write.
    ///
    /// # Errors
    /// The first tensor that differs.
    pub fn compare(&self, executor: &OparaExecutor, batch: &[Tensor]) -> Result<()> {
        let before = self.optimizer.snapshot()?;
        let count = COMPARED.max(self.optimizer.batches() + 1);
        let steps = |step: &dyn Fn() -> Result<Vec<Tensor>>| -> Result<Vec<(String, Tensor)>> {
            let mut outputs = Vec::new();
            let taken: Result<()> = (0..count).try_for_each(|number| {
                let named = |(at, output)| (format!("output {at} of step {number}"), output);
                outputs.extend(step()?.into_iter().enumerate().map(named));
                Ok(())
            });
            let after = taken.and_then(|()| self.optimizer.snapshot().map_err(Error::from));
            self.optimizer.restore(&before)?;
            outputs.extend(after?);
            Ok(outputs)
        };
        let eager = steps(&|| Ok(self.step(batch)?))?;
        let captured = steps(&|| executor.call(batch))?;
        for ((name, expected), (_, got)) in eager.into_iter().zip(captured) {
            match verify::same_bits_by_device("captured step", &[expected], &[got]) {
                Err(Error::Mismatch(_)) => return Err(TrainError::Differs { name }.into()),
                result => result?,
            }
        }
        Ok(())
    }
}

/// # Errors
/// No loss, or one that is not a number.
fn check_loss(outputs: &[Tensor]) -> Result<&Tensor, TrainError> {
    let loss = outputs.first().filter(|loss| loss.elem_count() == 1 && loss.dtype().is_float());
    let got = || outputs.first().map(|loss| (loss.shape().clone(), loss.dtype()));
    loss.ok_or_else(|| TrainError::Loss { got: got() })
}
