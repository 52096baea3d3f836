//! `/v1/completions` and `/v1/chat/completions`: texts whole, or as server-sent events.

use std::collections::VecDeque;
use std::convert::Infallible;

use axum::extract::{Request, State};
use axum::response::sse::{self, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::Json;
use futures_util::stream::unfold;
use serde_json::Value;

use crate::generate::Piece;
use crate::model::Result;

use super::super::service::Service;
use super::choices::{Choices, Coming, Event};
use super::events::Frame;
use super::form::Form;
use super::refusal::{error, refusal, PROTOCOL};
use super::request::Asked;

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
    let Asked { model, writing, told } = Asked::read(&bytes, form, service.limits.allows_unread)?;
    let context = service.context(&parts.extensions, None)?;
    let (is_streamed, each, tools) = (writing.wanted.is_streamed, writing.each, writing.tools.clone());
    let answers = service.generate(&model, writing, context).await?;
    let mut frame = Frame::new(form, model, told, &answers, each, &tools);
    let mut texts = vec![(Piece::default(), None); answers.len()];
    let mut choices = Choices::new(answers);
    if !is_streamed {
        while let Some((index, event)) = choices.next().await {
            let (event, read) = event?;
            frame.read(index, read);
            match event {
                Event::Piece(piece) => {
                    texts[index].0.text += &piece.text;
                    texts[index].0.tokens.extend(piece.tokens);
                }
                Event::End(finish, usage) => {
                    frame.count(index, usage);
                    texts[index].1 = finish;
                }
            }
        }
        return Ok(Json(frame.whole(texts)?).into_response());
    }
    // A failure before the first piece still has a status of its own.
    let first = choices.next().await;
    let first = first.map(|(index, event)| event.map(|event| (index, event))).transpose()?;
    let mut streaming =
        Streaming { ready: frame.beginning().iter().map(data).collect(), frame, choices, is_over: false };
    streaming.tell(first.map(|(index, event)| (index, Ok(event))));
    let events = unfold(streaming, |mut streaming| async { Some((streaming.next().await?, streaming)) });
    Ok(Sse::new(events).keep_alive(KeepAlive::default()).into_response())
}

/// Texts on their way.
struct Streaming {
    choices: Choices,
    frame: Frame,
    ready: VecDeque<sse::Event>,
    is_over: bool,
}

impl Streaming {
    async fn next(&mut self) -> Option<Result<sse::Event, Infallible>> {
        while self.ready.is_empty() && !self.is_over {
            let event = self.choices.next().await;
            self.tell(event);
        }
        self.ready.pop_front().map(Ok)
    }

    /// Makes events of what came of a text, or of the end of all.
    fn tell(&mut self, event: Option<(usize, Result<Coming>)>) {
        let told = match event {
            Some((index, Ok(event))) => self.told(index, event),
            Some((_, Err(failure))) => Err(failure),
            None => {
                self.ready.extend(self.frame.last().iter().map(data));
                self.ready.push_back(sse::Event::default().data("[DONE]"));
                self.is_over = true;
                return;
            }
        };
        match told {
            Ok(told) => self.ready.extend(told.iter().map(data)),
            Err(failure) => {
                tracing::debug!(protocol = PROTOCOL, outcome = failure.outcome(), "a stream failed");
                self.ready.push_back(data(&error(&failure)));
                self.is_over = true;
            }
        }
    }

    fn told(&mut self, index: usize, (event, read): Coming) -> Result<Vec<Value>> {
        self.frame.read(index, read);
        match event {
            Event::Piece(piece) => self.frame.piece(index, piece),
            Event::End(finish, usage) => {
                self.frame.count(index, usage);
                self.frame.end(index, finish)
            }
        }
    }
}

fn data(told: &Value) -> sse::Event {
    // On one line.
    sse::Event::default().data(told.to_string())
}
