//! Tokens on their way from a worker to the request's handler.

use std::time::Instant;

use opara_models::engine::{End, Guidance, Likelihoods, Listener};
use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::mpsc::{unbounded_channel, UnboundedReceiver, UnboundedSender};

use super::guide::Guide;
use crate::batch::{EngineError, Error, Result, TextMetrics};

/// What becomes of a request.
#[derive(Debug)]
pub(super) enum Event {
    /// Its prompt is being read; so many of its tokens were in the cache.
    Begun { cached: usize },
    /// How likely some tokens of the prompt are, from its second one on.
    Prompt(Vec<Likelihoods>),
    /// With how likely it was, where that was asked for.
    Token(u32, Option<Likelihoods>),
    /// The last event.
    Ended(Result<Finish>),
}

/// Why a text has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// The model ended it, or one of the strings that end it came.
    Stop,
    /// It is as long as was asked for.
    Length,
}

/// The worker's end. No more events come than tokens were asked for, so that the channel needs no bound.
pub(super) struct Delivery {
    events: UnboundedSender<Event>,
    metrics: TextMetrics,
    /// When the request came, then when its latest token did.
    since: Instant,
    /// What it is counted as.
    counted: Option<Gauge>,
    has_token: bool,
    /// Of the token that comes next.
    likelihoods: Option<Likelihoods>,
    guide: Option<Box<dyn Guide>>,
    /// Why the guide could not go on.
    astray: Option<String>,
}

/// The other end. Dropping it cancels the request.
#[derive(Debug)]
pub(super) struct Receiver {
    events: UnboundedReceiver<Event>,
}

pub(super) fn channel(metrics: TextMetrics, guide: Option<Box<dyn Guide>>) -> (Delivery, Receiver) {
    let (sender, events) = unbounded_channel();
    metrics.waiting.inc();
    let counted = Some(metrics.waiting.clone());
    let delivery = Delivery {
        events: sender,
        metrics,
        since: Instant::now(),
        counted,
        has_token: false,
        likelihoods: None,
        guide,
        astray: None,
    };
    (delivery, Receiver { events })
}

impl Receiver {
    /// The next event. There is one after another until [`Event::Ended`].
    pub async fn next(&mut self) -> Event {
        let stopped = || Event::Ended(Err(Error::Engine(EngineError::new("it stopped before the text was written"))));
        self.events.recv().await.unwrap_or_else(stopped)
    }

    /// Takes no more events.
    pub fn close(&mut self) {
        self.events.close();
    }
}

impl Delivery {
    pub fn fail(&self, error: Error) {
        // The client may be gone, here and below.
        let _ = self.events.send(Event::Ended(Err(error)));
    }

    /// Is no longer counted among those that wait or are written.
    fn leave(&mut self) {
        if let Some(counted) = self.counted.take() {
            counted.dec();
        }
    }
}

impl Listener for Delivery {
    fn begin(&mut self, cached: usize) {
        self.leave();
        self.metrics.running.inc();
        self.counted = Some(self.metrics.running.clone());
        self.metrics.cached.inc_by(cached as u64);
        let _ = self.events.send(Event::Begun { cached });
    }

    fn prompt_likelihoods(&mut self, of: Vec<Likelihoods>) {
        let _ = self.events.send(Event::Prompt(of));
    }

    fn likelihoods(&mut self, of: Likelihoods) {
        self.likelihoods = Some(of);
    }

    fn guide(&mut self) -> Guidance {
        match self.guide.as_mut().map(|guide| guide.next()) {
            None => Guidance::Any,
            Some(Ok(guidance)) => guidance,
            Some(Err(reason)) => {
                self.astray.get_or_insert(reason);
                Guidance::End
            }
        }
    }

    fn token(&mut self, token: u32) -> bool {
        if let Some(Err(reason)) = self.guide.as_mut().map(|guide| guide.take(token)) {
            self.astray.get_or_insert(reason);
        }
        let time = self.since.elapsed().as_secs_f64();
        let histogram = if self.has_token { &self.metrics.between } else { &self.metrics.first };
        histogram.observe(time);
        (self.since, self.has_token) = (Instant::now(), true);
        self.metrics.written.inc();
        self.events.send(Event::Token(token, self.likelihoods.take())).is_ok()
    }

    fn end(&mut self, end: End) {
        // Before the client hears of it, so that it finds the slot free.
        self.leave();
        let result = match end {
            _ if self.astray.is_some() => {
                let reason = self.astray.take().unwrap_or_default();
                Err(Error::Engine(EngineError::new(format!("the form of the text cannot be followed: {reason}"))))
            }
            End::Stop => Ok(Finish::Stop),
            End::Length => Ok(Finish::Length),
            End::Failed(reason) => Err(Error::Engine(EngineError::new(reason))),
        };
        let _ = self.events.send(Event::Ended(result));
    }

    fn is_gone(&self) -> bool {
        self.events.is_closed()
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        self.leave();
    }
}
