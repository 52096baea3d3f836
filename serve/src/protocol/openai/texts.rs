//! `/v1/completions` and `/v1/chat/completions`: texts whole, or as server-sent events.

use axum::extract::{Request, State};
use axum::response::{sse, IntoResponse, Response};
use axum::Json;
use serde_json::Value;

use crate::generate::Piece;
use crate::model::{Failure, Result};

use super::super::service::Service;
use super::choices::{Choices, Coming, Event};
use super::events::Frame;
use super::form::Form;
use super::refusal::{answer, error};
use super::request::Asked;
use super::streaming::{streamed, Tell};

pub(super) async fn completions(State(service): State<Service>, request: Request) -> Response {
    answer(&service, written(&service, request, Form::Text).await)
}

pub(super) async fn chat(State(service): State<Service>, request: Request) -> Response {
    answer(&service, written(&service, request, Form::Chat).await)
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
    streamed(frame, choices).await
}

impl Tell for Frame {
    fn beginning(&mut self) -> Vec<Value> {
        self.begun()
    }

    fn told(&mut self, index: usize, (event, read): Coming) -> Result<Vec<Value>> {
        self.read(index, read);
        match event {
            Event::Piece(piece) => self.piece(index, piece),
            Event::End(finish, usage) => {
                self.count(index, usage);
                self.end(index, finish)
            }
        }
    }

    fn failed(&mut self, failure: &Failure) -> Value {
        error(failure)
    }

    fn last(&mut self) -> Vec<sse::Event> {
        let numbers = self.numbers();
        numbers.iter().map(Self::event).chain([sse::Event::default().data("[DONE]")]).collect()
    }
}
