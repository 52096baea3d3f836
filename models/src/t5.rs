//! T5, the encoder and decoder Transformer of Raffel et al., [arXiv:1910.10683](https://arxiv.org/abs/1910.10683), with
//! the gated variants v1.1 and Flan.
//!
//! Tensor names and configuration follow Hugging Face's checkpoints. [`T5Encoder`] and [`T5::forward`] are single
//! passes; [`Texts`] is for an [`Engine`](crate::engine::Engine), which writes token by token.
//!
//! In f16 the residual sums of trained models overflow. Here the residual stream is kept 64 times smaller, which
//! changes nothing else, because every reader normalizes it first.

use candle::{bail, Module, Result, Tensor};
use candle_nn::{Init, VarBuilder};
use opara_candle::nn::{Linear, RmsNorm};
use opara_candle::{ops, scope};
use opara_weights::{Loaded, WeightsError};

mod bias;
mod config;
mod layers;
mod stream;
mod texts;

pub use config::{Config, FeedForwardProj};
pub use texts::Texts;

use crate::mask;
use bias::{Positions, RelativeBias};
use layers::{weight, CrossAttention, FeedForward, Products, SelfAttention};
use stream::{onto_stream, stream_norm, stream_scale, Stream};

/// The common parts of both stacks: embeddings and positions.
struct Shared {
    /// `(vocab_size, d_model)`, at the scale of the residual stream.
    embeddings: Tensor,
    positions: Positions,
}

impl Shared {
    fn load(vb: &VarBuilder, config: &Config) -> Result<Self> {
        config.check()?;
        let names = ["shared", "encoder.embed_tokens", "decoder.embed_tokens"];
        let found = names.iter().find(|name| vb.contains_tensor(&format!("{name}.weight")));
        let init = Init::Randn { mean: 0., stdev: 1. };
        let table = vb.pp(found.unwrap_or(&names[0]));
        let table = table.get_with_hints((config.vocab_size, config.d_model), "weight", init)?;
        Ok(Self { embeddings: onto_stream(table)?, positions: Positions::new(config, vb.device())? })
    }

    fn embed(&self, ids: &Tensor) -> Result<Tensor> {
        let _scope = scope("embed_tokens");
        if ids.rank() != 2 {
            bail!("token ids have the shape (batch, seq), not {:?}", ids.shape());
        }
        ops::embedding(&self.embeddings, ids)
    }
}

struct EncoderBlock {
    name: String,
    attention: SelfAttention,
    feed_forward: FeedForward,
}

impl EncoderBlock {
    fn load(index: usize, vb: VarBuilder, config: &Config) -> Result<Self> {
        Ok(Self {
            name: format!("block.{index}"),
            attention: SelfAttention::load(vb.pp("layer.0"), config)?,
            feed_forward: FeedForward::load(vb.pp("layer.1"), config)?,
        })
    }

    fn forward(&self, x: &mut Stream, bias: &Tensor) -> Result<()> {
        let _scope = scope(&self.name);
        self.attention.forward(x, bias)?;
        self.feed_forward.forward(x)
    }
}

/// The encoder: maps token ids to one vector per token.
pub struct T5Encoder {
    shared: Shared,
    bias: RelativeBias,
    blocks: Vec<EncoderBlock>,
    norm: RmsNorm,
}

impl T5Encoder {
    /// Loads the encoder's tensors and the embeddings below `vb`.
    ///
    /// # Errors
    /// A tensor that is missing or has another shape; an invalid configuration.
    pub fn load(vb: VarBuilder, config: &Config) -> Result<Self> {
        let shared = Shared::load(&vb, config)?;
        let (vb, blocks) = (vb.pp("encoder"), vb.pp("encoder.block"));
        let bias = blocks.pp("0.layer.0.SelfAttention.relative_attention_bias");
        Ok(Self {
            bias: RelativeBias::load(true, &shared.positions, bias, config)?,
            shared,
            blocks: (0..config.num_layers)
                .map(|i| EncoderBlock::load(i, blocks.pp(i), config))
                .collect::<Result<_>>()?,
            norm: stream_norm(config, vb.pp("final_layer_norm"))?,
        })
    }

    /// Computes the last hidden state, `(batch, seq, d_model)`, from token ids, `(batch, seq)`.
    ///
    /// `attention_mask`, of the shape of `ids`, is one for tokens and zero for padding. No mask is equivalent to a mask
    /// of ones, and costs less.
    ///
    /// # Errors
    /// Shapes that do not agree, ids outside the vocabulary, more tokens than `n_positions`.
    pub fn forward(&self, ids: &Tensor, attention_mask: Option<&Tensor>) -> Result<Tensor> {
        let _scope = scope("encoder");
        let mut x = Stream::new(self.shared.embed(ids)?);
        let mut bias = self.bias.square(ids.dim(1)?)?;
        if let Some(mask) = attention_mask {
            bias = ops::add(&bias, &self.score_mask(mask, ids)?)?;
        }
        for block in &self.blocks {
            block.forward(&mut x, &bias)?;
        }
        x.read(&self.norm)
    }

