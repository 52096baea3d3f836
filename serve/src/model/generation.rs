//! A decoder that writes texts.

use std::sync::Arc;
use std::time::Instant;

use super::{BoxFuture, Context, Failure, Kind, Model, Result, Tensor, TensorSpec};
use crate::batch::{Health, Metrics, Stage};
use crate::generate::{Answer, Generator, Prompt, Wanted};

/// A decoder that writes texts. It takes no tensors: the Open Inference Protocol tells its clients so.
pub struct GenerationModel {
    generator: Arc<Generator>,
    metrics: Metrics,
}

impl GenerationModel {
    /// Of a generator.
    pub fn new(generator: Generator, metrics: Metrics) -> Self {
        Self { generator: Arc::new(generator), metrics }
    }

    /// A prompt may be long, and tokenizers take their time: a thread of the runtime's pool for blocking work makes the tokens.
    async fn tokens(&self, prompt: Prompt) -> Result<Vec<u32>> {
        let (generator, start) = (self.generator.clone(), Instant::now());
        let encoded = tokio::task::spawn_blocking(move || generator.encode(prompt)).await;
        self.metrics.time(Stage::Tokenize, start.elapsed());
        Ok(encoded.map_err(|_| Failure::new(Kind::Internal, "the tokenizer panicked"))??)
    }
}

impl Model for GenerationModel {
    fn inputs(&self) -> Vec<TensorSpec> {
        Vec::new()
    }

    fn outputs(&self) -> Vec<TensorSpec> {
        Vec::new()
    }

    fn platform(&self) -> &'static str {
        "opara_candle_text_generation"
    }

    fn infer(&self, _: Vec<Tensor>, _: Context) -> BoxFuture<'_, Result<Vec<Tensor>>> {
        let message = "this model writes texts: ask it by /v1/completions or /v1/chat/completions";
        Box::pin(async move { Err(Failure::invalid(message)) })
    }

    fn generate(&self, prompt: Prompt, wanted: Wanted, context: Context) -> BoxFuture<'_, Result<Answer>> {
        Box::pin(async move {
            let tokens = self.tokens(prompt).await?;
            let is_streamed = wanted.is_streamed;
            let answer = self.generator.answer(tokens, wanted, context.client)?;
            Ok(answer.until(context.deadline, is_streamed))
        })
    }

    fn is_ready(&self) -> bool {
        self.generator.writer().is_ready()
    }

    fn is_lost(&self) -> bool {
        self.generator.writer().is_lost()
    }

    fn health(&self) -> Health {
        Health::default()
    }

    fn drain(&self) {
        self.generator.writer().drain();
    }
}
