//! BERT, the bidirectional Transformer encoder of Devlin et al., [arXiv:1810.04805](https://arxiv.org/abs/1810.04805).
//!
//! Tensor names and configuration follow Hugging Face's checkpoints.

use candle::{bail, DType, Module, Result, Tensor};
use candle_nn::{Init, VarBuilder};
use opara_candle::nn::{embedding, layer_norm, linear, Embedding, LayerNorm, Linear, PackedLinear};
use opara_candle::ops::{self, Activation};
use opara_candle::scope;

use crate::mask;

mod config;

pub use config::{Config, HiddenAct};

/// A layer norm, whose tensors were called `gamma` and `beta` before 2019.
fn norm(size: usize, config: &Config, vb: VarBuilder) -> Result<LayerNorm> {
    let is_old = !vb.contains_tensor("weight") && vb.contains_tensor("gamma");
    let vb = match is_old {
        true => {
            let old = |name: &str| {
                name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
            };
            vb.root().rename_f(old).pp(vb.prefix())
        }
        false => vb,
    };
    layer_norm(size, config.layer_norm_eps, vb)
}

/// The sum of word, position and token type embeddings.
struct Embeddings {
    word: Embedding,
    token_type: Embedding,
    /// Row `i` is the embedding of position `i`, so that a slice of the table replaces a lookup.
    position: Tensor,
    norm: LayerNorm,
    /// Where the tables' rows are not as wide as hidden states.
    project: Option<Linear>,
}

impl Embeddings {
    fn load(model: &VarBuilder, config: &Config) -> Result<Self> {
        let (vb, size, hidden) = (model.pp("embeddings"), config.embedding_size, config.hidden_size);
        let positions = (config.max_position_embeddings, size);
        let init = Init::Randn { mean: 0., stdev: 1. };
        let project = || linear(size, hidden, model.pp("embeddings_project"));
        Ok(Self {
            word: embedding(config.vocab_size, size, vb.pp("word_embeddings"))?,
            token_type: embedding(config.type_vocab_size, size, vb.pp("token_type_embeddings"))?,
            position: vb.pp("position_embeddings").get_with_hints(positions, "weight", init)?,
            norm: norm(size, config, vb.pp("LayerNorm"))?,
            project: (size != hidden).then(project).transpose()?,
        })
    }

    /// Of tokens that stand where `positions` say, or each text's from the first position on.
    fn forward(&self, input_ids: &Tensor, token_type_ids: &Tensor, positions: Option<&Tensor>) -> Result<Tensor> {
        let _scope = scope("embeddings");
        // The whole table is the weight itself: candle's `narrow` gives it back, which a recording on the CPU would take for
        // the result of an operator.
        let position = match (positions, input_ids.dim(1)?) {
            (Some(positions), _) => ops::embedding(&self.position, positions)?,
            (None, tokens) if tokens == self.position.dim(0)? => self.position.clone(),
            (None, tokens) => ops::narrow(&self.position, 0, 0, tokens)?,
        };
        let rest = ops::add(&self.token_type.forward(token_type_ids)?, &position)?;
        let sum = self.norm.forward_add(&self.word.forward(input_ids)?, None, &rest)?;
        self.project.as_ref().map_or(Ok(sum.clone()), |project| project.forward(&sum))
    }
}