    /// Converts the mask to an additive one for all heads and all queries: `(1, batch, 1, seq)`.
    fn score_mask(&self, mask: &Tensor, ids: &Tensor) -> Result<Tensor> {
        if mask.dims() != ids.dims() {
            bail!("an attention mask of shape {:?} for token ids of shape {:?}", mask.shape(), ids.shape());
        }
        let (batch, seq) = ids.dims2()?;
        mask::additive(&ops::reshape(mask, (1, batch, 1, seq))?, self.bias.dtype())
    }
}

/// Takes one unpadded text per batch item.
impl Module for T5Encoder {
    fn forward(&self, ids: &Tensor) -> Result<Tensor> {
        self.forward(ids, None)
    }
}

struct DecoderBlock {
    name: String,
    attention: SelfAttention,
    cross: CrossAttention,
    feed_forward: FeedForward,
}

impl DecoderBlock {
    fn load(index: usize, vb: VarBuilder, config: &Config) -> Result<Self> {
        Ok(Self {
            name: format!("block.{index}"),
            attention: SelfAttention::load(vb.pp("layer.0"), config)?,
            cross: CrossAttention::load(vb.pp("layer.1"), config)?,
            feed_forward: FeedForward::load(vb.pp("layer.2"), config)?,
        })
    }
}

/// The encoder's results for the decoder, computed once and read for every token.
#[derive(Debug, Clone)]
pub struct Memory {
    /// Keys and values of all decoder layers, `(layers * 2 * heads, batch, seq, d_kv)`.
    pub keys_values: Tensor,
    /// Additive mask for padded inputs, `(1, batch, 1, seq)`.
    pub mask: Option<Tensor>,
}

/// Encoder, decoder and head.
pub struct T5 {
    encoder: T5Encoder,
    /// Keys and values of the cross attention of all layers.
    cross: Products,
    bias: RelativeBias,
    /// The same by head and distance, for a step.
    by_distance: Tensor,
    blocks: Vec<DecoderBlock>,
    norm: RmsNorm,
    head: Linear,
    config: Config,
}

/// Does a tensor repeat the table of embeddings, or is it one that transformers drops, too?
fn is_copy(loaded: &Loaded, name: &str) -> bool {
    const TABLES: [&str; 3] = ["shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"];
    // T5's first checkpoints have a bias more than the model.
    let is_table = name == "lm_head.weight" || TABLES.contains(&name);
    name == "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
        || is_table && TABLES.iter().any(|table| *table != name && matches!(loaded.is_copy(name, table), Ok(true)))
}

impl T5 {
    /// Refuses tensors of a checkpoint that the model, once loaded, has not read.
    ///
    /// # Errors
    /// [`WeightsError::UnreadTensors`].
    pub fn check(loaded: &Loaded) -> std::result::Result<(), WeightsError> {
        loaded.check(|name| is_copy(loaded, name))
    }

