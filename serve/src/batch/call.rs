//! A request whose rows are under way.

use std::time::Instant;

use parking_lot::Mutex;
use tokio::sync::oneshot::{channel, Receiver, Sender};

use super::{Error, Result};

/// A request whose rows are under way. It is answered once: by the last row's answer, or by the first error.
pub(crate) struct Call<A> {
    state: Mutex<State<A>>,
    pub deadline: Option<Instant>,
}

struct State<A> {
    answers: Vec<Option<A>>,
    missing: usize,
    /// Taken by the answer.
    reply: Option<Sender<Result<Vec<A>>>>,
}

impl<A> Call<A> {
    pub fn new(rows: usize, deadline: Option<Instant>) -> (Self, Pending<A>) {
        let (reply, receiver) = channel();
        let state = State { answers: (0..rows).map(|_| None).collect(), missing: rows, reply: Some(reply) };
        let call = Self { state: Mutex::new(state), deadline };
        call.answer_if_complete(&mut call.state.lock());
        (call, Pending { receiver, deadline })
    }

    /// The answer of one row, which has none yet.
    pub fn fill(&self, row: usize, answer: A) {
        let mut state = self.state.lock();
        if state.answers[row].replace(answer).is_none() {
            state.missing -= 1;
        }
        self.answer_if_complete(&mut state);
    }

    /// Answers with an error, if there is no answer yet.
    pub fn fail(&self, error: Error) {
        let reply = self.state.lock().reply.take();
        if let Some(reply) = reply {
            // The client may be gone.
            let _ = reply.send(Err(error));
        }
    }

    /// Whether nobody waits for further rows: the client is gone, or has its answer. A deadline that has passed is answered
    /// here.
    pub fn is_over(&self, now: Instant) -> bool {
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            self.fail(Error::Deadline);
        }
        self.state.lock().reply.as_ref().is_none_or(|reply| reply.is_closed())
    }

    fn answer_if_complete(&self, state: &mut State<A>) {
        if state.missing > 0 {
            return;
        }
        if let Some(reply) = state.reply.take() {
            let _ = reply.send(Ok(state.answers.drain(..).flatten().collect()));
        }
    }
}

/// The answers of a request, to be waited for. Dropping it cancels the request.
#[derive(Debug)]
#[must_use = "dropping it cancels the request"]
pub struct Pending<A> {
    receiver: Receiver<Result<Vec<A>>>,
    deadline: Option<Instant>,
}

impl<A> Pending<A> {
    /// One answer a row, in the order of the rows. In a runtime of tokio that has timers, if the request has a deadline.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn answers(self) -> Result<Vec<A>> {
        let received = match self.deadline {
            Some(deadline) => tokio::time::timeout_at(deadline.into(), self.receiver).await,
            None => Ok(self.receiver.await),
        };
        match received {
            Ok(received) => received.unwrap_or(Err(Error::NoDevice)),
            Err(_) => Err(Error::Deadline),
        }
    }

    /// The same for a thread outside a runtime. A deadline is looked at when a worker takes the row.
    ///
    /// # Errors
    /// See [`Error`].
    ///
    /// # Panics
    /// In a task of tokio's.
    pub fn wait(self) -> Result<Vec<A>> {
        self.receiver.blocking_recv().unwrap_or(Err(Error::NoDevice))
    }
}
