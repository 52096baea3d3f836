//! Waiting for the hub, which may accept a connection and then stay silent.

use std::sync::mpsc::{channel, Sender};
use std::time::Duration;
use std::{env, thread};

use hf_hub::api::Progress;
use indicatif::ProgressBar;

/// Says how many seconds the hub may be silent, as for Python's `huggingface_hub`.
const VARIABLE: &str = "HF_HUB_DOWNLOAD_TIMEOUT";
/// Without it.
const SECONDS: u64 = 30;

/// What comes from the thread that talks to the hub.
enum Sign<T> {
    /// Some bytes.
    Life,
    End(T),
}

/// Tells the waiting thread that bytes arrive.
pub(crate) struct Life<T>(Sender<Sign<T>>);

/// Seconds that the hub may be silent.
pub(crate) fn seconds() -> u64 {
    env::var(VARIABLE).ok().and_then(|seconds| seconds.parse().ok()).filter(|&seconds| seconds > 0).unwrap_or(SECONDS)
}

/// What `talk` gives on a thread of its own; `None` if that shows no sign of life for so many seconds. Such a thread is left to
/// itself: hf-hub has no timeout of its own.
pub(crate) fn wait<T: Send + 'static>(seconds: u64, talk: impl FnOnce(Life<T>) -> T + Send + 'static) -> Option<T> {
    let (sender, signs) = channel();
    thread::spawn(move || {
        let result = talk(Life(sender.clone()));
        // Nobody waits any longer if it took too long.
        let _ = sender.send(Sign::End(result));
    });
    loop {
        match signs.recv_timeout(Duration::from_secs(seconds)) {
            Ok(Sign::Life) => {}
            Ok(Sign::End(result)) => return Some(result),
            // A thread that panicked has said why, and does not answer either.
            Err(_) => return None,
        }
    }
}

/// A bar for a download, which shows signs of life.
pub(crate) struct Download<T> {
    bar: ProgressBar,
    life: Life<T>,
}

impl<T> Download<T> {
    pub fn new(life: Life<T>) -> Self {
        Self { bar: ProgressBar::new(0), life }
    }

    fn lives(&self) {
        // Nobody waits any longer if it took too long.
        let _ = self.life.0.send(Sign::Life);
    }
}

impl<T> Progress for Download<T> {
    fn init(&mut self, size: usize, file: &str) {
        self.lives();
        Progress::init(&mut self.bar, size, file);
    }

    fn update(&mut self, size: usize) {
        self.lives();
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
    fn only_silence_ends_the_wait() {
        assert_eq!(wait(60, |_| 7), Some(7));
        let busy = |life| {
            let mut download = Download::new(life);
            Progress::init(&mut download, 2, "file");
            (0..2).for_each(|_| Progress::update(&mut download, 1));
            Progress::finish(&mut download);
            8
        };
        assert_eq!(wait(60, busy), Some(8));
        let (never, silence) = channel::<u32>();
        assert_eq!(wait(1, move |_| silence.recv().ok()), None);
        drop(never);
    }
}
