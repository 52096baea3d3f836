//! `Trainer`: a whole step of training as one captured graph.

mod gradient_error;
#[cfg(feature = "cuda")]
mod lifted;

use std::path::Path;
use std::sync::Arc;

use candle::Tensor;

pub use self::gradient_error::GradientError;
#[cfg(feature = "cuda")]
use self::lifted::Lifted;
use crate::backend::Function;
use crate::builder::Builder;
use crate::executor::OparaExecutor;
use crate::optim::{check_gradients, CheckpointError, Fused, Params};
use crate::report::{Mode, Report};
#[cfg(feature = "cuda")]
use crate::Numerics;
use crate::{verify, Error, Result, TrainError};

/// Trains the variables of an optimizer. Made by [`Builder::build_train`].
pub struct Trainer<P> {
    optimizer: Fused<P>,
    run: Run,
    errors: Vec<GradientError>,
}

enum Run {
    Captured(Box<OparaExecutor>),
    /// On a CPU, where backward passes are not recorded.
    Eager(Function),
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
    /// With [`Numerics::Accurate`](crate::Numerics::Accurate) the module needs no backward pass: on a GPU its forward pass is recorded, computed by faster
    /// operators, and differentiated. So models train whose operators stop candle's gradients. What candle's `detach` hides is not seen
    /// there: leave variables that shall stay out of the optimizer. Memory of the module that is no variable is copied.
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
        let outputs = loss(batch)?;
        let first = check_loss(&outputs)?;
        #[cfg(feature = "cuda")]
        if self.0.numerics == Numerics::Accurate && first.device().is_cuda() {
            let first = first.detach();
            drop(outputs);
            let lifted = Lifted::of(&(Arc::new(loss) as Function), batch, optimizer)?;
            let (errors, own) = (lifted.judge(batch, &first)?, optimizer.clone());
            let step: Function = Arc::new(move |batch| lifted.step(batch, &own));
            return Ok(Trainer { errors, ..self.numerics(Numerics::Exact).captured(step, optimizer, batch)? });
        }
        let variables = optimizer.variables().map(|(name, variable)| (name, variable.clone()));
        check_gradients(first, variables).map_err(TrainError::Unreached)?;
        let own = optimizer.clone();
        let step: Function = Arc::new(move |batch| {
            let mut outputs = loss(batch)?;
            let Some(loss) = outputs.first() else { candle::bail!("a step gives its loss first, not nothing") };
            own.update(&own.scaled(loss)?.backward()?)?;
            outputs.iter_mut().for_each(|output| *output = output.detach());
            Ok(outputs)
        });
        self.captured(step, optimizer, batch)
    }

    /// A trainer by a step that updates the variables, captured where that is possible.
    fn captured<P>(self, step: Function, optimizer: &Fused<P>, batch: &[Tensor]) -> Result<Trainer<P>>
    where
        P: Params + Send + Sync + 'static,
    {
        let (optimizer, errors) = (optimizer.clone(), Vec::new());
        if !optimizer.variables().any(|(_, variable)| variable.device().is_cuda()) {
            return Ok(Trainer { optimizer, run: Run::Eager(step), errors });
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
        Ok(Trainer { optimizer, run: Run::Captured(Box::new(executor)), errors })
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

    /// With [`Numerics::Accurate`](crate::Numerics::Accurate) on a GPU, how far each variable's gradient was from double precision while building.
    pub fn gradient_errors(&self) -> &[GradientError] {
        &self.errors
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
/// No loss, or one that is not a number.
fn check_loss(outputs: &[Tensor]) -> Result<&Tensor, TrainError> {
    let loss = outputs.first().filter(|loss| loss.elem_count() == 1 && loss.dtype().is_float());
    let got = || outputs.first().map(|loss| (loss.shape().clone(), loss.dtype()));
    loss.ok_or_else(|| TrainError::Loss { got: got() })
}

/// Takes eager steps and captured ones from the same state on, and compares all that they write.
///
/// # Errors
/// The first tensor that differs.
fn compare<P: Params>(optimizer: &Fused<P>, step: &Function, executor: &OparaExecutor, batch: &[Tensor]) -> Result<()> {
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
