//! Models as the protocols see them: tensors by name in, tensors by name out.

mod argument_grammar;
mod between;
mod call_grammar;
mod embedding;
mod failure;
mod generation;
mod grammar;
mod models;
mod response_format;
mod rules;
mod tensor;
mod tensors;
mod tokenizing;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

pub use embedding::{EmbeddingModel, PIXELS};
pub use failure::{Failure, Kind, Result};
pub use generation::GenerationModel;
pub use models::{Loader, Models, State};
pub use response_format::ResponseFormat;
pub(crate) use tensor::checked_shape;
pub use tensor::{Datatype, Tensor, TensorSpec, Values};
pub use tensors::TensorModel;

use crate::batch::Health;
use crate::embed::{Answers, TextOptions, TextRow, TextTokenizer};
use crate::generate::{Answer, Prompt, Tool, Wanted, Writer};

/// A future on the heap, so that models of all kinds fit into one map.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A request's place among those that may be under way. Clones share it: it is free when the last one is dropped.
#[derive(Debug, Clone, Default)]
pub struct Place {
    /// None where places are not counted.
    _permit: Option<Arc<OwnedSemaphorePermit>>,
}

impl Place {
    /// One of these places, if one is free.
    pub fn of(places: &Arc<Semaphore>) -> Option<Self> {
        places.clone().try_acquire_owned().ok().map(|permit| Self { _permit: Some(Arc::new(permit)) })
    }
}

/// Whose a request is, and until when its answer is worth something.
#[derive(Debug, Clone)]
pub struct Context {
    /// Clients take turns.
    pub client: u64,
    /// Tenants learn nothing of each other. Those who need no key are one.
    pub tenant: u64,
    /// Kept by work that goes on when the client is gone.
    pub place: Place,
    /// When the server gives up.
    pub deadline: Instant,
}

/// Texts, or texts as token ids.
#[derive(Debug, Clone, PartialEq)]
pub enum Texts {
    /// UTF-8.
    Plain(Vec<String>),
    /// Two texts that are read together.
    Pairs(Vec<(String, String)>),
    /// Token ids of the model's vocabulary.
    Tokens(Vec<TextRow>),
}

impl Texts {
    /// How many there are.
    pub fn len(&self) -> usize {
        match self {
            Self::Plain(texts) => texts.len(),
            Self::Pairs(pairs) => pairs.len(),
            Self::Tokens(rows) => rows.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Texts to be written.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Writing {
    /// What to go on from.
    pub prompts: Vec<Prompt>,
    /// Texts behind each prompt.
    pub each: usize,
    /// What each is like.
    pub wanted: Wanted,
    /// The format that each shall have.
    pub format: ResponseFormat,
    /// What a conversation's answer may call.
    pub tools: Vec<Tool>,
}

/// What a model that reads texts says of itself.
#[derive(Clone, Copy)]
pub struct Reader<'a> {
    /// What its answers are.
    pub answers: &'a Answers,
    /// Its tokenizer.
    pub tokenizer: &'a TextTokenizer,
    /// The `model_type` of its configuration.
    pub kind: &'a str,
    /// Numbers of an answer.
    pub width: usize,
    /// Numbers of a hidden state.
    pub hidden: usize,
    /// Rows of its largest batch, and tokens of one.
    pub batch: (usize, usize),
}

/// Vectors of texts, or their logits, or weights of words.
#[derive(Debug, Clone, PartialEq)]
pub struct Embeddings {
    /// One a text, in the order of the texts.
    pub vectors: Vec<Vec<f32>>,
    /// Tokens of all texts.
    pub tokens: usize,
}

/// A model that is served. What only some kinds of models do has a default that says so.
pub trait Model: Send + Sync + 'static {
    /// Inputs that it takes.
    fn inputs(&self) -> Vec<TensorSpec>;

    /// Outputs that it has.
    fn outputs(&self) -> Vec<TensorSpec>;

    /// What it computes, as the metadata's `platform`.
    fn platform(&self) -> &'static str;

    /// All outputs of a request. `options` are for inputs that are texts.
    fn infer(&self, inputs: Vec<Tensor>, options: TextOptions, context: Context) -> BoxFuture<'_, Result<Vec<Tensor>>>;

    /// What it says of itself if it reads texts and has numbers for them.
    fn reader(&self) -> Option<Reader<'_>> {
        None
    }

    /// Answers of a model that has a [`reader`](Self::reader), one a text.
    fn embed(&self, texts: Texts, options: TextOptions, context: Context) -> BoxFuture<'_, Result<Embeddings>> {
        let _ = (texts, options, context);
        Box::pin(async { Err(Failure::new(Kind::Invalid, "this model does not embed texts")) })
    }

    /// Texts behind prompts, as they come. The texts of the first prompt have the first indices.
    fn generate(&self, writing: Writing, context: Context) -> BoxFuture<'_, Result<Vec<Answer>>> {
        let _ = (writing, context);
        Box::pin(async { Err(Failure::new(Kind::Invalid, "this model does not write texts")) })
    }

    /// A model that writes texts.
    fn writer(&self) -> Option<&Arc<Writer>> {
        None
    }

    /// Whether it takes requests.
    fn is_ready(&self) -> bool;

    /// Whether it will never again: its devices are lost to this process.
    fn is_lost(&self) -> bool;

    /// What an operator watches.
    fn health(&self) -> Health;

    /// Takes no more requests, and returns when those that it has taken are answered.
    fn drain(&self);
}
