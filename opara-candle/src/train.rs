//! `Trainer`: a whole step of training as one captured graph.

use candle::{Tensor, Var};

use crate::builder::Builder;
use crate::executor::OparaExecutor;
use crate::optim::{check_gradients, CheckpointError, Fused, Params};
use crate::report::{Mode, Report};
use crate::{verify, Error, Result, TrainError};

use std::path::Path;
use std::sync::Arc;

/// A step: the loss, and metrics behind it.
type Step = Arc<dyn Fn(&[Tensor]) -> candle::Result<Vec<Tensor>> + Send + Sync>;

/// Trains the variables of an optimizer. Made by [`Builder::build_train`].
pub struct Trainer<P> {
    optimizer: Fused<P>,
    run: Run,
}

enum Run {
    Captured(Box<OparaExecutor>),
    /// On a CPU, where backward passes are not recorded.
    Eager(Step),
}

/// Steps that are compared while building.
const COMPARED: usize = 3;

impl Builder {
    /// Wraps a step of training: forward, `backward` and the optimizer are captured as one graph. `loss` gives the loss of a batch, one
    /// number, and may give metrics behind it. Building leaves variables and optimizer as they were.
    ///
    /// Three replays are compared with three eager steps: losses, metrics, variables, moments and the optimizer's numbers have the same
    /// bits. A step that cannot be captured runs eagerly, as all steps on a CPU do.
    ///
    /// ```
    /// use candle::{DType, Device::Cpu, Tensor};
    /// use candle_nn::{Module, ParamsAdamW, VarBuilder, VarMap};
    /// use opara_candle::{optim::AdamW, OparaExecutor};
    ///
    /// let weights = VarMap::new();
    /// let layer = candle_nn::linear(2, 1, VarBuilder::from_varmap(&weights, DType::F32, &Cpu))?;
    /// let batch = [Tensor::new(&[[1f32, 2.], [3., -1.]], &Cpu)?, Tensor::new(&[[1f32], [0.]], &Cpu)?];
    /// let loss = move |x: &[Tensor]| Ok(vec![candle_nn::loss::mse(&layer.forward(&x[0])?, &x[1])?]);
    /// let optimizer = AdamW::of(&weights, ParamsAdamW { lr: 0.1, ..Default::default() })?;
    /// let mut trainer = OparaExecutor::builder().build_train(loss, &optimizer, &batch)?;
    /// let first = trainer.step(&batch)?.to_scalar::<f32>()?;
    /// for _ in 0..30 {
    ///     trainer.step(&batch)?;
    /// }
    /// assert!(trainer.step(&batch)?.to_scalar::<f32>()? < first / 10.);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Training`] for a loss that is not one number, for variables that no gradient reaches, and for replays that differ;
    /// and errors of [`OparaExecutor::new`].
    pub fn build_train<P, F>(self, loss: F, optimizer: &Fused<P>, batch: &[Tensor]) -> Result<Trainer<P>>
    where
        P: Params + Send + Sync + 'static,
        F: Fn(&[Tensor]) -> candle::Result<Vec<Tensor>> + Send + Sync + 'static,
    {
        check_loss(&loss(batch)?, optimizer.variables())?;
        let own = optimizer.clone();
        let step: Step = Arc::new(move |batch| {
            let mut outputs = loss(batch)?;
            let Some(loss) = outputs.first() else { candle::bail!("a step gives its loss first, not nothing") };
            own.update(&loss.backward()?)?;
            outputs.iter_mut().for_each(|output| *output = output.detach());
            Ok(outputs)
        });
        let optimizer = optimizer.clone();
        if !optimizer.variables().any(|(_, variable)| variable.device().is_cuda()) {
            return Ok(Trainer { optimizer, run: Run::Eager(step) });
        }
        let executor = self.build_fn(
            {
                let step = step.clone();
                move |batch: &[Tensor]| step(batch)
            },
            batch,
        )?;
        if executor.report().mode() != Mode::Eager {
            compare(&optimizer, &step, &executor, batch)?;
        }
        Ok(Trainer { optimizer, run: Run::Captured(Box::new(executor)) })
    }
}

