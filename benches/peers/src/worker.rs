//! A framework in a process of its own; requests and answers are lines of JSON (documented in `python/worker.py`).

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError};
use std::time::Duration;

use anyhow::{anyhow, bail, Context, Result};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// A process that answers each line with one line. It ends when this is dropped.
pub struct Worker {
    process: Child,
    requests: ChildStdin,
    answers: Receiver<String>,
    /// Maximum time for an answer.
    patience: Duration,
    has_ended: bool,
}

impl Worker {
    /// Starts `script` for one framework. Every answer must come within `patience`.
    ///
    /// # Errors
    /// The interpreter does not exist.
    pub fn start(
        python: &str,
        script: &Path,
        framework: &str,
        cache: Option<&Path>,
        patience: Duration,
    ) -> Result<Self> {
        let mut command = Command::new(python);
        command.arg(script).arg(framework);
        if let Some(cache) = cache {
            command.arg("--cache").arg(cache).env("TORCHINDUCTOR_CACHE_DIR", cache.join("inductor"));
        }
        Self::of(command, patience).with_context(|| format!("cannot start {python}"))
    }

    fn of(mut command: Command, patience: Duration) -> Result<Self> {
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (Some(requests), Some(answers)) = (process.stdin.take(), process.stdout.take()) else {
            bail!("the process has no pipes");
        };
        let (sender, received) = channel();
        // A thread reads the lines, so that waiting for one can time out.
        std::thread::spawn(move || {
            let lines = BufReader::new(answers).lines().map_while(|line| line.ok());
            lines.map(|line| sender.send(line)).take_while(|sent| sent.is_ok()).for_each(drop);
        });
        Ok(Self { process, requests, answers: received, patience, has_ended: false })
    }

    /// Was it found that it no longer answers?
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Sends a request. [`answer`](Self::answer) returns the answers in the order of the requests.
    ///
    /// # Errors
    /// The process has ended.
    pub fn send(&mut self, request: &Value) -> Result<()> {
        let sent = writeln!(self.requests, "{request}").and_then(|()| self.requests.flush());
        self.has_ended |= sent.is_err();
        sent.context("the worker has ended")
    }

    /// Waits for the answer to the oldest request that has none.
    ///
    /// # Errors
    /// An error of the worker, an answer with the wrong structure, or no answer. A worker that is silent for too long
    /// is ended.
    pub fn answer<T: DeserializeOwned>(&mut self) -> Result<T> {
        let line = self.answers.recv_timeout(self.patience).map_err(|error| {
            self.has_ended = true;
            match error {
                RecvTimeoutError::Disconnected => anyhow!("the worker has ended"),
                RecvTimeoutError::Timeout => {
                    // The worker will not answer any more, even if it still runs.
                    let _ = self.process.kill();
                    anyhow!("no answer from the worker in {} s", self.patience.as_secs())
                }
            }
        })?;
        let answer: Value = serde_json::from_str(&line).with_context(|| format!("the worker answered {line:?}"))?;
        match answer.get("error") {
            Some(error) => bail!("{}", error.as_str().unwrap_or("the worker failed")),
            None => serde_json::from_value(answer).context("the worker's answer is of another form"),
        }
    }

    /// Sends a request and waits for its answer.
    ///
    /// # Errors
    /// An error of [`send`](Self::send) or [`answer`](Self::answer).
    pub fn ask<T: DeserializeOwned>(&mut self, request: &Value) -> Result<T> {
        self.send(request)?;
        self.answer()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;

    fn worker(script: &str) -> Worker {
        let mut command = Command::new("sh");
        command.arg("-c").arg(script);
        Worker::of(command, Duration::from_secs(60)).expect("a shell")
    }

    #[test]
    fn answers_come_in_the_order_of_requests() -> Result<()> {
        let mut echo = worker("cat");
        echo.send(&json!({"a": 1}))?;
        echo.send(&json!({"b": 2}))?;
        assert_eq!(echo.answer::<BTreeMap<String, u32>>()?, BTreeMap::from([("a".into(), 1)]));
        assert_eq!(echo.answer::<BTreeMap<String, u32>>()?, BTreeMap::from([("b".into(), 2)]));
        Ok(())
    }

    #[test]
    fn errors_of_the_worker_are_returned() {
        let told = |script: &str| worker(script).ask::<Vec<u32>>(&json!({})).expect_err("an error").to_string();
        assert_eq!(told(r#"read x; echo '{"error": "out of memory"}'"#), "out of memory");
        assert_eq!(told("read x; echo nonsense"), "the worker answered \"nonsense\"");
        assert_eq!(told("read x; echo 3"), "the worker's answer is of another form");
        assert_eq!(told("read x; exit 1"), "the worker has ended");
    }

    #[test]
    fn a_missing_interpreter_is_named() {
        let started = Worker::start("no-such-python", Path::new("worker.py"), "torch", None, Duration::MAX);
        assert_eq!(started.err().map(|error| error.to_string()).as_deref(), Some("cannot start no-such-python"));
    }
}
