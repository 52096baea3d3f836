//! A timeout for the hub, which may accept a connection and then send nothing.

use std::sync::mpsc::{channel, Sender};
use std::time::Duration;
use std::{env, thread};

use hf_hub::api::Progress;
use indicatif::ProgressBar;

/// Environment variable with the timeout in seconds, as for Python's `huggingface_hub`.
const VARIABLE: &str = "HF_HUB_DOWNLOAD_TIMEOUT";
/// The default timeout in seconds.
const SECONDS: u64 = 30;

/// A message from the download thread.
enum Event<T> {
    /// Some bytes arrived.
    Bytes,
    Done(T),
}

/// Reports to the waiting thread that bytes arrived.
pub(crate) struct Heartbeat<T>(Sender<Event<T>>);

/// The timeout in seconds.
pub(crate) fn seconds() -> u64 {
    env::var(VARIABLE).ok().and_then(|seconds| seconds.parse().ok()).filter(|&seconds| seconds > 0).unwrap_or(SECONDS)
}

/// Runs `request` on a separate thread. Returns `None` if the thread reports no progress for `seconds`. It is then left
/// running, because hf-hub has no timeout of its own.
pub(crate) fn call<T: Send + 'static>(
    seconds: u64,
    request: impl FnOnce(Heartbeat<T>) -> T + Send + 'static,
) -> Option<T> {
    let (sender, events) = channel();
    thread::spawn(move || {
        let result = request(Heartbeat(sender.clone()));
        // After a timeout the receiver is gone.
        let _ = sender.send(Event::Done(result));
    });
    loop {
        match events.recv_timeout(Duration::from_secs(seconds)) {
            Ok(Event::Bytes) => {}
            Ok(Event::Done(result)) => return Some(result),
            // A timeout, or a panic in the thread, which has printed its own message.
            Err(_) => return None,
        }
    }
}

/// A progress bar for a download that also reports progress to the waiting thread.
pub(crate) struct Download<T> {
    bar: ProgressBar,
    heartbeat: Heartbeat<T>,
}

impl<T> Download<T> {
    pub fn new(heartbeat: Heartbeat<T>) -> Self {
        Self { bar: ProgressBar::new(0), heartbeat }
    }

    fn report_progress(&self) {
        // After a timeout the receiver is gone.
        let _ = self.heartbeat.0.send(Event::Bytes);
    }
}

impl<T> Progress for Download<T> {
    fn init(&mut self, size: usize, file: &str) {
        self.report_progress();
        Progress::init(&mut self.bar, size, file);
    }

    fn update(&mut self, size: usize) {
        self.report_progress();
        Progress::update(&mut self.bar, size);
    }

    fn finish(&mut self) {
        Progress::finish(&mut self.bar);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_silent_thread_times_out() {
        assert_eq!(call(60, |_| 7), Some(7));
        let busy = |heartbeat| {
            let mut download = Download::new(heartbeat);
            Progress::init(&mut download, 2, "file");
            (0..2).for_each(|_| Progress::update(&mut download, 1));
            Progress::finish(&mut download);
            8
        };
        assert_eq!(call(60, busy), Some(8));
        let (never, silence) = channel::<u32>();
        assert_eq!(call(1, move |_| silence.recv().ok()), None);
        drop(never);
    }
}
