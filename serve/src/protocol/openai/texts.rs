//! `/v1/completions` and `/v1/chat/completions`: texts whole, or as server-sent events.

use std::collections::VecDeque;
use std::convert::Infallible;

use axum::extract::{Request, State};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::Json;
use futures_util::stream::unfold;
use serde_json::Value;

use crate::generate::Answer;
use crate::model::{Failure, Result};

use super::super::service::Service;
use super::events::Frame;
use super::refusal::{error, refusal, PROTOCOL};
use super::request::{Asked, Form};

pub(super) async fn completions(State(service): State<Service>, request: Request) -> Response {
    answered(&service, request, Form::Text).await
}

pub(super) async fn chat(State(service): State<Service>, request: Request) -> Response {
    answered(&service, request, Form::Chat).await
}

async fn answered(service: &Service, request: Request, form: Form) -> Response {
    let result = written(service, request, form).await;
    service.count(PROTOCOL, &result);
    result.unwrap_or_else(|failure| refusal(&failure))
}

async fn written(service: &Service, request: Request, form: Form) -> Result<Response> {
    let (parts, body) = request.into_parts();
    let bytes = service.body(&parts, body).await?;
    let Asked { model, prompt, wanted, has_usage } = Asked::read(&bytes, form, service.limits.allows_unread)?;
    let context = service.context(&parts.extensions, None)?;
    let is_streamed = wanted.is_streamed;
    let mut answer = service.generate(&model, prompt, wanted, context).await?;
    let frame = Frame::new(form, model, has_usage);
    if !is_streamed {
        let text = answer.whole().await?;
        return Ok(Json(frame.whole(&text, answer.finish(), answer.usage())).into_response());
    }
    // A failure before the first piece still has a status of its own.
    let first = answer.next().await?;
    let mut streaming =
        Streaming { ready: frame.beginning().into_iter().map(event).collect(), frame, answer, is_over: false };
    streaming.told(Ok(first));
    let events = unfold(streaming, |mut streaming| async { Some((streaming.next().await?, streaming)) });
    Ok(Sse::new(events).keep_alive(KeepAlive::default()).into_response())
}

/// A text on its way. Dropping it, as a client that goes makes the server do, cancels its request.
struct Streaming {
    answer: Answer,
    frame: Frame,
    ready: VecDeque<Event>,
    is_over: bool,
}

impl Streaming {
    async fn next(&mut self) -> Option<Result<Event, Infallible>> {
        if self.ready.is_empty() && !self.is_over {
            let piece = self.answer.next().await.map_err(Failure::from);
            self.told(piece);
        }
        self.ready.pop_front().map(Ok)
    }

    /// The events of a piece, or of the end.
    fn told(&mut self, piece: Result<Option<String>>) {
        match piece {
            Ok(Some(piece)) => return self.ready.push_back(event(self.frame.piece(&piece))),
            Ok(None) => {
                self.ready.extend(self.frame.end(self.answer.finish(), self.answer.usage()).into_iter().map(event));
                self.ready.push_back(Event::default().data("[DONE]"));
            }
            Err(failure) => {
                tracing::debug!(protocol = PROTOCOL, outcome = failure.outcome(), "a stream failed");
                self.ready.push_back(event(error(&failure)));
            }
        }
        self.is_over = true;
    }
}

fn event(told: Value) -> Event {
    // On one line.
    Event::default().data(told.to_string())
}
