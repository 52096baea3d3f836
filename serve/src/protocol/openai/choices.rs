//! The texts of one request, as they come.

use futures_util::stream::{select_all, unfold, BoxStream, SelectAll};
use futures_util::StreamExt;

use opara_models::engine::Likelihoods;

use crate::generate::{Answer, Finish, GenerateError, Piece, Usage};
use crate::model::Result;

/// What comes of a text.
pub(super) enum Event {
    Piece(Piece),
    /// There is no more of it.
    End(Option<Finish>, Usage),
}

/// All texts of a request. Dropping them, as a client that goes makes the server do, cancels it.
pub(super) struct Choices(SelectAll<BoxStream<'static, (usize, Result<Coming>)>>);

/// What came, and with the first of it how likely the tokens of the prompt are, from the second one on, where that was asked for.
pub(super) type Coming = (Event, Vec<Likelihoods>);

impl Choices {
    pub fn new(answers: Vec<Answer>) -> Self {
        let stream = |(index, answer): (usize, Answer)| {
            let events = unfold(Some(answer), move |answer| async move {
                let mut answer = answer?;
                let next = answer.next().await;
                let read = answer.take_read();
                Some(match next {
                    Ok(Some(piece)) => ((index, Ok((Event::Piece(piece), read))), Some(answer)),
                    Ok(None) => ((index, Ok((Event::End(answer.finish(), answer.usage()), read))), None),
                    Err(error) => ((index, Err(GenerateError::into(error))), None),
                })
            });
            events.boxed()
        };
        Self(select_all(answers.into_iter().enumerate().map(stream)))
    }

    /// What comes next, of which text; `None` when all have ended.
    pub async fn next(&mut self) -> Option<(usize, Result<Coming>)> {
        self.0.next().await
    }
}
