//! The loop of a worker thread.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::time::Instant;

use super::share::Share;
use super::shared::{Shared, Waiting};
use super::{Bucket, Engine, EngineError, Error, Stage};

/// Runs batches on an engine until the batcher has drained or the engine's device is lost.
pub(super) fn run<E: Engine>(shared: &Shared<E>, engine: usize) {
    let share = match shared.settings.share_cores {
        true => Share::of(shared.engines.len() * shared.settings.in_flight),
        false => Share::none(),
    };
    let all = Share::none();
    while let Some((bucket, batch)) = shared.next() {
        count(shared, engine, bucket, &batch);
        let (busy, start) = (&shared.busy[engine], Instant::now());
        let is_alone = busy.begin(start) == 1 && shared.state.lock().queue.len() == 0;
        let result = answers(&shared.engines[engine], bucket, &batch, if is_alone { &all } else { &share });
        let time = start.elapsed();
        busy.end(start + time, shared.engines[engine].device_time(bucket));
        shared.took(batch.len(), time);
        shared.settings.metrics.time(Stage::Execute, time);
        match result {
            Ok(answers) => {
                batch.iter().zip(answers).for_each(|(waiting, answer)| waiting.call.fill(waiting.index, answer));
            }
            Err(Error::Engine(error)) if error.is_fatal() => {
                tracing::error!(%error, engine, "a device is lost: its worker ends");
                return shared.lose_worker(batch, &error);
            }
            Err(error) => {
                if error == Error::Panicked {
                    shared.settings.metrics.panics.inc();
                }
                tracing::error!(%error, engine, %bucket, rows = batch.len(), "a batch failed");
                batch.iter().for_each(|waiting| waiting.call.fail(error.clone()));
            }
        }
    }
}

fn count<E: Engine>(shared: &Shared<E>, engine: usize, bucket: Bucket, batch: &[Waiting<E>]) {
    let (metrics, now) = (&shared.settings.metrics, Instant::now());
    let rows: usize = batch.iter().map(|waiting| shared.engines[engine].length(&waiting.row)).sum();
    metrics.batch_rows.observe(batch.len() as f64);
    metrics.row_tokens.inc_by(rows as u64);
    metrics.padding_tokens.inc_by((bucket.batch * bucket.length).saturating_sub(rows) as u64);
    batch.iter().for_each(|waiting| metrics.time(Stage::Queue, now.duration_since(waiting.since)));
}

/// One answer a row.
fn answers<E: Engine>(
    engine: &E,
    bucket: Bucket,
    batch: &[Waiting<E>],
    share: &Share,
) -> Result<Vec<E::Answer>, Error> {
    let rows: Vec<&E::Row> = batch.iter().map(|waiting| &waiting.row).collect();
    let run = || engine.run(bucket, &rows);
    // An engine keeps nothing of ours, and its own locks are its own affair.
    let answers =
        catch_unwind(AssertUnwindSafe(|| share.run(run))).map_err(|_| Error::Panicked)?.map_err(Error::Engine)?;
    match answers.len() == rows.len() {
        true => Ok(answers),
        false => {
            let message = format!("the engine gave {} answers for {} rows", answers.len(), rows.len());
            Err(Error::Engine(EngineError::new(message)))
        }
    }
}
