//! An architecture: what a configuration describes, before it has weights.

use std::sync::Arc;

use candle::Tensor;
use candle_nn::VarBuilder;

use super::layers::Layer;
use super::PoolingMode;

/// A batch of texts, each tensor `(batch, tokens)` of u32.
#[derive(Debug, Clone, Copy)]
pub struct Tokens<'a> {
    /// Token ids. Texts stand on the left, padding behind them.
    pub ids: &'a Tensor,
    /// One for tokens, zero for padding.
    pub mask: &'a Tensor,
    /// The types of tokens.
    pub types: &'a Tensor,
}

/// A transformer on a device: the hidden states `(batch, tokens, width)` of a batch, or `(batch, width)` of one that
/// [pools them itself](Architecture::pooling_itself).
pub type Transformer = Box<dyn Fn(&Tokens) -> candle::Result<Tensor> + Send + Sync>;

/// Texts that lie side by side, without padding.
#[derive(Debug, Clone, Copy)]
pub struct PackedTokens<'a> {
    /// Token ids, `(tokens)` of u32.
    pub ids: &'a Tensor,
    /// The types of tokens, `(tokens)` of u32.
    pub types: &'a Tensor,
    /// Where tokens stand in their texts, `(tokens)` of u32.
    pub positions: &'a Tensor,
    /// Of each token the first one of its text, and the one behind the last: `(tokens, 2)` of u32.
    pub ranges: &'a Tensor,
}

/// A transformer on a device: the hidden states `(tokens, width)` of texts side by side.
pub type PackedTransformer = Box<dyn Fn(&PackedTokens) -> candle::Result<Tensor> + Send + Sync>;

