//! A decoder of any type, with what adds tokens to its text.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use candle::{DType, Device, Result, Shape, Tensor};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};
use opara_candle::{Builder, DecoderExecutor};

/// Adds tokens `(rows, n)` to the texts of a model, and gives logits.
pub trait Text: Send + Sync {
    fn forward(&mut self, tokens: &Tensor, position: usize) -> Result<Tensor>;
    /// Another model with the same texts; `None` if it cannot be cloned.
    fn cloned(&self) -> Option<Box<dyn Text>>;
}

impl Clone for Box<dyn Text> {
    fn clone(&self) -> Self {
        self.cloned().expect("the model is Clone")
    }
}

type Forward<M> = fn(&mut M, &Tensor, usize) -> Result<Tensor>;

struct Of<M>(M, Forward<M>, Option<fn(&M) -> M>);

impl<M: Send + Sync + 'static> Text for Of<M> {
    fn forward(&mut self, tokens: &Tensor, position: usize) -> Result<Tensor> {
        (self.1)(&mut self.0, tokens, position)
    }

    fn cloned(&self) -> Option<Box<dyn Text>> {
        let clone = self.2?;
        Some(Box::new(Self(clone(&self.0), self.1, self.2)))
    }
}

/// A model that can be cloned, without a text.
pub fn cloned<M: Clone + Send + Sync + 'static>(model: M, forward: Forward<M>) -> Result<Box<dyn Text>> {
    Ok(Box::new(Of(model, forward, Some(M::clone))))
}

/// A model that cannot.
pub fn made<M: Send + Sync + 'static>(model: M, forward: Forward<M>) -> Result<Box<dyn Text>> {
    Ok(Box::new(Of(model, forward, None)))
}

/// Makes a model with these weights.
pub type Make = fn(&VarBuilder<'static>) -> Result<Box<dyn Text>>;

/// An executor of such a model.
pub fn executor(
    builder: Builder,
    make: Make,
    weights: &VarBuilder<'static>,
    example: &Tensor,
    capacity: usize,
) -> opara_candle::Result<DecoderExecutor<Box<dyn Text>>> {
    let forward = |text: &mut Box<dyn Text>, tokens: &Tensor, position| text.forward(tokens, position);
    let model = make(weights)?;
    match model.cloned() {
        Some(model) => builder.build_decoder(model, forward, example, capacity),
        None => {
            let weights = weights.clone();
            builder.build_decoder_from(move || make(&weights), forward, example, capacity)
        }
    }
}

/// Weights that all models share, like the weights of a file. Small ones, so that the scores of heads differ little and states stay finite.
struct Shared {
    of: VarBuilder<'static>,
    made: Mutex<HashMap<String, Tensor>>,
}

impl SimpleBackend for Shared {
    fn get(&self, shape: Shape, name: &str, _: Init, _: DType, _: &Device) -> Result<Tensor> {
        let mut made = self.made.lock().expect("no panic holds this lock");
        if let Some(tensor) = made.get(name) {
            return Ok(tensor.clone());
        }
        let tensor = self.of.get(shape, name)?;
        made.insert(name.into(), tensor.clone());
        Ok(tensor)
    }

    /// Of a tensor whose shape the model reads: a projection to few elements.
    fn get_unchecked(&self, name: &str, dtype: DType, device: &Device) -> Result<Tensor> {
        self.get((super::models::HIDDEN, 32).into(), name, Init::Const(0.), dtype, device)
    }

    fn contains_tensor(&self, _: &str) -> bool {
        true
    }
}

/// Random weights.
pub fn weights(dtype: DType, device: &Device) -> VarBuilder<'static> {
    let backend = Shared { of: opara_weights::seeded(3, dtype, device), made: Mutex::default() };
    VarBuilder::from_backend(Box::new(backend), dtype, device.clone())
}

/// Holds a model beside the cache that its texts have.
pub struct Beside<M, C> {
    pub model: Arc<M>,
    pub cache: C,
}

impl<M, C: Clone> Clone for Beside<M, C> {
    fn clone(&self) -> Self {
        Self { model: self.model.clone(), cache: self.cache.clone() }
    }
}
