//! Greedy generation: the most likely token, again and again.

use std::sync::{Arc, Mutex, PoisonError};

use candle::{bail, DType, Result, Tensor};
use opara_candle::ops::{self, Sampler, Sampling, NO_TOKEN};
use opara_candle::{Builder, OparaExecutor, StepExecutor, StepState};

use super::{Memory, T5};

/// Maximum number of cached pairs of executors.
const KEPT: usize = 8;

/// Steps that run ahead of the host.
const AHEAD: usize = 4;

/// Writes outputs token by token. One replayed graph encodes the input, and another one, the same for every token, adds a token.
/// Both are built at the first call with inputs of these shapes.
pub struct Generator {
    model: Arc<T5>,
    max_tokens: usize,
    builder: Builder,
    /// The latest last.
    built: Mutex<Vec<(Key, Arc<Executors>)>>,
}

/// Number of texts, and are they masked?
type Key = (usize, bool);

/// The executors of one batch size.
pub struct Executors {
    /// Encodes token ids, with a mask if there is one, for the decoder.
    pub read: OparaExecutor,
    /// Computes the next token from the encoded input and the text so far.
    pub step: StepExecutor<Writing>,
}

/// A text that is being written, as far as the decoder has come.
pub struct Writing {
    /// The last token of each item, `(batch, 1)`.
    token: Tensor,
    /// The position of that token, `(batch)`.
    positions: Tensor,
    /// Chooses the most likely token.
    sampler: Sampler,
    /// One cache per layer.
    caches: Vec<Tensor>,
}

impl Writing {
    fn start(model: &T5, max_tokens: usize, batch: usize) -> Result<Self> {
        let device = model.encoder.shared.embeddings.device();
        let token = Tensor::full(model.config.start_token(), (batch, 1), device)?;
        let positions = Tensor::zeros(batch, DType::U32, device)?;
        let sampler = Sampler::new(&vec![Sampling::default(); batch], device)?;
        Ok(Self { token, positions, sampler, caches: model.caches(batch, max_tokens)? })
    }
}

impl StepState for Writing {
    fn tensors(&self) -> Vec<Tensor> {
        [&self.token, &self.positions].into_iter().chain(&self.caches).cloned().collect()
    }

    fn with(&self, tensors: Vec<Tensor>) -> Self {
        let (token, positions, caches) = (tensors[0].clone(), tensors[1].clone(), tensors[2..].to_vec());
        Self { token, positions, sampler: self.sampler.clone(), caches }
    }
}

impl Generator {
    /// For outputs of at most `max_tokens`, by executors with the given settings.
    ///
    /// # Errors
    /// More tokens than `n_positions`, or none.
    pub fn new(model: Arc<T5>, max_tokens: usize, builder: Builder) -> Result<Self> {
        check(&model, max_tokens)?;
        Ok(Self { model, max_tokens, builder, built: Mutex::default() })
    }

    /// The output tokens of each item, without the end token. `ids` and `attention_mask` are as in
    /// [`T5Encoder::forward`](super::T5Encoder::forward).
    ///
    /// # Errors
    /// Errors of the model and of its executors.
    pub fn generate(&self, ids: &Tensor, attention_mask: Option<&Tensor>) -> Result<Vec<Vec<u32>>> {
        let inputs = inputs(ids, attention_mask);
        let executors = self.executors_for(&inputs)?;
        let memory = executors.read.call(&inputs)?;
        let mut writing = Writing::start(&self.model, self.max_tokens, ids.dim(0)?)?;
        let end = self.model.config.eos_token_id;
        let tokens = executors.step.stream(&mut writing, AHEAD).on(&memory).until([end]).at_most(self.max_tokens);
        collect(ids.dim(0)?, end, tokens.map(|tokens| Ok(tokens?)))
    }

