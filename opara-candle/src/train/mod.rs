//! `Trainer`: a whole step of training as one captured graph.

mod gradient_error;
#[cfg(feature = "cuda")]
mod judge;
#[cfg(feature = "cuda")]
mod lifted;
mod steps;

use std::path::Path;
use std::sync::Arc;

use candle::{DType, Device, Tensor};
use hashbrown::HashSet;
use opara_plan::prepared::Least;
use opara_plan::timeline::Timeline;

pub use self::gradient_error::GradientError;
use self::steps::Steps;
use crate::builder::Builder;
use crate::executor::OparaExecutor;
use crate::loader::Loader;
use crate::optim::{CheckpointError, Claim, Fused, Params};
use crate::panics::caught;
use crate::report::{Mode, Report};
use crate::shapes::{key, Key};
use crate::trace::Trace;
use crate::{Error, Numerics, Result, TrainError};

/// Trains the variables of an optimizer. Made by [`Builder::build_train`].
pub struct Trainer<P> {
    optimizer: Fused<P>,
    steps: Arc<Steps<P>>,
    /// `None` on a CPU, where backward passes are not recorded.
    executor: Option<OparaExecutor>,
    /// Shapes of batches whose steps were checked.
    built: HashSet<Key>,
    example: Vec<(Device, DType)>,
    errors: Vec<GradientError>,
    /// Keeps other trainers from the variables.
    _claim: Arc<Claim>,
}

impl Builder {
    /// Wraps a step of training: forward, `backward` and the optimizer are captured as one graph. `loss` gives the loss of a batch, one
    /// number, and may give metrics behind it. Building leaves variables and optimizer as they were.
    ///
    /// Three replays are compared with three eager steps: losses, metrics, variables, moments and the optimizer's numbers have the same
    /// bits. A step that cannot be captured runs eagerly, as all steps on a CPU do;
    /// [`OnUncapturable::Error`](crate::OnUncapturable::Error) makes that an error. Batches of other shapes are built at their first step, over
    /// the same weights and moments.
    ///
    /// A variable that the loss itself writes, as running statistics of batch norms, needs no gradient. Checkpoints have it.
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
    /// [`Error::Training`](crate::Error::Training) for a loss that is not one number, for an optimizer without variables, for variables that no
    /// gradient reaches or another trainer has, and for replays that differ; and errors of [`OparaExecutor::new`].
    pub fn build_train<P, F>(self, loss: F, optimizer: &Fused<P>, batch: &[Tensor]) -> Result<Trainer<P>>
    where
        P: Params + Send + Sync + 'static,
        F: Fn(&[Tensor]) -> candle::Result<Vec<Tensor>> + Send + Sync + 'static,
    {
        if optimizer.variables().next().is_none() {
            return Err(TrainError::Nothing.into());
        }
        let claim = optimizer.claim()?;
        let is_on_gpu = optimizer.variables().any(|(_, variable)| variable.device().is_cuda());
        let is_lifted = self.0.numerics == Numerics::Accurate && is_on_gpu;
        let limit = self.0.train_memory;
        if limit.is_some() && !is_lifted {
            return Err(TrainError::NoSegments.into());
        }
        let steps = Arc::new(Steps::new(Arc::new(loss), optimizer, is_lifted, limit));
        let errors = steps.prepare(batch)?;
        // A second pass would be a second step.
        let mut builder = if is_lifted { self.numerics(Numerics::Exact) } else { self }.recheck(0);
        if is_lifted {
            builder.0.settings.least = Least::Packed;
            builder.0.settings.most = limit;
        }
        let executor = is_on_gpu.then(|| build_within(&builder, &steps, batch, limit)).transpose()?;
        Ok(Trainer {
            optimizer: optimizer.clone(),
            steps,
            executor,
            built: HashSet::from([key(batch)]),
            example: batch.iter().map(|tensor| (tensor.device().clone(), tensor.dtype())).collect(),
            errors,
            _claim: claim,
        })
    }
}

/// The executor of steps, each of which takes at most `limit` bytes.
fn build_within<P: Params + Send + Sync + 'static>(
    builder: &Builder,
    steps: &Arc<Steps<P>>,
    batch: &[Tensor],
    limit: Option<u64>,
) -> Result<OparaExecutor> {
    let mut least = u64::MAX;
    loop {
        let own = steps.clone();
        let executor = builder.clone().build_fn(move |batch: &[Tensor]| own.step(batch), batch)?;
        let (report, limit) = (executor.report(), limit.unwrap_or(u64::MAX));
        if report.mode() == Mode::Eager {
            return Ok(executor);
        }
        let taken = report.counts().arena_bytes;
        least = least.min(taken);
        if taken <= limit {
            steps.compare(&executor, batch)?;
            return Ok(executor);
        }
        if !steps.keep_less(batch, taken) {
            return Err(TrainError::Memory { needed: least, limit }.into());
        }
    }
}