    /// Loads the tensors below `vb`.
    ///
    /// # Errors
    /// A tensor that is missing or has another shape; an invalid configuration.
    pub fn load(vb: VarBuilder, config: &Config) -> Result<Self> {
        let encoder = T5Encoder::load(vb.clone(), config)?;
        let blocks = vb.pp("decoder.block");
        let (d_model, inner) = (config.d_model, config.num_heads * config.d_kv);
        let mut cross = Vec::new();
        for index in 0..config.decoder_layers() {
            let vb = blocks.pp(index).pp("layer.1.EncDecAttention");
            cross.extend([weight(d_model, inner, "k", &vb)?, weight(d_model, inner, "v", &vb)?]);
        }
        let bias = blocks.pp("0.layer.0.SelfAttention.relative_attention_bias");
        let norm = vb.pp("decoder.final_layer_norm");
        let (norm, head) = if config.tie_word_embeddings {
            // The head expects vectors of another scale than the decoder's output, and its weights are at the scale of
            // the residual stream.
            let scale = stream_scale(vb.dtype());
            let factor = (d_model as f64).powf(-0.5) / scale;
            let weight = (norm.get_with_hints(d_model, "weight", Init::Const(1.))? * factor)?;
            let norm = RmsNorm::new("final_layer_norm", weight, config.layer_norm_epsilon * scale.powi(2));
            (norm, encoder.shared.embeddings.clone())
        } else {
            (stream_norm(config, norm)?, weight(d_model, config.vocab_size, "lm_head", &vb)?)
        };
        let bias = RelativeBias::load(false, &encoder.shared.positions, bias, config)?;
        Ok(Self {
            cross: Products::new("cross", &cross, config.d_kv)?,
            by_distance: bias.backwards()?,
            bias,
            blocks: (0..config.decoder_layers())
                .map(|i| DecoderBlock::load(i, blocks.pp(i), config))
                .collect::<Result<_>>()?,
            norm,
            head: Linear::new("lm_head", head, None),
            config: config.clone(),
            encoder,
        })
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The encoder alone.
    pub fn encoder(&self) -> &T5Encoder {
        &self.encoder
    }

    /// Computes logits `(batch, len, vocab_size)` for the token after each of `decoder_ids`, `(batch, len)`, which
    /// start with the configuration's start token. `ids` and `attention_mask` are the [encoder's](T5Encoder::forward).
    ///
    /// # Errors
    /// Shapes that do not agree, ids outside the vocabulary, more tokens than `n_positions`.
    pub fn forward(&self, ids: &Tensor, decoder_ids: &Tensor, attention_mask: Option<&Tensor>) -> Result<Tensor> {
        let memory = self.read(ids, attention_mask)?;
        let _scope = scope("decoder");
        let mut x = Stream::new(self.encoder.shared.embed(decoder_ids)?);
        let (batch, len) = decoder_ids.dims2()?;
        if batch != ids.dim(0)? {
            bail!("{} inputs and {batch} outputs in a batch", ids.dim(0)?);
        }
        let bias = self.bias.square(len)?;
        for (layer, block) in self.blocks.iter().enumerate() {
            let _scope = scope(&block.name);
            block.attention.forward(&mut x, &bias)?;
            block.cross.forward(&mut x, &self.of_layer(layer, &memory)?, memory.mask.as_ref())?;
            block.feed_forward.forward(&mut x)?;
        }
        self.head.forward(&x.read(&self.norm)?)
    }

    /// Runs the encoder and computes everything that the decoder reads of its result.
    ///
    /// # Errors
    /// An error of [`T5Encoder::forward`].
    pub fn read(&self, ids: &Tensor, attention_mask: Option<&Tensor>) -> Result<Memory> {
        let encoded = self.encoder.forward(ids, attention_mask)?;
        let mask = attention_mask.map(|mask| self.encoder.score_mask(mask, ids)).transpose()?;
        Ok(Memory { keys_values: self.cross(&encoded)?, mask })
    }

    /// Computes the keys and values of all decoder layers, `(layers * 2 * heads, batch, seq, d_kv)`, from the encoder's
    /// last hidden state.
    ///
    /// # Errors
    /// A shape other than the encoder's.
    pub fn cross(&self, encoded: &Tensor) -> Result<Tensor> {
        self.cross.forward(encoded)
    }

    fn of_layer(&self, layer: usize, memory: &Memory) -> Result<Tensor> {
        let each = 2 * self.config.num_heads;
        ops::narrow(&memory.keys_values, 0, layer * each, each)
    }

    /// Allocates caches with room for `len` tokens, one per layer, for a batch.
    ///
    /// # Errors
    /// More tokens than `n_positions`.
    pub fn caches(&self, batch: usize, len: usize) -> Result<Vec<Tensor>> {
        self.encoder.shared.positions.check(len)?;
        let (embeddings, config) = (&self.encoder.shared.embeddings, &self.config);
        let shape = (batch, 2, config.num_heads, len, config.d_kv);
        self.blocks.iter().map(|_| Tensor::zeros(shape, embeddings.dtype(), embeddings.device())).collect()
    }

    /// One decoding step. `ids`, `(batch, 1)`, are the tokens at `positions`, `(batch)`; `caches` hold the tokens before. Returns the
    /// logits of the next tokens, `(batch, vocab_size)`, and writes keys and values of these to the caches.
    ///
    /// `positions` is a tensor of u32, so that one recording serves all positions. They count from 0 and must be less than the
    /// caches' length; a GPU does not check this. Cache entries from a text's position on are ignored.
    ///
    /// # Errors
    /// Shapes that do not agree, ids outside the vocabulary.
    pub fn step(&self, ids: &Tensor, positions: &Tensor, memory: &Memory, caches: &[Tensor]) -> Result<Tensor> {
        let _scope = scope("decoder");
        if ids.rank() != 2 || ids.dim(1)? != 1 {
            bail!("a step takes ids of the shape (batch, 1), not {:?}", ids.shape());
        }
        if caches.len() != self.blocks.len() || caches.is_empty() {
            bail!("{} caches for {} layers", caches.len(), self.blocks.len());
        }
        let mut x = Stream::new(self.encoder.shared.embed(ids)?);
        for (layer, (block, cache)) in self.blocks.iter().zip(caches).enumerate() {
            let _scope = scope(&block.name);
            block.attention.step(&mut x, &self.by_distance, cache, positions)?;
            block.cross.forward(&mut x, &self.of_layer(layer, memory)?, memory.mask.as_ref())?;
            block.feed_forward.forward(&mut x)?;
        }
        let _scope = scope("lm_head");
        ops::squeeze(&x.read_product(&self.norm, self.head.weight())?, 1)
    }
}
