//! A decoder that writes texts.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use opara_models::decoder::Syntax;

use super::grammar::Grammars;
use super::tokenizing::Tokenizing;
use super::{BoxFuture, Context, Failure, Model, ResponseFormat, Result, Tensor, TensorSpec, Writing};
use crate::batch::{Health, Metrics, Stage};
use crate::embed::TextOptions;
use crate::generate::{Answer, Encoded, Guide, Prompt, Wanted, Writer};

/// A decoder that writes texts. It takes no tensors: the Open Inference Protocol tells its clients so.
pub struct GenerationModel {
    writer: Arc<Writer>,
    tokenizing: Tokenizing,
    /// Made with the first text whose form is given.
    grammars: Arc<OnceLock<Result<Grammars>>>,
    metrics: Metrics,
}

impl GenerationModel {
    /// Of a writer.
    pub fn new(writer: Writer, metrics: Metrics) -> Self {
        Self { writer: Arc::new(writer), tokenizing: Tokenizing::default(), grammars: Arc::default(), metrics }
    }

    async fn encoded(&self, prompt: Prompt, context: &Context) -> Result<Encoded> {
        let (writer, start) = (self.writer.clone(), Instant::now());
        let encoded = self.tokenizing.run(context, move || writer.encode(prompt)).await;
        self.metrics.time(Stage::Tokenize, start.elapsed());
        Ok(encoded??)
    }

    /// Whether what stands around calls and reasoning has special tokens in it.
    fn marks_are_special(&self, has_tools: bool) -> bool {
        let text = self.writer.text();
        let syntax = text.syntax(has_tools);
        syntax.is_some_and(|syntax| syntax.marks().any(|mark| text.at_special(mark).len() > 1))
    }

    /// What makes a text be of a form.
    async fn guide(
        &self,
        format: &ResponseFormat,
        has_tools: bool,
        is_thinking: bool,
        context: &Context,
    ) -> Result<Option<Box<dyn Guide>>> {
        let text = self.writer.text();
        let none = Syntax::default();
        let Some(grammar) = format.grammar(text, text.syntax(has_tools).unwrap_or(&none), is_thinking)? else {
            return Ok(None);
        };
        let (writer, grammars) = (self.writer.clone(), self.grammars.clone());
        let guide = move || {
            let made = || {
                let config = writer.model().config();
                Grammars::new(writer.text(), config.vocab, &config.eos)
            };
            grammars.get_or_init(made).as_ref().map_err(Failure::clone)?.guide(grammar)
        };
        self.tokenizing.run(context, guide).await?.map(Some)
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

    fn generate(&self, writing: Writing, context: Context) -> BoxFuture<'_, Result<Vec<Answer>>> {
        Box::pin(async move {
            let Writing { prompts, each, wanted, format, tools } = writing;
            let is_chat = prompts.iter().any(|prompt| matches!(prompt, Prompt::Chat(_)));
            let wanted = Wanted {
                tenant: context.tenant,
                names_special: wanted.names_special || is_chat && self.marks_are_special(!tools.is_empty()),
                ..wanted
            };
            let is_streamed = wanted.is_streamed;
            let mut answers = Vec::with_capacity(prompts.len() * each);
            for prompt in prompts {
                let prompt = self.encoded(prompt, &context).await?;
                for at in 0..each as u64 {
                    let seed = wanted.seed.map_or_else(|| fastrand::u64(..), |seed| seed.wrapping_add(at));
                    let wanted = Wanted { seed: Some(seed), ..wanted.clone() };
                    let guide = self.guide(&format, !tools.is_empty(), prompt.is_thinking, &context).await?;
                    let answer = self.writer.answer(prompt.clone(), wanted, guide, context.client)?;
                    answers.push(answer.until(context.deadline, is_streamed));
                }
            }
            Ok(answers)
        })
    }

    fn writer(&self) -> Option<&Arc<Writer>> {
        Some(&self.writer)
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