impl<P: Params> Trainer<P> {
    /// Takes a step, and gives the batch's loss before it. The loss stays on the device.
    ///
    /// # Errors
    /// Errors of [`OparaExecutor::call`]. After one of the device the variables may be partly updated: load a checkpoint.
    pub fn step(&mut self, batch: &[Tensor]) -> Result<Tensor> {
        Ok(self.step_with_metrics(batch)?.swap_remove(0))
    }

    /// The same with the metrics behind the loss.
    ///
    /// # Errors
    /// Those of [`step`](Self::step).
    pub fn step_with_metrics(&mut self, batch: &[Tensor]) -> Result<Vec<Tensor>> {
        match &self.run {
            Run::Captured(executor) => executor.call(batch),
            Run::Eager(step) => Ok(step(batch)?),
        }
    }

    /// The optimizer: sets the learning rate, and tells norm and steps.
    pub fn optimizer(&mut self) -> &mut Fused<P> {
        &mut self.optimizer
    }

    /// What building decided; `None` on a CPU.
    pub fn report(&self) -> Option<Report> {
        match &self.run {
            Run::Captured(executor) => Some(executor.report()),
            Run::Eager(_) => None,
        }
    }

    /// Writes a checkpoint: [`Fused::save`].
    ///
    /// # Errors
    /// Those of [`Fused::save`].
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), CheckpointError> {
        self.optimizer.save(path)
    }

    /// Reads a checkpoint: [`Fused::load`].
    ///
    /// # Errors
    /// Those of [`Fused::load`].
    pub fn load(&mut self, path: impl AsRef<Path>) -> Result<(), CheckpointError> {
        self.optimizer.load(path)
    }
}

/// # Errors
/// No loss, one that is not a number, or variables that it does not train.
fn check_loss<'a>(outputs: &[Tensor], variables: impl Iterator<Item = (&'a str, &'a Var)>) -> Result<()> {
    let loss = outputs.first().filter(|loss| loss.elem_count() == 1 && loss.dtype().is_float());
    let Some(loss) = loss else {
        let got = outputs.first().map(|loss| (loss.shape().clone(), loss.dtype()));
        return Err(TrainError::Loss { got }.into());
    };
    check_gradients(loss, variables.map(|(name, variable)| (name, variable.clone()))).map_err(TrainError::Unreached)?;
    Ok(())
}

/// Takes eager steps and captured ones from the same state on, and compares all that they write.
///
/// # Errors
/// The first tensor that differs.
fn compare<P: Params>(optimizer: &Fused<P>, step: &Step, executor: &OparaExecutor, batch: &[Tensor]) -> Result<()> {
    let before = optimizer.snapshot()?;
    let steps = |step: &dyn Fn() -> Result<Vec<Tensor>>| -> Result<Vec<(String, Tensor)>> {
        let mut outputs = Vec::new();
        let taken: Result<()> = (0..COMPARED).try_for_each(|number| {
            let named = |(at, output)| (format!("output {at} of step {number}"), output);
            outputs.extend(step()?.into_iter().enumerate().map(named));
            Ok(())
        });
        let after = taken.and_then(|()| optimizer.snapshot().map_err(Error::from));
        optimizer.restore(&before)?;
        outputs.extend(after?);
        Ok(outputs)
    };
    let eager = steps(&|| Ok(step(batch)?))?;
    let captured = steps(&|| executor.call(batch))?;
    for ((name, expected), (_, got)) in eager.into_iter().zip(captured) {
        match verify::same_bits_by_device("captured step", &[expected], &[got]) {
            Err(Error::Mismatch(_)) => return Err(TrainError::Differs { name }.into()),
            result => result?,
        }
    }
    Ok(())
}