impl<P: Params> Trainer<P> {
    /// Takes a step, and gives the batch's loss before it. The loss stays on the device.
    ///
    /// # Errors
    /// [`TrainError::Batch`] for a batch of other dtypes than the first one, for a batch of other shapes the errors of
    /// [`Builder::build_train`], and errors of [`OparaExecutor::call`]. After one of the device the variables may be partly updated: load a
    /// checkpoint.
    pub fn step(&mut self, batch: &[Tensor]) -> Result<Tensor> {
        Ok(self.step_with_metrics(batch)?.swap_remove(0))
    }

    /// The same with the metrics behind the loss.
    ///
    /// # Errors
    /// Those of [`step`](Self::step).
    pub fn step_with_metrics(&mut self, batch: &[Tensor]) -> Result<Vec<Tensor>> {
        self.build(batch)?;
        match &self.executor {
            Some(executor) => executor.call(batch),
            None => caught(|| Ok(self.steps.step(batch)?)),
        }
    }

    /// Checks a batch, and builds for its shapes if none was so before.
    fn build(&mut self, batch: &[Tensor]) -> Result<()> {
        let shapes = key(batch);
        if self.built.contains(&shapes) {
            return Ok(());
        }
        let is_alike = |(tensor, (device, dtype)): (&Tensor, &(Device, DType))| {
            tensor.dtype() == *dtype && tensor.device().same_device(device)
        };
        if batch.len() != self.example.len() || !batch.iter().zip(&self.example).all(is_alike) {
            let told = |device: &Device, dtype: DType| (device.location(), dtype);
            let expected = self.example.iter().map(|(device, dtype)| told(device, *dtype)).collect();
            let got = batch.iter().map(|tensor| told(tensor.device(), tensor.dtype())).collect();
            return Err(TrainError::Batch { expected, got }.into());
        }
        let errors = self.steps.prepare(batch)?;
        if let Some(executor) = self.executor.as_ref().filter(|executor| executor.report().mode() != Mode::Eager) {
            self.steps.compare(executor, batch)?;
        }
        self.errors = errors;
        self.built.insert(shapes);
        Ok(())
    }

    /// The segments of the forward pass of batches like this one, of which all but the last are computed again on the way back: one, unless
    /// [`Builder::train_memory`] asks for less memory.
    ///
    /// # Errors
    /// Those of [`step`](Self::step) for a batch of other shapes.
    pub fn segments(&mut self, batch: &[Tensor]) -> Result<usize> {
        self.build(batch)?;
        Ok(self.steps.segments(batch))
    }

    /// The optimizer: sets the learning rate, and tells norm and steps.
    pub fn optimizer(&mut self) -> &mut Fused<P> {
        &mut self.optimizer
    }

    /// What building decided; `None` on a CPU.
    pub fn report(&self) -> Option<Report> {
        self.executor.as_ref().map(OparaExecutor::report)
    }

    /// Measures the step of batches like this one, as [`OparaExecutor::measure`] does. Variables and optimizer are then as they were.
    ///
    /// # Errors
    /// [`Error::NotMeasurable`](crate::Error::NotMeasurable) for steps that run eagerly, errors of [`step`](Self::step), and errors of
    /// [`OparaExecutor::measure`].
    pub fn measure(&mut self, batch: &[Tensor]) -> Result<Trace> {
        self.put_back(batch, |executor| executor.measure(batch))
    }

    /// The launches of a step with batches like this one, and when each runs, in a replay of median length among several. Variables and
    /// optimizer are then as they were.
    ///
    /// # Errors
    /// The errors of [`measure`](Self::measure) and of [`OparaExecutor::timeline`].
    pub fn timeline(&mut self, batch: &[Tensor]) -> Result<(Trace, Timeline)> {
        self.put_back(batch, |executor| Ok((executor.schedule(batch)?.0, executor.timeline(batch)?)))
    }

    /// Runs the executor of steps with batches like this one, and puts variables and optimizer back as they were.
    fn put_back<R>(&mut self, batch: &[Tensor], run: impl FnOnce(&OparaExecutor) -> Result<R>) -> Result<R> {
        self.build(batch)?;
        let executor = self.executor.as_ref().ok_or(Error::NotMeasurable)?;
        let before = self.optimizer.snapshot()?;
        let found = run(executor);
        self.optimizer.restore(&before)?;
        found
    }

    /// With [`Numerics::Accurate`](crate::Numerics::Accurate) on a GPU, how far each variable's gradient was from double precision at the
    /// latest build.
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

    /// [`save`](Self::save) with the position of a loader.
    ///
    /// # Errors
    /// Those of [`Fused::save`].
    pub fn save_with(&self, path: impl AsRef<Path>, loader: &Loader) -> Result<(), CheckpointError> {
        self.optimizer.save_at(path.as_ref(), Some((loader.order(), loader.position())))
    }

    /// [`load`](Self::load) which also has a loader go on from where the other was.
    ///
    /// # Errors
    /// [`CheckpointError::Loader`] for a file of a loader of other rows, batches or seed, and those of [`Fused::load`].
    pub fn load_with(&mut self, path: impl AsRef<Path>, loader: &mut Loader) -> Result<(), CheckpointError> {
        let position = self.optimizer.load_of(path.as_ref(), Some(loader.order()))?;
        loader.seek(position.unwrap_or_default());
        Ok(())
    }
}
