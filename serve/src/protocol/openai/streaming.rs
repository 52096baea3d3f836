//! Texts as server-sent events, as they come.

use std::collections::VecDeque;
use std::convert::Infallible;

use axum::response::sse::{self, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::unfold;
use serde_json::Value;

use super::choices::{Choices, Coming};
use super::refusal::PROTOCOL;
use crate::model::{Failure, Result};

/// Tells the texts of a request.
pub(super) trait Tell: Send + 'static {
    /// What a stream begins with, if it does not begin with text.
    fn beginning(&mut self) -> Vec<Value>;

    /// What came of a text.
    fn told(&mut self, index: usize, coming: Coming) -> Result<Vec<Value>>;

    /// A failure, behind which nothing is told.
    fn failed(&mut self, failure: &Failure) -> Value;

    /// What a stream ends with when all texts have.
    fn last(&mut self) -> Vec<sse::Event>;

    /// An event that tells it, on one line.
    fn event(told: &Value) -> sse::Event {
        sse::Event::default().data(told.to_string())
    }
}

/// A stream of what is told of the texts.
///
/// # Errors
/// A failure before the first piece, which still has a status of its own.
pub(super) async fn streamed<T: Tell>(mut tell: T, mut choices: Choices) -> Result<Response> {
    let first = choices.next().await;
    let first = first.map(|(index, coming)| coming.map(|coming| (index, coming))).transpose()?;
    let ready = tell.beginning().iter().map(T::event).collect();
    let mut streaming = Streaming { choices, tell, ready, is_over: false };
    streaming.take(first.map(|(index, coming)| (index, Ok(coming))));
    let events = unfold(streaming, |mut streaming| async { Some((streaming.next().await?, streaming)) });
    Ok(Sse::new(events).keep_alive(KeepAlive::default()).into_response())
}

/// Texts on their way.
struct Streaming<T> {
    choices: Choices,
    tell: T,
    ready: VecDeque<sse::Event>,
    is_over: bool,
}

impl<T: Tell> Streaming<T> {
    async fn next(&mut self) -> Option<Result<sse::Event, Infallible>> {
        while self.ready.is_empty() && !self.is_over {
            let coming = self.choices.next().await;
            self.take(coming);
        }
        self.ready.pop_front().map(Ok)
    }

    /// Makes events of what came of a text, or of the end of all.
    fn take(&mut self, coming: Option<(usize, Result<Coming>)>) {
        let told = match coming {
            Some((index, coming)) => coming.and_then(|coming| self.tell.told(index, coming)),
            None => {
                self.ready.extend(self.tell.last());
                self.is_over = true;
                return;
            }
        };
        match told {
            Ok(told) => self.ready.extend(told.iter().map(T::event)),
            Err(failure) => {
                tracing::debug!(protocol = PROTOCOL, outcome = failure.outcome(), "a stream failed");
                self.ready.push_back(T::event(&self.tell.failed(&failure)));
                self.is_over = true;
            }
        }
    }
}
