//! The writer: a queue of requests, and a thread for each device that writes them.

use std::sync::Arc;
use std::thread::JoinHandle;

use opara_models::decoder::{Decoder, Request, Scheduler, Terms};
use parking_lot::Mutex;

use super::delivery::{channel, Receiver};
use super::shared::{Shared, Waiting};
use super::worker;
use crate::batch::{Result, TextMetrics};

/// Writes texts for many requests; see the [module](super).
///
/// Dropping it ends its threads once all requests that it has taken are answered. [`drain`](Self::drain) waits for that.
pub struct Writer {
    shared: Arc<Shared>,
    model: Arc<Decoder>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Writer {
    /// Starts a thread for each scheduler, of which there is one a device, all of the same model. At most `limit` requests wait.
    ///
    /// # Panics
    /// Without a scheduler.
    pub fn start(schedulers: Vec<Scheduler>, limit: usize, metrics: TextMetrics) -> Self {
        let model = schedulers.first().expect("there is a device").model().clone();
        let shared = Arc::new(Shared::new(schedulers.len(), limit, metrics));
        let start = |(worker, mut scheduler): (usize, Scheduler)| {
            let shared = shared.clone();
            std::thread::spawn(move || worker::run(&shared, &mut scheduler, worker))
        };
        let threads = Mutex::new(schedulers.into_iter().enumerate().map(start).collect());
        Self { shared, model, threads }
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
    pub(super) fn submit(&self, request: Request, terms: Terms, client: u64) -> Result<Receiver> {
        let (delivery, receiver) = channel(self.shared.metrics.clone());
        let tokens = request.prompt.len() as u64;
        self.shared.push(Waiting { request, terms, delivery }, client)?;
        self.shared.metrics.prompt.inc_by(tokens);
        Ok(receiver)
    }

    /// Whether requests are taken.
    pub fn is_ready(&self) -> bool {
        !self.shared.is_draining() && !self.is_lost()
    }

    /// Whether the device of every scheduler is lost.
    pub fn is_lost(&self) -> bool {
        self.shared.workers() == 0
    }

    /// Takes no more requests, writes those that it has taken, and ends its threads. Blocks until that is done.
    pub fn drain(&self) {
        self.shared.close();
        let threads = std::mem::take(&mut *self.threads.lock());
        for thread in threads {
            // A worker catches panics of its scheduler.
            let _ = thread.join();
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.shared.close();
    }
}
