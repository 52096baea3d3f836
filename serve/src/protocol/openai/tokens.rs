//! Tokens of prompts, and texts of tokens, as vLLM's clients ask for them.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::Json;
use serde_json::json;

use super::super::fields::{of_body, Fields, Unread};
use super::super::service::Service;
use super::conversation::conversation;
use super::refusal::answer;
use crate::generate::{Prompt, Writer};
use crate::model::{Context, Failure, Kind, Result};

/// A prompt whose tokens are asked for.
pub(crate) struct Asked {
    model: Option<String>,
    prompt: Prompt,
    has_names: bool,
}

impl Asked {
    /// Whether a body asks for the tokens of a prompt, and not for those of other texts.
    pub(in super::super) fn is_of(fields: &Fields) -> bool {
        !fields.has("inputs") && (fields.has("prompt") || fields.has("messages"))
    }

    /// Takes its fields.
    pub(in super::super) fn read(fields: &Fields) -> Result<Self> {
        let (model, has_names) = (fields.take("model")?, fields.take("return_token_strs")?.unwrap_or(false));
        let adds = fields.take::<bool>("add_special_tokens")?;
        let prompt = match (fields.take::<String>("prompt")?, adds) {
            (Some(text), Some(false)) => Prompt::Bare(text),
            (Some(text), _) => Prompt::Text(text),
            (None, Some(true)) => {
                return Err(Failure::invalid("`add_special_tokens` of a conversation: its template writes them"))
            }
            (None, _) => Prompt::Chat(conversation(fields)?.conversation),
        };
        Ok(Self { model, prompt, has_names })
    }

    /// Its tokens.
    pub async fn tokens(self, service: Service, context: Context) -> Result<Response> {
        let Self { model, prompt, has_names } = self;
        let writer = service.writer(model.as_deref())?;
        let of = writer.clone();
        let tokens = blocking(context, move || Ok(of.encode(prompt)?.tokens)).await?;
        let text = writer.text();
        let name = |token: &u32| String::from_utf8_lossy(&text.token_bytes(*token)).into_owned();
        let names: Option<Vec<String>> = has_names.then(|| tokens.iter().map(name).collect());
        let most = writer.model().context();
        let told = json!({"count": tokens.len(), "max_model_len": most, "tokens": tokens, "token_strs": names});
        Ok(Json(told).into_response())
    }
}

/// `/detokenize`.
pub(super) async fn detokenize(State(service): State<Service>, request: Request) -> Response {
    answer(&service, text(&service, request).await)
}

async fn text(service: &Service, request: Request) -> Result<Response> {
    let (parts, body) = request.into_parts();
    let bytes = service.body(&parts, body).await?;
    let (model, tokens) = {
        let fields = of_body(&bytes)?;
        let asked = (fields.take::<String>("model")?, fields.need::<Vec<u32>>("tokens")?);
        Unread { is_allowed: service.limits.allows_unread, ..Unread::default() }.check(&fields)?;
        asked
    };
    let writer = service.writer(model.as_deref())?;
    let context = service.context(&parts.extensions, None)?;
    let decode =
        move || writer.text().decode_all(&tokens).map_err(|error| crate::generate::GenerateError::from(error).into());
    let prompt = blocking(context, decode).await?;
    Ok(Json(json!({"prompt": prompt})).into_response())
}

/// Runs a tokenizer beside the connections. The request keeps its place until that has ended.
async fn blocking<T: Send + 'static>(context: Context, run: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let place = context.place;
    let done = tokio::task::spawn_blocking(move || {
        let _held = place;
        run()
    });
    done.await.unwrap_or_else(|_| Err(Failure::new(Kind::Internal, "the tokenizer panicked")))
}

impl Service {
    /// What writes the texts of the model of this name, or of the only one that does.
    fn writer(&self, name: Option<&str>) -> Result<Arc<Writer>> {
        if let Some(name) = name {
            let model = self.model(name, "")?;
            let other = || Failure::new(Kind::OtherModel, format!("model {name:?} does not write texts"));
            return model.writer().cloned().ok_or_else(other);
        }
        let mut writers = self.loaded().filter_map(|(_, model)| model.writer().cloned());
        match (writers.next(), writers.next()) {
            (Some(writer), None) => Ok(writer),
            (None, _) => Err(Failure::new(Kind::OtherModel, "no model writes texts")),
            _ => Err(Failure::invalid("several models write texts: name one in `model`")),
        }
    }
}