/// Makes a transformer of texts side by side of weights.
pub(super) type PackedLoader = Arc<dyn Fn(VarBuilder<'static>) -> candle::Result<PackedTransformer> + Send + Sync>;

/// How an architecture takes texts side by side.
#[derive(Clone)]
pub(super) struct Packing {
    /// Elements of a head.
    pub head: usize,
    pub load: PackedLoader,
}

/// Makes a transformer of weights. The number is the length of the longest text, in tokens.
pub type Loader = Arc<dyn Fn(VarBuilder<'static>, usize) -> candle::Result<Transformer> + Send + Sync>;

/// A tower that sees pictures, on a device: vectors of pixels `(batch, channels, side, side)`.
pub(super) type Tower = Box<dyn Fn(&Tensor) -> candle::Result<Tensor> + Send + Sync>;

/// The pictures that an architecture sees beside texts.
#[derive(Clone)]
pub(super) struct Pictures {
    pub channels: usize,
    /// Pixels of a side.
    pub side: usize,
    pub load: Arc<dyn Fn(VarBuilder<'static>) -> candle::Result<Tower> + Send + Sync>,
}

/// How an architecture takes texts that are shorter than the batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Padding {
    /// It masks padding, or no token sees those behind it.
    Masked,
    /// It has no mask: each text runs by itself, at its own length.
    None,
    /// It was trained on texts that are all filled up to its longest length, and sees the padding.
    Full,
}

/// How large a transformer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// Tokens of the vocabulary.
    pub vocabulary: usize,
    /// Elements of a hidden state.
    pub width: usize,
    /// Tokens of the longest text.
    pub positions: usize,
    /// Types that a token may have; at least 1.
    pub token_types: usize,
}

impl Sizes {
    /// Of a transformer whose tokens have no types, or whose module looks up type 0 alone.
    pub(super) fn without_types(vocabulary: usize, width: usize, positions: usize) -> Self {
        Self { vocabulary, width, positions, token_types: 1 }
    }
}

/// What a configuration describes: sizes, and how weights become a transformer.
///
/// ```
/// use candle::Module;
/// use opara_serve::embed::{Architecture, Architectures, Sizes};
///
/// // Checkpoints whose `model_type` is "bag" are tables of vectors.
/// let architectures = Architectures::default().with("bag", |config, _| {
///     let number = |name: &str| config[name].as_u64().unwrap_or_default() as usize;
///     let (vocabulary, width) = (number("vocab_size"), number("hidden_size"));
///     let sizes = Sizes { vocabulary, width, positions: 512, token_types: 1 };
///     Ok(Architecture::new(sizes, move |vb, _| {
///         let table = candle_nn::embedding(vocabulary, width, vb.pp("table"))?;
///         Ok(Box::new(move |tokens| table.forward(tokens.ids)))
///     }))
/// });
/// assert!(architectures.names().any(|name| name == "bag"));
/// ```
#[derive(Clone)]
pub struct Architecture {
    pub(super) sizes: Sizes,
    pub(super) load: Loader,
    pub(super) packing: Option<Packing>,
    pub(super) padding: Padding,
    pub(super) pad: u32,
    pub(super) pooling: PoolingMode,
    pub(super) is_f32_only: bool,
    pub(super) has_own_operators: bool,
    pub(super) is_pooled: bool,
    pub(super) classifier: Option<Classifier>,
    pub(super) vocabulary_head: Vec<Layer>,
    pub(super) pictures: Option<Pictures>,
    /// A token that no text may have.
    pub(super) barred: Option<u32>,
    pub(super) is_unused: fn(&str) -> bool,
}

/// What makes logits of classes from hidden states.
#[derive(Debug, Clone)]
pub(super) struct Classifier {
    pub pooling: PoolingMode,
    pub layers: Vec<Layer>,
}

impl Architecture {
    /// A transformer that masks padding and whose vectors are the mean of its hidden states.
    pub fn new(
        sizes: Sizes,
        load: impl Fn(VarBuilder<'static>, usize) -> candle::Result<Transformer> + Send + Sync + 'static,
    ) -> Self {
        Self {
            sizes,
            load: Arc::new(load),
            packing: None,
            padding: Padding::Masked,
            pad: 0,
            pooling: PoolingMode::Mean,
            is_f32_only: false,
            has_own_operators: false,
            is_pooled: false,
            classifier: None,
            vocabulary_head: Vec::new(),
            pictures: None,
            barred: None,
            is_unused: |_| false,
        }
    }

    /// Sets how it takes texts that are shorter than the batch, and the token that fills them up.
    pub fn padded(mut self, padding: Padding, pad: u32) -> Self {
        (self.padding, self.pad) = (padding, pad);
        self
    }

    /// Says that it takes texts that lie side by side, too: with [`ranged_attention`](opara_candle::ops::ranged_attention) of heads of
    /// `head` elements. A GPU on which that is one launch takes them so.
    pub fn packed(
        mut self,
        head: usize,
        load: impl Fn(VarBuilder<'static>) -> candle::Result<PackedTransformer> + Send + Sync + 'static,
    ) -> Self {
        self.packing = Some(Packing { head, load: Arc::new(load) });
        self
    }

    /// Sets how hidden states become a vector where the folder does not say.
    pub fn pooled(mut self, pooling: PoolingMode) -> Self {
        self.pooling = pooling;
        self
    }

    /// Says that its code computes in f32 alone.
    pub fn in_f32_only(mut self) -> Self {
        self.is_f32_only = true;
        self
    }

    /// Says of which tensors of a checkpoint its answers do not depend, though it does not read them.
    pub fn without(mut self, is_unused: fn(&str) -> bool) -> Self {
        self.is_unused = is_unused;
        self
    }

    /// Says that it consists of this library's operators, which the executor need not replace.
    pub(super) fn on_own_operators(mut self) -> Self {
        self.has_own_operators = true;
        self
    }

    /// Says that it pools its hidden states itself: its transformer gives `(batch, width)`. Requests for hidden states of tokens are
    /// refused then, and the pooling of a folder changes nothing.
    pub fn pooling_itself(mut self) -> Self {
        self.is_pooled = true;
        self
    }

    /// Sets a token that no text may have.
    pub(super) fn barring(mut self, token: u32) -> Self {
        self.barred = Some(token);
        self
    }

    /// Sets what it sees beside texts.
    pub(super) fn seeing(mut self, pictures: Option<Pictures>) -> Self {
        self.pictures = pictures;
        self
    }

    /// Sets what makes logits of classes.
    pub(super) fn classified(mut self, pooling: PoolingMode, layers: Vec<Layer>) -> Self {
        self.classifier = Some(Classifier { pooling, layers });
        self
    }

    /// Sets what makes logits of the vocabulary from each hidden state.
    pub(super) fn with_vocabulary(mut self, layers: Vec<Layer>) -> Self {
        self.vocabulary_head = layers;
        self
    }
}
