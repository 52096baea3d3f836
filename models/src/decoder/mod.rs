//! Decoders that write text token by token: Llama 3, Mistral, Qwen2, Qwen3, SmolLM2, Gemma 3, Phi-3.
//!
//! One implementation has what differs between them as [`Config`]. A step takes the new tokens of each sequence and a [`Cache`] of
//! fixed size; where tokens stand is on the device, so that one step serves every length of text.

mod architecture;
mod bound;
mod byte_letters;
mod bytes;
mod cache;
mod config;
mod conversation;
mod dependence;
mod draws;
mod error;
mod generation_config;
mod gguf;
mod gguf_config;
mod gguf_file;
mod gguf_text;
mod gguf_types;
mod header;
mod jinja;
mod kinds;
mod layer;
mod matrix;
mod pieces;
mod room;
mod rotary;
mod sentencepiece;
mod settings;
mod sizes;
mod splits;
mod syntax;
mod template;
mod text;
mod text_model;
mod token_bytes;
mod weights;

use candle::quantized::GgmlDType;
use candle::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use opara_candle::ops::{self, QuantizedWeight};
use opara_candle::scope;
use opara_weights::{Checkpoint, Loaded, WeightsError};

pub use self::architecture::Architecture;
pub use self::cache::Cache;
pub use self::config::{Config, LayerConfig};
pub use self::conversation::{Conversation, Message, PromptEnd};
pub use self::draws::Draws;
pub use self::error::{DecoderError, Result};
pub use self::gguf_file::GgufFile;
pub use self::pieces::Pieces;
pub use self::rotary::{Rotary, Scaling};
pub use self::syntax::{CallForm, CallId, CallSyntax, Syntax};
pub use self::text::Text;
/// A value that chat templates read. The fields of objects keep their order.
pub use minijinja::Value;

use self::gguf::Gguf;
use self::layer::{CachePositions, Layer};
use self::matrix::Matrix;
use self::weights::{Norm, Product, Source};

impl Config {
    /// Of a checkpoint's `config.json`, with what `generation_config.json` says, if there is one: the tokens that end a text, since the former often
    /// lacks the one that ends a turn, and how others are drawn.
    ///
    /// # Errors
    /// Those of [`from_json`](Self::from_json), and files that cannot be read.
    pub fn of_checkpoint(checkpoint: &Checkpoint) -> Result<Self> {
        let mut config = Self::read(&checkpoint.config()?, checkpoint.unread())?;
        let path = checkpoint.config_path().map(|path| path.with_file_name("generation_config.json"));
        if let Some(path) = path.filter(|path| path.is_file()) {
            let text =
                std::fs::read_to_string(&path).map_err(|source| DecoderError::Read { path: path.clone(), source })?;
            let json = serde_json::from_str(&text).map_err(|source| DecoderError::Json { path, source })?;
            config.end_as(&json, checkpoint.unread())?;
        }
        config.check_ends(checkpoint.unread())?;
        Ok(config)
    }

    /// Refuses tensors of a checkpoint that a decoder, once loaded, has not read.
    ///
    /// # Errors
    /// [`WeightsError::UnreadTensors`].
    pub fn check_read(&self, loaded: &Loaded) -> Result<(), WeightsError> {
        let is_of_pictures = |name: &str| {
            let name = name.strip_prefix("model.").unwrap_or(name);
            name.starts_with("vision_tower.") || name.starts_with("multi_modal_projector.")
        };
        let is_gemma = self.architecture == Architecture::Gemma3;
        let is_tied_head = |name: &str| {
            let table = |prefix: &str| format!("{prefix}embed_tokens.weight");
            let tables = ["model.", "language_model.model.", "model.language_model."].map(table);
            self.tied
                && (name == "lm_head.weight" || name == "language_model.lm_head.weight")
                && tables.iter().any(|table| matches!(loaded.is_copy(name, table), Ok(true)))
        };
        loaded.check(|name| is_gemma && is_of_pictures(name) || is_tied_head(name))
    }