/// The keys that queries see.
#[derive(Clone, Copy)]
enum Sight<'a> {
    All,
    /// Keys whose scores an additive mask leaves.
    Mask(&'a Tensor),
    /// Keys in the range of each query.
    Ranges(&'a Tensor),
}

/// The end of both halves of a layer: projection, residual connection, normalization.
struct Output {
    dense: PackedLinear,
    norm: LayerNorm,
}

impl Output {
    fn load(input: usize, config: &Config, vb: VarBuilder) -> Result<Self> {
        Ok(Self {
            dense: linear(input, config.hidden_size, vb.pp("dense"))?.packed()?,
            norm: norm(config.hidden_size, config, vb.pp("LayerNorm"))?,
        })
    }

    fn forward(&self, x: &Tensor, residual: &Tensor) -> Result<Tensor> {
        let _scope = scope("output");
        self.norm.forward_add(&self.dense.forward_no_bias(x)?, self.dense.bias(), residual)
    }
}

/// Multi-head self-attention.
struct Attention {
    /// Queries, keys and values by one product, which is faster than three.
    projection: PackedLinear,
    output: Output,
    heads: usize,
}

impl Attention {
    fn load(vb: VarBuilder, config: &Config) -> Result<Self> {
        let hidden = config.hidden_size;
        let load = |name: &str| linear(hidden, hidden, vb.pp("self").pp(name));
        let parts = [load("query")?, load("key")?, load("value")?];
        let weight = Tensor::cat(&parts.each_ref().map(Linear::weight), 0)?;
        let bias = Tensor::cat(&parts.iter().filter_map(Linear::bias).collect::<Vec<_>>(), 0)?;
        Ok(Self {
            projection: Linear::new("qkv", weight, Some(bias)).packed()?,
            output: Output::load(hidden, config, vb.pp("output"))?,
            heads: config.num_attention_heads,
        })
    }

    fn forward(&self, x: &Tensor, sight: Sight) -> Result<Tensor> {
        let _scope = scope("attention");
        let ((batch, seq, hidden), heads) = (x.dims3()?, self.heads);
        let dim = hidden / heads;
        // Attention reads strided heads in place.
        let all = ops::reshape(&self.projection.forward(x)?, (batch, seq, 3 * heads, dim))?;
        let all = ops::transpose(&all, 1, 2)?;
        let part = |index: usize| ops::narrow(&all, 1, index * heads, heads);
        let (query, key, value) = (part(0)?, part(1)?, part(2)?);
        let scale = (dim as f64).sqrt().recip();
        let context = match sight {
            Sight::All => ops::attention(&query, &key, &value, None, scale),
            Sight::Mask(mask) => ops::attention(&query, &key, &value, Some(mask), scale),
            Sight::Ranges(ranges) => ops::ranged_attention(&query, &key, &value, ranges, scale),
        }?;
        self.output.forward(&ops::merge_heads(&context)?, x)
    }
}

/// One encoder layer: attention, then a feed-forward network.
struct Layer {
    name: String,
    attention: Attention,
    intermediate: PackedLinear,
    activation: Activation,
    output: Output,
}

impl Layer {
    fn load(index: usize, vb: VarBuilder, config: &Config) -> Result<Self> {
        Ok(Self {
            name: format!("layer.{index}"),
            attention: Attention::load(vb.pp("attention"), config)?,
            intermediate: linear(config.hidden_size, config.intermediate_size, vb.pp("intermediate.dense"))?
                .packed()?,
            activation: config.hidden_act.into(),
            output: Output::load(config.intermediate_size, config, vb.pp("output"))?,
        })
    }

    fn forward(&self, x: &Tensor, sight: Sight) -> Result<Tensor> {
        let _scope = scope(&self.name);
        let x = self.attention.forward(x, sight)?;
        let intermediate = {
            let _scope = scope("intermediate");
            self.intermediate.forward_act(&x, self.activation)?
        };
        self.output.forward(&intermediate, &x)
    }
}

/// The encoder without a head: maps token ids to one vector per token.
pub struct BertModel {
    embeddings: Embeddings,
    layers: Vec<Layer>,
}

impl BertModel {
    /// Is this the name of a tensor of the pooler or of a head for training, on which the encoder's results do not depend?
    pub fn is_head(name: &str) -> bool {
        let name = name.strip_prefix("bert.").unwrap_or(name);
        name.starts_with("pooler.dense.")
            || name.starts_with("cls.predictions.")
            || name.starts_with("cls.seq_relationship.")
    }

    /// Loads the tensors below `vb`, whose names may start with `bert.`.
    ///
    /// # Errors
    /// A tensor that is missing or has another shape; a hidden size that is not a multiple of the number of heads.
    pub fn load(vb: VarBuilder, config: &Config) -> Result<Self> {
        let (hidden, heads) = (config.hidden_size, config.num_attention_heads);
        if heads == 0 || hidden % heads != 0 {
            bail!("hidden_size {hidden} is not a multiple of num_attention_heads {heads}");
        }
        let prefixed = vb.contains_tensor("bert.embeddings.word_embeddings.weight");
        let vb = if prefixed { vb.pp("bert") } else { vb };
        let layers = vb.pp("encoder.layer");
        Ok(Self {
            embeddings: Embeddings::load(&vb, config)?,
            layers: (0..config.num_hidden_layers)
                .map(|i| Layer::load(i, layers.pp(i), config))
                .collect::<Result<_>>()?,
        })
    }

    /// Computes the last hidden state, `(batch, seq, hidden)`, from token ids and token types, both `(batch, seq)`.
    ///
    /// `attention_mask`, `(batch, seq)` or `(batch, seq, seq)`, is one for visible tokens and zero for padding. No mask
    /// is equivalent to a mask of ones, and costs nothing.
    ///
    /// # Errors
    /// Shapes that do not agree, ids outside the vocabulary, more tokens than positions.
    pub fn forward(
        &self,
        input_ids: &Tensor,
        token_type_ids: &Tensor,
        attention_mask: Option<&Tensor>,
    ) -> Result<Tensor> {
        let x = self.embeddings.forward(input_ids, token_type_ids, None)?;
        let mask = attention_mask.map(|mask| score_mask(mask, x.dtype())).transpose()?;
        self.encode(x, mask.as_ref().map_or(Sight::All, Sight::Mask))
    }

    /// Computes the last hidden state, `(tokens, hidden)`, of texts that lie side by side, without padding. Token ids, token types and
    /// positions are `(tokens)`; `ranges`, `(tokens, 2)`, has of each token the first one of its text, and the one behind the last.
    ///
    /// # Errors
    /// Shapes that do not agree, ids outside the vocabulary, positions outside the table.
    pub fn forward_packed(
        &self,
        [input_ids, token_type_ids, positions]: [&Tensor; 3],
        ranges: &Tensor,
    ) -> Result<Tensor> {
        let row = |x: &Tensor| ops::unsqueeze(x, 0);
        let x = self.embeddings.forward(&row(input_ids)?, &row(token_type_ids)?, Some(&row(positions)?))?;
        ops::squeeze(&self.encode(x, Sight::Ranges(&row(ranges)?))?, 0)
    }

    fn encode(&self, mut x: Tensor, sight: Sight) -> Result<Tensor> {
        let _scope = scope("encoder");
        for layer in &self.layers {
            x = layer.forward(&x, sight)?;
        }
        Ok(x)
    }
}

/// Takes one unpadded sentence per batch item: all token types are zero, and every token is visible.
impl Module for BertModel {
    fn forward(&self, input_ids: &Tensor) -> Result<Tensor> {
        let (shape, device) = (input_ids.shape().clone(), input_ids.device().clone());
        let types = ops::constant("token_types", move || Tensor::zeros(&shape, DType::U32, &device))?;
        self.forward(input_ids, &types, None)
    }
}

/// Converts a mask to an additive one for the scores of all heads.
fn score_mask(mask: &Tensor, dtype: DType) -> Result<Tensor> {
    let mask = match mask.rank() {
        2 => ops::unsqueeze(&ops::unsqueeze(mask, 1)?, 1)?,
        3 => ops::unsqueeze(mask, 1)?,
        rank => bail!("an attention mask has 2 or 3 dimensions, not {rank}"),
    };
    mask::additive(&mask, dtype)
}