    fn executors_for(&self, inputs: &[Tensor]) -> Result<Arc<Executors>> {
        let key = (inputs[0].dim(0)?, inputs.len() > 1);
        let built = || self.built.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, executors)) = built().iter().find(|(of, _)| *of == key) {
            return Ok(executors.clone());
        }
        // Nothing is locked while the model runs.
        let executors = Arc::new(self.build(inputs)?);
        let mut built = built();
        built.push((key, executors.clone()));
        let surplus = built.len().saturating_sub(KEPT);
        let dropped: Vec<_> = built.drain(..surplus).collect();
        std::mem::drop(built);
        std::mem::drop(dropped);
        Ok(executors)
    }

    fn build(&self, inputs: &[Tensor]) -> Result<Executors> {
        let model = self.model.clone();
        let read = self.builder.clone().build_fn(move |inputs| read(&model, inputs), inputs)?;
        let memory = read.call(inputs)?;
        let writing = Writing::start(&self.model, self.max_tokens, inputs[0].dim(0)?)?;
        let model = self.model.clone();
        let step = move |memory: &[Tensor], writing: &Writing| step(&model, memory, writing);
        Ok(Executors { read, step: self.builder.clone().build_step(step, &memory, &writing)? })
    }

    /// The executors that were built last; `None` before the first call.
    pub fn executors(&self) -> Option<Arc<Executors>> {
        self.built.lock().unwrap_or_else(PoisonError::into_inner).last().map(|(_, executors)| executors.clone())
    }
}

impl T5 {
    /// The same as [`Generator::generate`], without executors.
    ///
    /// # Errors
    /// Errors of the model; more tokens than `n_positions`, or none.
    pub fn generate(&self, ids: &Tensor, attention_mask: Option<&Tensor>, max_tokens: usize) -> Result<Vec<Vec<u32>>> {
        check(self, max_tokens)?;
        let memory = read(self, &inputs(ids, attention_mask))?;
        let writing = Writing::start(self, max_tokens, ids.dim(0)?)?;
        let tokens = (0..max_tokens).map(|_| step(self, &memory, &writing)?[0].flatten_all()?.to_vec1());
        collect(ids.dim(0)?, self.config.eos_token_id, tokens)
    }
}

fn check(model: &T5, max_tokens: usize) -> Result<()> {
    if max_tokens == 0 {
        bail!("an output of no tokens");
    }
    model.encoder.shared.positions.check(max_tokens)
}

fn inputs(ids: &Tensor, mask: Option<&Tensor>) -> Vec<Tensor> {
    std::iter::once(ids).chain(mask).cloned().collect()
}

/// [`T5::read`] on tensors alone.
fn read(model: &T5, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
    let memory = model.read(&inputs[0], inputs.get(1))?;
    Ok(std::iter::once(memory.keys_values).chain(memory.mask).collect())
}

/// Adds the most likely token.
fn step(model: &T5, memory: &[Tensor], writing: &Writing) -> Result<Vec<Tensor>> {
    let Writing { token, positions, sampler, caches } = writing;
    let memory = Memory { keys_values: memory[0].clone(), mask: memory.get(1).cloned() };
    let logits = model.step(token, positions, &memory, caches)?;
    let next = ops::unsqueeze(&ops::sample(&logits, sampler, positions, None)?, 1)?;
    ops::assign(token, &next)?;
    ops::advance(positions, 1)?;
    Ok(vec![next])
}

/// The tokens of each item up to its end token.
fn collect(batch: usize, end: u32, steps: impl Iterator<Item = Result<Vec<u32>>>) -> Result<Vec<Vec<u32>>> {
    let mut outputs = vec![(Vec::new(), true); batch];
    for tokens in steps {
        for ((output, open), token) in outputs.iter_mut().zip(tokens?) {
            *open &= token != end;
            if *open && token == NO_TOKEN {
                bail!("the model's logits are not finite: its weights are not, or its numbers leave the range of their type")
            }
            if *open {
                output.push(token);
            }
        }
        if outputs.iter().all(|(_, open)| !open) {
            break;
        }
    }
    Ok(outputs.into_iter().map(|(output, _)| output).collect())
}
