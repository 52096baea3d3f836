//! The loop of a worker thread.

use std::panic::{catch_unwind, AssertUnwindSafe};

use opara_models::decoder::Decoder;
use opara_models::engine::{Engine, TextError};

use super::delivery::Delivery;
use super::shared::{Ends, Shared, Waiting};
use crate::batch::{EngineError, Error};

/// Writes texts until the writer has drained or the engine's device is lost.
pub(super) fn run(shared: &Shared, engine: &mut Engine<Decoder>, worker: usize) {
    let (mut ends, mut held) = (Ends::new(), 0);
    let together = engine.read_together();
    while let Some(joining) = shared.take(engine.free(), (engine.live() == 0).then_some(together)) {
        let result = catch_unwind(AssertUnwindSafe(|| {
            joining.into_iter().try_for_each(|waiting| add(engine, waiting))?;
            let before = engine.live();
            let result = engine.step(|free| free > 0 && shared.is_awaited());
            ends.note(before - engine.live(), shared);
            result
        }));
        note_pages(engine, &mut held, shared);
        let error = match result {
            Ok(Ok(())) => continue,
            Ok(Err(error)) => engine_error(error),
            Err(_) => EngineError::new(Error::Panicked),
        };
        // Texts that are under way are lost; others may come.
        engine.fail(&error.to_string());
        note_pages(engine, &mut held, shared);
        if error.is_fatal() {
            tracing::error!(%error, worker, "a device is lost: its worker ends");
            return shared.lose_worker();
        }
        tracing::error!(%error, worker, "texts failed");
    }
}

/// Counts the pages that texts have now, where `held` were counted before: other workers count theirs.
fn note_pages(engine: &Engine<Decoder>, held: &mut i64, shared: &Shared) {
    let now = engine.pages().map_or(0, |(held, _)| held as i64);
    shared.metrics.held_pages.inc_by(now - *held);
    *held = now;
}

/// Gives a request a slot. Requests were checked before.
fn add(engine: &mut Engine<Decoder>, waiting: Waiting) -> Result<(), TextError> {
    engine.add(waiting.request, Box::<Delivery>::new(waiting.delivery)).map(|_| ())
}

fn engine_error(error: TextError) -> EngineError {
    match error {
        TextError::Executor(error) => error.into(),
        TextError::Candle(error) => error.into(),
        error => EngineError::new(error),
    }
}
