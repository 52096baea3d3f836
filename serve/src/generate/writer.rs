//! The writer: a tokenizer, a queue of requests, and a thread for each device that writes them.

use std::sync::Arc;
use std::thread::JoinHandle;

use opara_models::decoder::{Decoder, Text};
use opara_models::engine::{Engine, Request};
use parking_lot::Mutex;

use super::delivery::{channel, Receiver};
use super::guide::Guide;
use super::shared::{Shared, Waiting};
use super::worker;
use crate::batch::{Result, TextMetrics};

/// Writes texts for many requests; see the [module](super).
///
/// Dropping it ends its threads once all requests that it has taken are answered. [`drain`](Self::drain) waits for that.
pub struct Writer {
    shared: Arc<Shared>,
    model: Arc<Decoder>,
    pub(super) text: Arc<Text>,
    /// Bytes of the longest text that may fit the context, as far as can be said without its tokens.
    pub(super) most_bytes: usize,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Writer {
    /// Starts a thread for each engine, of which there is one a device, all of the same model, whose tokenizer `text` is. At most `limit`
    /// requests wait.
    ///
    /// # Panics
    /// Without an engine.
    pub fn start(engines: Vec<Engine<Decoder>>, text: Arc<Text>, limit: usize, metrics: TextMetrics) -> Self {
        let model = engines.first().expect("there is a device").model().clone();
        let of_a_token = text.bytes_of_a_token().unwrap_or(usize::MAX);
        let most_bytes = of_a_token.saturating_mul(model.context());
        metrics.slots.set(engines.iter().map(|engine| engine.free() as i64).sum());
        metrics.pages.set(engines.iter().map(|engine| engine.pages().map_or(0, |(_, all)| all as i64)).sum());
        let shared = Arc::new(Shared::new(engines.len(), limit, metrics));
        let start = |(worker, mut engine): (usize, Engine<Decoder>)| {
            let shared = shared.clone();
            std::thread::spawn(move || worker::run(&shared, &mut engine, worker))
        };
        let threads = Mutex::new(engines.into_iter().enumerate().map(start).collect());
        Self { shared, model, text, most_bytes, threads }
    }

    /// The tokenizer and the chat template.
    pub fn text(&self) -> &Arc<Text> {
        &self.text
    }

    /// The model of the first device.
    pub fn model(&self) -> &Decoder {
        &self.model
    }

    /// Puts a request, which is [sound](Request::check), into the queue. Clients take turns.
    ///
    /// # Errors
    /// [`Full`](crate::batch::Error::Full), [`Draining`](crate::batch::Error::Draining) and
    /// [`NoDevice`](crate::batch::Error::NoDevice), at once.
    pub(super) fn submit(&self, request: Request, guide: Option<Box<dyn Guide>>, client: u64) -> Result<Receiver> {
        let (delivery, receiver) = channel(self.shared.metrics.clone(), guide);
        let tokens = request.prompt.len() as u64;
        self.shared.push(Waiting { request, delivery }, client)?;
        self.shared.metrics.prompt.inc_by(tokens);
        Ok(receiver)
    }

    /// Whether requests are taken.
    pub fn is_ready(&self) -> bool {
        !self.shared.is_draining() && !self.is_lost()
    }

    /// Whether the device of every engine is lost.
    pub fn is_lost(&self) -> bool {
        self.shared.workers() == 0
    }

    /// Takes no more requests, writes those that it has taken, and ends its threads. Blocks until that is done.
    pub fn drain(&self) {
        self.shared.close();
        let threads = std::mem::take(&mut *self.threads.lock());
        for thread in threads {
            // A worker catches panics of its engine.
            let _ = thread.join();
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.shared.close();
    }
}
