//! The type of the zoo's entries: a name, and how to make the model with example inputs.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{ensure, Result};
use candle::{DType, Device, Module, Shape, Tensor};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};
use opara_candle::{Builder, OparaExecutor};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// A model of the zoo.
pub struct Entry {
    /// The name on the command line and in tables.
    pub name: &'static str,
    /// Makes the model with example inputs.
    pub build: fn(&Target) -> Result<Model>,
}

/// A forward pass from several tensors to several tensors. It is deterministic: the same inputs give the same outputs.
pub type Function = Rc<dyn Fn(&[Tensor]) -> candle::Result<Vec<Tensor>>>;

/// A forward pass with example inputs.
pub struct Model {
    pub function: Function,
    pub inputs: Vec<Tensor>,
    /// The same model on this library's operators, where there is one.
    pub native: Option<Box<Model>>,
    wrap: Box<Wrap>,
}

/// Builds an executor for the given example inputs.
type Wrap = dyn Fn(Builder, &[Tensor]) -> opara_candle::Result<OparaExecutor>;

impl Model {
    /// Wraps a function of several tensors.
    pub fn new(
        inputs: impl Into<Vec<Tensor>>,
        function: impl Fn(&[Tensor]) -> candle::Result<Vec<Tensor>> + Send + Sync + 'static,
    ) -> Result<Self> {
        let function = Arc::new(function);
        let shared = function.clone();
        let wrap = move |builder: Builder, inputs: &[Tensor]| {
            let function = shared.clone();
            builder.build_fn(move |x| function(x), inputs)
        };
        Ok(Self { function: Rc::new(move |x| function(x)), inputs: inputs.into(), native: None, wrap: Box::new(wrap) })
    }

    /// Wraps a function that is not `Send`. `make` is called here, and again on each executor's own thread. The
    /// functions share the weights.
    pub fn local<F>(
        inputs: impl Into<Vec<Tensor>>,
        weights: VarBuilder<'static>,
        make: fn(VarBuilder<'static>) -> candle::Result<F>,
    ) -> Result<Self>
    where
        F: Fn(&[Tensor]) -> candle::Result<Vec<Tensor>> + 'static,
    {
        let (dtype, device) = (weights.dtype(), weights.device().clone());
        let weights =
            VarBuilder::from_backend(Box::new(Shared { all: weights, drawn: Mutex::default() }), dtype, device);
        let function = Rc::new(make(weights.clone())?);
        let wrap = move |builder: Builder, inputs: &[Tensor]| {
            let weights = weights.clone();
            builder.build_local(move || make(weights), inputs)
        };
        Ok(Self { function, inputs: inputs.into(), native: None, wrap: Box::new(wrap) })
    }

    /// Builds an executor.
    ///
    /// # Errors
    /// An error of the builder.
    pub fn executor(&self, builder: Builder) -> opara_candle::Result<OparaExecutor> {
        (self.wrap)(builder, &self.inputs)
    }

    /// Wraps a module and its input.
    pub fn module(module: impl Module + Send + Sync + 'static, input: Tensor) -> Result<Self> {
        Self::new([input], move |x| Ok(vec![module.forward(&x[0])?]))
    }

    /// Wraps a model with internal state, such as a cache. Every call uses a fresh clone, which shares the weights.
    pub fn fresh<M: Clone + Send + Sync + 'static>(
        model: M,
        inputs: impl Into<Vec<Tensor>>,
        forward: impl Fn(&mut M, &[Tensor]) -> candle::Result<Tensor> + Send + Sync + 'static,
    ) -> Result<Self> {
        Self::new(inputs, move |x| Ok(vec![forward(&mut model.clone(), x)?]))
    }
}

/// The device and dtype of a model, and the number of items in its inputs.
pub struct Target {
    pub device: Device,
    pub dtype: DType,
    pub batch: usize,
    /// Factor of convolutions' weights.
    pub gain: f32,
}

