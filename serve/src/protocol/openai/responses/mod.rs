//! `/v1/responses`: answers as lists of items. None is kept, so a conversation comes whole with each request.

mod asked;
mod items;
mod response;

use std::collections::VecDeque;
use std::convert::Infallible;

use axum::extract::{Request, State};
use axum::response::sse::{self, KeepAlive, Sse};
use axum::response::{IntoResponse, Response as Reply};
use axum::Json;
use futures_util::stream::unfold;
use serde_json::Value;

use self::asked::Asked;
use self::response::Response;
use super::super::service::Service;
use super::choices::{Choices, Coming, Event};
use super::refusal::{refusal, PROTOCOL};
use crate::model::{Failure, Result};

pub(super) async fn responses(State(service): State<Service>, request: Request) -> Reply {
    let result = answered(&service, request).await;
    service.count(PROTOCOL, &result);
    result.unwrap_or_else(|failure| refusal(&failure))
}

async fn answered(service: &Service, request: Request) -> Result<Reply> {
    let (parts, body) = request.into_parts();
    let bytes = service.body(&parts, body).await?;
    let Asked { chat, said } = Asked::read(&bytes, service.limits.allows_unread)?;
    let context = service.context(&parts.extensions, None)?;
    let (is_streamed, tools, told) = (chat.writing.wanted.is_streamed, chat.writing.tools.clone(), chat.told);
    let answers = service.generate(&chat.model, chat.writing, context).await?;
    let mut response = Response::new(chat.model, said, told, &answers[0], &tools);
    let mut choices = Choices::new(answers);
    if !is_streamed {
        while let Some((_, event)) = choices.next().await {
            told_of(&mut response, event?);
        }
        return Ok(Json(response.told()).into_response());
    }
    // A failure before the first piece still has a status of its own.
    let first = choices.next().await.map(|(_, event)| event).transpose()?;
    let mut streaming = Streaming { ready: ready(&response.begun()), response, choices, is_over: false };
    streaming.tell(first.map(Ok));
    let events = unfold(streaming, |mut streaming| async { Some((streaming.next().await?, streaming)) });
    Ok(Sse::new(events).keep_alive(KeepAlive::default()).into_response())
}

/// Takes what came of the text: the events that tell it.
fn told_of(response: &mut Response, (event, _): Coming) -> Vec<Value> {
    match event {
        Event::Piece(piece) => response.push(&piece),
        Event::End(finish, usage) => response.end(finish, usage),
    }
}

fn ready(events: &[Value]) -> VecDeque<sse::Event> {
    let named = |event: &Value| {
        let name = event["type"].as_str().unwrap_or_default();
        sse::Event::default().event(name).data(event.to_string())
    };
    events.iter().map(named).collect()
}

/// An answer on its way.
struct Streaming {
    choices: Choices,
    response: Response,
    ready: VecDeque<sse::Event>,
    is_over: bool,
}

impl Streaming {
    async fn next(&mut self) -> Option<Result<sse::Event, Infallible>> {
        while self.ready.is_empty() && !self.is_over {
            let event = self.choices.next().await;
            self.tell(event.map(|(_, event)| event));
        }
        self.ready.pop_front().map(Ok)
    }

    fn tell(&mut self, event: Option<Result<Coming, Failure>>) {
        match event {
            Some(Ok(event)) => self.ready.extend(ready(&told_of(&mut self.response, event))),
            Some(Err(failure)) => {
                tracing::debug!(protocol = PROTOCOL, outcome = failure.outcome(), "a stream failed");
                self.ready.extend(ready(&[self.response.failed(&failure)]));
                self.is_over = true;
            }
            None => self.is_over = true,
        }
    }
}
