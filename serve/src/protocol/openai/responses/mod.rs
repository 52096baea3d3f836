//! `/v1/responses`: answers as lists of items. None is kept, so a conversation comes whole with each request.

mod asked;
mod items;
mod response;

use axum::extract::{Request, State};
use axum::response::{sse, IntoResponse, Response as Reply};
use axum::Json;
use serde_json::Value;

use self::asked::Asked;
use self::response::Response;
use super::super::service::Service;
use super::choices::{Choices, Coming, Event};
use super::refusal::answer;
use super::streaming::{streamed, Tell};
use crate::model::{Failure, Result};

pub(super) async fn responses(State(service): State<Service>, request: Request) -> Reply {
    answer(&service, written(&service, request).await)
}

async fn written(service: &Service, request: Request) -> Result<Reply> {
    let (parts, body) = request.into_parts();
    let bytes = service.body(&parts, body).await?;
    let Asked { chat, said } = Asked::read(&bytes, service.limits.allows_unread)?;
    let context = service.context(&parts.extensions, None)?;
    let (is_streamed, tools, told) = (chat.writing.wanted.is_streamed, chat.writing.tools.clone(), chat.told);
    let answers = service.generate(&chat.model, chat.writing, context).await?;
    let mut response = Response::new(chat.model, said, told, &answers[0], &tools);
    let mut choices = Choices::new(answers);
    if is_streamed {
        return streamed(response, choices).await;
    }
    while let Some((index, coming)) = choices.next().await {
        response.told(index, coming?)?;
    }
    Ok(Json(response.whole()).into_response())
}

impl Tell for Response {
    fn beginning(&mut self) -> Vec<Value> {
        self.begun()
    }

    fn told(&mut self, _: usize, (event, _): Coming) -> Result<Vec<Value>> {
        Ok(match event {
            Event::Piece(piece) => self.push(&piece),
            Event::End(finish, usage) => self.end(finish, usage),
        })
    }

    fn failed(&mut self, failure: &Failure) -> Value {
        self.failure(failure)
    }

    fn last(&mut self) -> Vec<sse::Event> {
        Vec::new()
    }

    fn event(told: &Value) -> sse::Event {
        let name = told["type"].as_str().unwrap_or_default();
        sse::Event::default().event(name).data(told.to_string())
    }
}