    /// Of a GGUF file's header.
    ///
    /// # Errors
    /// [`DecoderError::Gguf`], [`DecoderError::UnknownArchitecture`], [`DecoderError::Config`], [`DecoderError::UnreadGguf`].
    pub fn of_gguf(file: impl Into<GgufFile>) -> Result<Self> {
        let GgufFile { path, unread } = file.into();
        Gguf::open(&path, DType::F32, &Device::Cpu)?.config(unread)
    }
}

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
    /// Loads a checkpoint's weights in `dtype` onto a device, for `batch` texts of up to `context` tokens, and refuses tensors that
    /// the model does not read. [`Checkpoint::allow_unread`] turns that into a warning.
    ///
    /// # Errors
    /// Those of [`load`](Self::load); [`DecoderError::NoRoom`]; [`DecoderError::Weights`].
    pub fn of_checkpoint(
        checkpoint: &Checkpoint,
        config: &Config,
        dtype: DType,
        device: &Device,
        batch: usize,
        context: usize,
    ) -> Result<Self> {
        let loaded = checkpoint.load(dtype, device)?;
        let each = dtype.size_in_bytes() as u64;
        let (kept, elements) = match QuantizedWeight::multiplies_floats(dtype, device)? {
            true => loaded.floats(),
            false => (0, 0),
        };
        let bytes = config.parameters().saturating_sub(elements) * each + kept;
        room::check(config, bytes, batch, context, dtype, device)?;
        let decoder = Self::load(loaded.vb.clone(), config, context)?;
        config.check_read(&loaded)?;
        Ok(decoder)
    }

    /// Loads weights by transformers' names, for texts of up to `context` tokens.
    ///
    /// # Errors
    /// A tensor that is missing or has another shape; a context that is longer than the model's.
    pub fn load(vb: VarBuilder, config: &Config, context: usize) -> Result<Self> {
        Self::of(&Source::of(vb, None), config, context)
    }

    /// The same with matrices quantised to one of GGUF's types while they are loaded, for `batch` texts. Rows of a length that the type's
    /// blocks do not divide stay as they are.
    ///
    /// # Errors
    /// Those of [`load`](Self::load); [`DecoderError::NoRoom`]; on a GPU, a type that
    /// [`QuantizedWeight`] does not know.
    pub fn load_quantized(
        vb: VarBuilder,
        config: &Config,
        to: GgmlDType,
        batch: usize,
        context: usize,
    ) -> Result<Self> {
        let (dtype, device) = (vb.dtype(), vb.device().clone());
        let elements = config.parameters();
        let bytes = match device.is_cpu() {
            true => Some(elements as usize / to.block_size() * to.type_size()),
            false => QuantizedWeight::bytes(to, elements as usize),
        };
        let bytes = bytes.map_or(elements * dtype.size_in_bytes() as u64, |bytes| bytes as u64);
        room::check(config, bytes, batch, context, dtype, &device)?;
        Self::of(&Source::of(vb, Some(to)), config, context)
    }

    /// Loads a GGUF file, for `batch` texts of up to `context` tokens. Quantised weights stay so: on the CPU candle's kernels multiply with
    /// them, on a GPU this library's. There, types that [`QuantizedWeight`] does not know are
    /// expanded into `dtype`. The file's header says whether the device has room.
    ///
    /// # Errors
    /// [`DecoderError::Gguf`] for a damaged file, [`DecoderError::GgufType`], [`DecoderError::UnreadGguf`],
    /// [`DecoderError::UnknownArchitecture`], [`DecoderError::NoRoom`].
    pub fn load_gguf(
        file: impl Into<GgufFile>,
        dtype: DType,
        device: &Device,
        batch: usize,
        context: usize,
    ) -> Result<Self> {
        let GgufFile { path, unread } = file.into();
        let mut gguf = Gguf::open(&path, dtype, device)?;
        let config = gguf.config(unread)?;
        room::check(&config, gguf.bytes(), batch, context, dtype, device)?;
        let source = Source::Gguf(Box::new(gguf));
        let decoder = Self::of(&source, &config, context)?;
        source.check(unread)?;
        Ok(decoder)
    }

    fn of(source: &Source, config: &Config, context: usize) -> Result<Self> {
        let Config { vocab, hidden, eps, one_plus, max_positions: most, .. } = *config;
        config.check()?;
        if context > most {
            return Err(DecoderError::ContextTooLong { context, most });
        }
        let device = source.device();
        let table = source.table("model.embed_tokens", vocab, hidden)?;
        let head = match config.tied {
            true => Product::shared("head", &table, source)?,
            false => source.head("lm_head", vocab, hidden)?,
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
    pub fn cache(&self, batch: usize) -> candle::Result<Cache> {
        Cache::new(&self.config, batch, self.context, self.dtype, &self.device)
    }

    /// The last hidden states of new tokens, `ids` of shape `(batch, tokens)`: `(batch, tokens, hidden)`. Their keys and values are
    /// written to the cache from its position on, which stays as it is.
    ///
    /// # Errors
    /// Shapes that do not agree; on the CPU, tokens beyond the cache's end.
    pub fn forward(&self, ids: &Tensor, cache: &Cache) -> candle::Result<Tensor> {
        self.forward_part(ids, None, cache)
    }

    /// The same of a part that is filled up with other tokens: of each text as many as `counts` says, `(batch)` of u32, have keys and values that
    /// count. Those of the others are zeros, so that nothing of them is in what own tokens see.
    fn forward_part(&self, ids: &Tensor, counts: Option<&Tensor>, cache: &Cache) -> candle::Result<Tensor> {
        let mut x = {
            let _scope = scope("embedding");
            let x = self.table.embed(ids, self.dtype)?.to_dtype(self.dtype)?;
            self.config
                .embedding_scale
                .map_or_else(|| Ok(x.clone()), |scale| ops::affine(&x, self.rounded(scale), 0.))?
        };
        let places =
            CachePositions { start: &cache.position, pages: cache.pages.as_ref(), rotaries: &self.rotaries, counts };
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

    /// Logits of hidden states: `(.., vocab)` of `(.., hidden)`. The bits of more than 64 texts do not depend on their number in `(texts, 1, hidden)`
    /// alone ([`norm_linear`](opara_candle::ops::norm_linear)).
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
