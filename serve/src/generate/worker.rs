//! The loop of a worker thread.

use std::panic::{catch_unwind, AssertUnwindSafe};

use opara_models::decoder::{DecoderError, Scheduler};

use super::delivery::Delivery;
use super::shared::{Ends, Shared, Waiting};
use crate::batch::{EngineError, Error};

/// Writes texts until the writer has drained or the scheduler's device is lost.
pub(super) fn run(shared: &Shared, scheduler: &mut Scheduler, worker: usize) {
    let mut ends = Ends::new();
    while let Some(joining) = shared.take(scheduler.free(), scheduler.live() == 0) {
        let result = catch_unwind(AssertUnwindSafe(|| {
            joining.into_iter().try_for_each(|waiting| join(scheduler, waiting))?;
            let before = scheduler.live();
            let result = scheduler.turn(|| shared.is_awaited());
            ends.note(before - scheduler.live(), shared);
            result
        }));
        let error = match result {
            Ok(Ok(())) => continue,
            Ok(Err(error)) => engine_error(error),
            Err(_) => EngineError::new(Error::Panicked),
        };
        // Texts that are under way are lost; others may come.
        scheduler.fail(&error.to_string());
        if error.is_fatal() {
            tracing::error!(%error, worker, "a device is lost: its worker ends");
            return shared.lose_worker();
        }
        tracing::error!(%error, worker, "texts failed");
    }
}

/// Gives a request a slot. Requests were checked before.
fn join(scheduler: &mut Scheduler, waiting: Waiting) -> Result<(), DecoderError> {
    let Waiting { request, terms, delivery } = waiting;
    scheduler.join_on(terms, request, Box::<Delivery>::new(delivery))
}

fn engine_error(error: DecoderError) -> EngineError {
    match error {
        DecoderError::Executor(error) => error.into(),
        DecoderError::Candle(error) => error.into(),
        error => EngineError::new(error),
    }
}
