//! Models that a program makes itself.

use std::sync::Arc;

use anyhow::Result;
use axum::Router;
use candle::Tensor;
use opara_candle::OparaExecutor;

use crate::batch::{Metrics, Registry};
use crate::model::{Loader, Model, Models, TensorModel};
use crate::protocol::Service;

use super::routes::router;
use super::settings::Settings;

/// Models that a program makes itself, served like models of checkpoints: over the Open Inference Protocol, with batches of the
/// rows of many requests, limits, keys, metrics and an orderly end.
///
/// ```
/// use candle::{DType, Device, Module, Tensor};
/// use opara_serve::server::{OwnModels, Settings};
///
/// # fn main() -> anyhow::Result<()> {
/// let module = candle_nn::linear(4, 2, candle_nn::VarBuilder::zeros(DType::F32, &Device::Cpu))?;
/// let example = [Tensor::zeros((1, 4), DType::F32, &Device::Cpu)?];
/// let models = OwnModels::new(Settings::default())
///     .module("scores", move |x| Ok(vec![module.forward(&x[0])?]), &example, [1, 2, 4, 8])?;
/// let served = models.run(); // a future: HTTP and gRPC on port 8000, until a signal asks to stop
/// # drop(served);
/// # Ok(())
/// # }
/// ```
pub struct OwnModels {
    settings: Settings,
    registry: Arc<Registry>,
    models: Vec<(String, Arc<dyn Model>)>,
}

impl OwnModels {
    /// None yet. Of the settings those of checkpoints are not read.
    pub fn new(settings: Settings) -> Self {
        Self { settings, registry: Arc::default(), models: Vec::new() }
    }

    /// Adds a module, wrapped in an executor: a function of tensors whose first dimension is rows, for batches of these numbers of rows.
    ///
    /// # Errors
    /// Those of [`OparaExecutor::new`] and [`TensorModel::new`].
    pub fn module<F>(
        self,
        name: &str,
        forward: F,
        example: &[Tensor],
        batches: impl IntoIterator<Item = usize>,
    ) -> Result<Self>
    where
        F: Fn(&[Tensor]) -> candle::Result<Vec<Tensor>> + Send + Sync + 'static,
    {
        let batches: Vec<usize> = batches.into_iter().collect();
        let builder = OparaExecutor::builder().max_shapes(batches.len() + 1);
        self.executor(name, builder.build_fn(forward, example)?, example, batches)
    }

    /// Adds an executor, whose inputs and outputs have rows along their first dimension. `example` is what it was built for.
    ///
    /// # Errors
    /// Those of [`TensorModel::new`].
    pub fn executor(
        self,
        name: &str,
        executor: OparaExecutor,
        example: &[Tensor],
        batches: impl IntoIterator<Item = usize>,
    ) -> Result<Self> {
        let model = TensorModel::new(executor, example, batches, self.metrics(name))?;
        Ok(self.model(name, model))
    }

    /// Adds a model of any kind.
    pub fn model(mut self, name: &str, model: impl Model) -> Self {
        self.models.push((name.to_owned(), Arc::new(model)));
        self
    }

    /// Where a model of this name is counted.
    pub fn metrics(&self, name: &str) -> Metrics {
        self.registry.model(name)
    }

    fn models(models: Vec<(String, Arc<dyn Model>)>) -> Models {
        let loader = |(name, model): (String, Arc<dyn Model>)| {
            let loader: Loader = Arc::new(move || Ok(model.clone()));
            (name, loader)
        };
        Models::new(models.into_iter().map(loader))
    }

    /// All routes over these models, for a server of the program's own.
    ///
    /// # Errors
    /// A file of keys that cannot be read.
    pub fn router(self) -> Result<Router> {
        let Self { settings, registry, models } = self;
        let names: Vec<String> = models.iter().map(|(name, _)| name.clone()).collect();
        let models = Arc::new(Self::models(models));
        for name in names {
            models.load(&name).map_err(|failure| anyhow::anyhow!(failure.message))?;
        }
        router(&Service { models, registry, limits: settings.limits(), may_control: false }, &settings)
    }

    /// Serves until a signal asks to stop, then drains.
    ///
    /// # Errors
    /// Ports and files that cannot be used.
    pub async fn run(self) -> Result<()> {
        let Self { settings, registry, models } = self;
        super::serve(Self::models(models), registry, settings).await
    }
}
