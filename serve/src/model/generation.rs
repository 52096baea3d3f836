//! A decoder that writes texts.

use std::sync::Arc;
use std::time::Instant;

use super::tokenizing::Tokenizing;
use super::{BoxFuture, Context, Failure, Model, Result, Tensor, TensorSpec};
use crate::batch::{Health, Metrics, Stage};
use crate::embed::TextOptions;
use crate::generate::{Answer, Prompt, Wanted, Writer};

/// A decoder that writes texts. It takes no tensors: the Open Inference Protocol tells its clients so.
pub struct GenerationModel {
    writer: Arc<Writer>,
    tokenizing: Tokenizing,
    metrics: Metrics,
}

impl GenerationModel {
    /// Of a writer.
    pub fn new(writer: Writer, metrics: Metrics) -> Self {
        Self { writer: Arc::new(writer), tokenizing: Tokenizing::default(), metrics }
    }

    async fn tokens(&self, prompt: Prompt, context: &Context) -> Result<Vec<u32>> {
        let (writer, start) = (self.writer.clone(), Instant::now());
        let encoded = self.tokenizing.run(context, move || writer.encode(prompt)).await;
        self.metrics.time(Stage::Tokenize, start.elapsed());
        Ok(encoded??)
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

    fn infer(&self, _: Vec<Tensor>, _: TextOptions, _: Context) -> BoxFuture<'_, Result<Vec<Tensor>>> {
        let message = "this model writes texts: ask it by /v1/completions or /v1/chat/completions";
        Box::pin(async move { Err(Failure::invalid(message)) })
    }

    fn generate(&self, prompt: Prompt, wanted: Wanted, context: Context) -> BoxFuture<'_, Result<Answer>> {
        Box::pin(async move {
            let tokens = self.tokens(prompt, &context).await?;
            let is_streamed = wanted.is_streamed;
            let wanted = Wanted { tenant: context.tenant, ..wanted };
            let answer = self.writer.answer(tokens, wanted, context.client)?;
            Ok(answer.until(context.deadline, is_streamed))
        })
    }

    fn is_ready(&self) -> bool {
        self.writer.is_ready()
    }

    fn is_lost(&self) -> bool {
        self.writer.is_lost()
    }

    fn health(&self) -> Health {
        Health::default()
    }

    fn drain(&self) {
        self.writer.drain();
    }
}
