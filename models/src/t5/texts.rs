//! T5 as the model of an engine: reading a prompt is the encoder's pass, and the decoder's first step.

use std::sync::Arc;

use candle::{bail, Device, Result, Tensor};
use opara_candle::ops;

use super::{Memory, T5};
use crate::engine::{self, Memory as OfTexts, Part, TextModel};

/// Tokens that inputs are filled up to a multiple of: memory of a GPU is aligned to so many.
const FILLED: usize = 128;

/// T5 for inputs and outputs of up to so many tokens.
///
/// ```
/// # use std::sync::Arc;
/// # use candle::{DType, Device::Cpu};
/// use opara_models::engine::{Engine, Options, Request};
/// use opara_models::t5::{Config, Texts, T5};
///
/// let config = Config { n_positions: 128, ..Config::tiny() };
/// let model = Arc::new(T5::load(opara_weights::seeded(7, DType::F32, &Cpu), &config)?);
/// let mut engine = Engine::new(Arc::new(Texts::new(model, 20, 10)?), Options::default())?;
/// let request = Request { prompt: vec![5, 6, 7], most: 10, ends: vec![config.eos_token_id], ..Request::default() };
/// println!("{:?}", engine.generate(&[request], |_, _| ())?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Texts {
    model: Arc<T5>,
    input: usize,
    output: usize,
}

impl Texts {
    /// Inputs are filled up to the longest one, which is a multiple of 128 tokens.
    ///
    /// # Errors
    /// More tokens than `n_positions`.
    pub fn new(model: Arc<T5>, input: usize, output: usize) -> Result<Self> {
        let input = input.max(1).next_multiple_of(FILLED);
        [input, output].into_iter().try_for_each(|tokens| model.encoder.shared.positions.check(tokens))?;
        Ok(Self { model, input, output })
    }
}

impl TextModel for Texts {
    fn device(&self) -> &Device {
        self.model.encoder.shared.embeddings.device()
    }

    fn vocab(&self) -> usize {
        self.model.config.vocab_size
    }

    fn part(&self) -> usize {
        self.input
    }

    fn pages(&self) -> Option<usize> {
        None
    }

    /// The start token stands at 0.
    fn first_position(&self, _: usize) -> usize {
        1
    }

    fn fits(&self, prompt: usize, answer: usize) -> engine::Result<()> {
        let check = |tokens, most, of| match tokens <= most {
            true => Ok(()),
            false => bail!("an {of} of {tokens} tokens, and there is room for {most}"),
        };
        check(prompt, self.input, "input")?;
        Ok(check(answer, self.output, "output")?)
    }

    /// The encoded input and its mask, and the caches of the decoder.
    fn memory(&self, texts: usize) -> Result<Vec<Tensor>> {
        let T5 { config, encoder, blocks, .. } = &*self.model;
        let (embeddings, each) = (&encoder.shared.embeddings, 2 * config.num_heads);
        let (dtype, device) = (embeddings.dtype(), embeddings.device());
        let encoded = Tensor::zeros((texts, blocks.len() * each, self.input, config.d_kv), dtype, device)?;
        let mask = Tensor::zeros((texts, self.input), dtype, device)?;
        Ok([vec![encoded, mask], self.model.caches(texts, self.output.max(1))?].concat())
    }

    fn read(&self, part: &Part, memory: &OfTexts) -> Result<Tensor> {
        let own = part.own()?;
        let Memory { keys_values, mask } = self.model.read(part.ids, Some(&own))?;
        let Some(mask) = mask else { bail!("an encoder without a mask") };
        let texts = own.dim(0)?;
        let is_read = ops::narrow(&own, 1, 0, 1)?;
        let read = [ops::transpose(&keys_values, 0, 1)?, ops::reshape(&mask, (texts, self.input))?];
        for (read, memory) in read.iter().zip(&memory.tensors) {
            let shape: Vec<usize> = std::iter::once(texts).chain(memory.dims()[1..].iter().map(|_| 1)).collect();
            let is_read = ops::broadcast_as(&ops::reshape(&is_read, shape)?, memory.dims())?;
            ops::assign(memory, &ops::where_cond(&is_read, read, memory)?)?;
        }
        let (start, device) = (self.model.config.start_token(), self.device().clone());
        let start = ops::constant("start_token", move || Tensor::full(start, (texts, 1), &device))?;
        self.step(&start, part.starts, memory)
    }

    fn step(&self, tokens: &Tensor, positions: &Tensor, memory: &OfTexts) -> Result<Tensor> {
        let memory = &memory.tensors;
        let [keys_values, mask] = [&memory[0], &memory[1]];
        let texts = mask.dim(0)?;
        let keys_values = ops::transpose(keys_values, 0, 1)?;
        let mask = Some(ops::reshape(mask, (1, texts, 1, self.input))?);
        self.model.step(tokens, positions, &Memory { keys_values, mask }, &memory[2..])
    }
}
