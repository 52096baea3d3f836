//! Decoders that write text token by token: Llama 3, Mistral, Qwen2, Qwen3, SmolLM2, Gemma 3, Phi-3.
//!
//! One implementation has what differs between them as [`Config`]. A step takes the new tokens of each sequence and a [`Cache`] of
//! fixed size; where tokens stand is on the device, so that one step serves every length of text.

mod cache;
mod config;
mod error;
mod gguf;
mod layer;
mod room;
mod rotary;
mod sizes;
mod weights;

use std::path::Path;

use candle::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use opara_candle::{ops, scope};

pub use self::cache::Cache;
pub use self::config::{Architecture, Config, LayerConfig};
pub use self::error::{DecoderError, Result};
pub use self::rotary::{Rotary, Scaling};

use self::gguf::Gguf;
use self::layer::{Layer, Places};
use self::weights::{Matrix, Norm, Product, Source};

/// A decoder with its weights, for texts of up to a number of tokens.
///
/// ```
/// # use candle::{DType, Device::Cpu, Tensor};
/// # use opara_models::decoder::{Cache, Config, Decoder};
/// let config = Config::tiny();
/// let model = Decoder::load(opara_weights::seeded(7, DType::F32, &Cpu), &config, 64)?;
/// let cache = model.cache(1)?;
/// let hidden = model.forward(&Tensor::new(&[[3u32, 1, 4]], &Cpu)?, &cache)?; // (batch, tokens)
/// assert_eq!(model.logits(&hidden)?.dims(), [1, 3, config.vocab]);
/// # Ok::<(), opara_models::decoder::DecoderError>(())
/// ```
pub struct Decoder {
    config: Config,
    context: usize,
    table: Matrix,
    layers: Vec<Layer>,
    norm: Norm,
    head: Product,
    /// Of each kind, by position.
    rotaries: Vec<Tensor>,
    dtype: DType,
    device: Device,
}

impl Decoder {
    /// Loads weights by transformers' names, for texts of up to `context` tokens.
    ///
    /// # Errors
    /// A tensor that is missing or has another shape; a context that is longer than the model's.
    pub fn load(vb: VarBuilder, config: &Config, context: usize) -> Result<Self> {
        Self::of(&Source::of(vb), config, context)
    }

    /// Loads a GGUF file. Quantised weights stay so on the CPU, where candle's kernels multiply with them; on a GPU they are
    /// expanded into `dtype`. The device must have room for them and for the cache of `batch` sequences.
    ///
    /// # Errors
    /// [`DecoderError::Gguf`] for a damaged file, [`DecoderError::UnknownArchitecture`], [`DecoderError::NoRoom`].
    pub fn load_gguf(path: &Path, dtype: DType, device: &Device, batch: usize, context: Option<usize>) -> Result<Self> {
        let mut gguf = Gguf::open(path, dtype, device)?;
        let config = gguf.config()?;
        let context = context.unwrap_or(config.max_positions);
        room::check(&config, gguf.bytes(), batch, context, dtype, device)?;
        Self::of(&Source::Gguf(Box::new(gguf)), &config, context)
    }

    fn of(source: &Source, config: &Config, context: usize) -> Result<Self> {
        let Config { vocab, hidden, eps, one_plus, max_positions, .. } = *config;
        config.check()?;
        if context > max_positions {
            let error = DecoderError::TooLong { prompt: 0, answer: context, context: max_positions, most: max_positions };
            return Err(error);
        }
        let device = source.device();
        let table = source.table("model.embed_tokens", vocab, hidden)?;
        let head = match config.tied {
            true => Product::shared("head", &table)?,
            false => source.product("head", &[("lm_head", vocab)], hidden, false)?,
        };
        let layers = (0..config.layers.len()).map(|at| Layer::load(source, config, at));
        let rotaries = config.rotaries.iter().map(|rotary| rotary.table(Cache::places(context), context, device));
        Ok(Self {
            context,
            table,
            layers: layers.collect::<candle::Result<_>>()?,
            norm: Norm::load(source, "model.norm", hidden, eps, one_plus)?,
            head,
            rotaries: rotaries.collect::<candle::Result<_>>()?,
            dtype: source.dtype(),
            device: device.clone(),
            config: config.clone(),
        })
    }

    /// What the model is.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Tokens of the longest text.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Type of activations.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Where the weights are.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// An empty cache for `batch` sequences.
    ///
    /// # Errors
    /// No memory left.
    pub fn cache(&self, batch: usize) -> Result<Cache> {
        Cache::new(&self.config, batch, self.context, self.dtype, &self.device)
    }

    /// The last hidden states of new tokens, `ids` of shape `(batch, tokens)`: `(batch, tokens, hidden)`. Their keys and values are
    /// written to the cache from its position on, which stays as it is.
    ///
    /// # Errors
    /// Shapes that do not agree; on the CPU, tokens beyond the cache's end.
    pub fn forward(&self, ids: &Tensor, cache: &Cache) -> candle::Result<Tensor> {
        let mut x = {
            let _scope = scope("embedding");
            let x = self.table.embed(ids)?.to_dtype(self.dtype)?;
            self.config.embedding_scale.map_or_else(|| Ok(x.clone()), |scale| ops::affine(&x, self.rounded(scale), 0.))?
        };
        let places = Places { start: &cache.position, rotaries: &self.rotaries };
        for (at, (layer, cache)) in self.layers.iter().zip(&cache.layers).enumerate() {
            let _scope = scope(&at.to_string());
            x = layer.forward(&x, cache, &places)?;
        }
        Ok(x)
    }

    /// A factor as the model's type has it: transformers keeps Gemma's so.
    fn rounded(&self, factor: f64) -> f64 {
        match self.dtype {
            DType::F16 => half::f16::from_f64(factor).to_f64(),
            DType::BF16 => half::bf16::from_f64(factor).to_f64(),
            _ => factor as f32 as f64,
        }
    }

    /// Logits of hidden states: `(.., vocab)` of `(.., hidden)`.
    ///
    /// # Errors
    /// Those of the operators.
    pub fn logits(&self, hidden: &Tensor) -> candle::Result<Tensor> {
        let logits = self.head.forward(hidden, Some(&self.norm), None)?;
        match self.config.logit_cap {
            None => Ok(logits),
            Some(cap) => ops::affine(&ops::tanh(&ops::affine(&logits, 1. / cap, 0.)?)?, cap, 0.),
        }
    }
}
