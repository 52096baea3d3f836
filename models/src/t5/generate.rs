//! Greedy generation: the most likely token, again and again.

use std::sync::{Arc, OnceLock};

use candle::{bail, Result, Tensor};
use opara_candle::{ops, Builder, OparaExecutor};

use super::{Memory, T5};

/// Writes outputs token by token. What reads the input is one replayed graph, and what adds a token is another, the same
/// for every token; both are made at the first call and anew for other shapes.
pub struct Generator {
    model: Arc<T5>,
    max_tokens: usize,
    builder: Builder,
    plain: OnceLock<Executors>,
    masked: OnceLock<Executors>,
}

struct Executors {
    read: OparaExecutor,
    step: OparaExecutor,
}

impl Generator {
    /// For outputs of at most `max_tokens`, by executors with the given settings.
    ///
    /// # Errors
    /// More tokens than `n_positions`, or none.
    pub fn new(model: Arc<T5>, max_tokens: usize, builder: Builder) -> Result<Self> {
        check(&model, max_tokens)?;
        Ok(Self { model, max_tokens, builder, plain: OnceLock::new(), masked: OnceLock::new() })
    }

    /// The tokens of one output an item, without the end token; `ids` and `attention_mask` are those of
    /// [`T5Encoder::forward`](super::T5Encoder::forward).
    ///
    /// # Errors
    /// Those of the model and of its executors.
    pub fn generate(&self, ids: &Tensor, attention_mask: Option<&Tensor>) -> Result<Vec<Vec<u32>>> {
        let inputs = inputs(ids, attention_mask);
        let executors = if attention_mask.is_some() { &self.masked } else { &self.plain };
        let executors = match executors.get() {
            Some(executors) => executors,
            None => {
                let built = self.build(&inputs)?;
                executors.get_or_init(|| built)
            }
        };
        let read = |inputs: &[Tensor]| Ok(executors.read.call(inputs)?);
        let step = |state: &[Tensor]| Ok(executors.step.call(state)?);
        greedy(&self.model, self.max_tokens, &inputs, read, step)
    }

    fn build(&self, inputs: &[Tensor]) -> Result<Executors> {
        let model = self.model.clone();
        let read = self.builder.clone().build_fn(move |inputs| read(&model, inputs), inputs)?;
        // Somewhere in the middle, so that the second position that a recording is checked with is another one.
        let example = start(&self.model, self.max_tokens, self.max_tokens as u32 / 2, read.call(inputs)?)?;
        let model = self.model.clone();
        let step = self.builder.clone().build_fn(move |state| step(&model, state), &example)?;
        Ok(Executors { read, step })
    }

    /// What reads the input, and what adds a token: those for masked inputs, once there were any.
    pub fn executors(&self) -> Option<(&OparaExecutor, &OparaExecutor)> {
        self.masked.get().or(self.plain.get()).map(|built| (&built.read, &built.step))
    }
}

impl T5 {
    /// The same as [`Generator::generate`], without executors.
    ///
    /// # Errors
    /// Those of the model; more tokens than `n_positions`, or none.
    pub fn generate(&self, ids: &Tensor, attention_mask: Option<&Tensor>, max_tokens: usize) -> Result<Vec<Vec<u32>>> {
        check(self, max_tokens)?;
        let inputs = inputs(ids, attention_mask);
        greedy(self, max_tokens, &inputs, |inputs| read(self, inputs), |state| step(self, state))
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

/// What a step takes: the last token of each item, where it stands, one cache a layer, and the memory.
fn start(model: &T5, max_tokens: usize, position: u32, memory: Vec<Tensor>) -> Result<Vec<Tensor>> {
    let (batch, device) = (memory[0].dim(1)?, memory[0].device());
    let token = Tensor::full(model.config.start_token(), (batch, 1), device)?;
    let position = Tensor::new(&[position], device)?;
    Ok([token, position].into_iter().chain(model.caches(batch, max_tokens)?).chain(memory).collect())
}

/// [`T5::step`] on tensors alone: from a state to the part of the next one that differs, with the most likely token.
fn step(model: &T5, state: &[Tensor]) -> Result<Vec<Tensor>> {
    let (token, position) = (&state[0], &state[1]);
    let (caches, memory) = state[2..].split_at(model.blocks.len());
    let memory = Memory { keys_values: memory[0].clone(), mask: memory.get(1).cloned() };
    let step = model.step(token, position, &memory, caches)?;
    let token = ops::unsqueeze(&ops::argmax(&step.logits, 1)?, 1)?;
    let position = ops::affine(position, 1., 1.)?;
    Ok([token, position].into_iter().chain(step.caches).collect())
}

fn greedy(
    model: &T5,
    max_tokens: usize,
    inputs: &[Tensor],
    read: impl Fn(&[Tensor]) -> Result<Vec<Tensor>>,
    step: impl Fn(&[Tensor]) -> Result<Vec<Tensor>>,
) -> Result<Vec<Vec<u32>>> {
    let mut state = start(model, max_tokens, 0, read(inputs)?)?;
    let mut outputs = vec![(Vec::new(), true); inputs[0].dim(0)?];
    for _ in 0..max_tokens {
        let next = step(&state)?;
        state.splice(..next.len(), next);
        let tokens = state[0].flatten_all()?.to_vec1::<u32>()?;
        for ((output, open), token) in outputs.iter_mut().zip(tokens) {
            *open &= token != model.config.eos_token_id;
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