impl Target {
    /// Random weights, the same at every call.
    pub fn weights(&self) -> VarBuilder<'static> {
        opara_weights::seeded_with_gain(0, self.gain, self.dtype, &self.device)
    }

    /// Random weights without the tensors for which `absent` holds, given name and shape. Some models probe for tensors
    /// that their checkpoint lacks, and choose their architecture by the result.
    pub fn weights_without(&self, absent: fn(&str, &[usize]) -> bool) -> VarBuilder<'static> {
        let checkpoint = Checkpoint { all: self.weights(), absent };
        VarBuilder::from_backend(Box::new(checkpoint), self.dtype, self.device.clone())
    }

    /// Values with mean 0 and variance 1, the same at every call, of an entry that has no other batch.
    pub fn noise(&self, shape: impl Into<Shape>) -> Result<Tensor> {
        self.one_item()?;
        self.values(shape.into())
    }

    /// The same for each item of a batch.
    pub fn noises(&self, item: impl Into<Shape>) -> Result<Tensor> {
        self.values([&[self.batch], item.into().dims()].concat().into())
    }

    fn values(&self, shape: Shape) -> Result<Tensor> {
        // As a matrix with one column (fan-in 1), seeded values have variance 1.
        Ok(self.weights().get((shape.elem_count(), 1), "noise")?.reshape(shape)?)
    }

    /// A batch of images with three channels of `size` by `size` pixels.
    pub fn image(&self, size: usize) -> Result<Tensor> {
        self.noises((3, size, size))
    }

    /// A batch of sentences, with token ids spread over the vocabulary.
    pub fn tokens(&self, length: usize, vocabulary: u32) -> Result<Tensor> {
        self.spread((self.batch, length).into(), vocabulary)
    }

    /// Indices below `end`, spread over its range, of an entry that has no other batch.
    pub fn ids(&self, shape: impl Into<Shape>, end: u32) -> Result<Tensor> {
        self.one_item()?;
        self.spread(shape.into(), end)
    }

    fn spread(&self, shape: Shape, end: u32) -> Result<Tensor> {
        let ids = (0..shape.elem_count() as u32).map(|i| (i * 7919 + 101) % end).collect();
        Ok(Tensor::from_vec(ids, shape, &self.device)?)
    }

    fn one_item(&self) -> Result<()> {
        ensure!(self.batch == 1, "its inputs have one item: leave --batch out");
        Ok(())
    }
}

/// Random weights without some tensors.
struct Checkpoint {
    all: VarBuilder<'static>,
    absent: fn(&str, &[usize]) -> bool,
}

impl SimpleBackend for Checkpoint {
    fn get(&self, shape: Shape, name: &str, init: Init, dtype: DType, _: &Device) -> candle::Result<Tensor> {
        if (self.absent)(name, shape.dims()) {
            return Err(candle::Error::CannotFindTensor { path: name.into() });
        }
        self.all.get_with_hints_dtype(shape, name, init, dtype)
    }

    fn get_unchecked(&self, name: &str, dtype: DType, _: &Device) -> candle::Result<Tensor> {
        self.all.get_unchecked_dtype(name, dtype)
    }

    fn contains_tensor(&self, name: &str) -> bool {
        !(self.absent)(name, &[])
    }
}

/// Weights that hand out the same tensor at every request.
struct Shared {
    all: VarBuilder<'static>,
    drawn: Mutex<HashMap<String, Tensor>>,
}

impl SimpleBackend for Shared {
    fn get(&self, shape: Shape, name: &str, init: Init, dtype: DType, _: &Device) -> candle::Result<Tensor> {
        let mut drawn = self.drawn.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(tensor) = drawn.get(name).filter(|t| *t.shape() == shape && t.dtype() == dtype) {
            return Ok(tensor.clone());
        }
        let tensor = self.all.get_with_hints_dtype(shape, name, init, dtype)?;
        drawn.insert(name.into(), tensor.clone());
        Ok(tensor)
    }

    fn get_unchecked(&self, name: &str, dtype: DType, _: &Device) -> candle::Result<Tensor> {
        self.all.get_unchecked_dtype(name, dtype)
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.all.contains_tensor(name)
    }
}

/// Parses a configuration from the fields of its published `config.json`.
pub fn config<T: DeserializeOwned>(json: Value) -> Result<T> {
    Ok(serde_json::from_value(json)?)
}
