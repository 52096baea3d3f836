//! Captures of a stream.

use opara_interpose::{CapturePool, Captured, CapturedWork};

use super::{check, CapturedGraph, Stream};
use crate::trace::scope;
use crate::{Error, Result};

impl Stream {
    /// A pool on this stream's device, for captures of such work.
    ///
    /// # Errors
    /// No memory left.
    pub fn capture_pool(&self, work: CapturedWork) -> Result<CapturePool> {
        Ok(CapturePool::take(self.cudarc(), work)?)
    }

    /// Captures what `f` launches from this thread on this stream. The capture is on a private stream; if work of the pool
    /// runs, it also runs on this stream, like the work of other threads. Allocations of `f` come from `pool`.
    ///
    /// # Errors
    /// [`Error::NotCapturable`] with the driver's or the module's reason, or [`Error::DrawsRandomNumbers`]. The stream
    /// stays usable.
    pub fn capture<T>(
        &self,
        pool: &CapturePool,
        f: impl FnOnce() -> Result<T>,
    ) -> std::result::Result<(T, CapturedGraph), Broken> {
        self.capture_in(Some(pool), f)
    }

    /// Captures what `f` launches from this thread on this stream, without running it. `f` must not allocate.
    ///
    /// # Errors
    /// Errors of [`capture`](Self::capture).
    pub fn capture_only<T>(&self, f: impl FnOnce() -> Result<T>) -> Result<(T, CapturedGraph)> {
        self.capture_in(None, f).map_err(|broken| broken.error)
    }

    fn capture_in<T>(
        &self,
        pool: Option<&CapturePool>,
        f: impl FnOnce() -> Result<T>,
    ) -> std::result::Result<(T, CapturedGraph), Broken> {
        let captured = opara_interpose::capture(self.cudarc(), pool, scope::path, f).map_err(|error| match error {
            opara_interpose::Error::EndedByOtherThread => {
                let reason = "deadlock: another thread waited for the device, and the module waited for that thread";
                Broken { by_driver: true, error: Error::NotCapturable { reason: reason.into() } }
            }
            error => Error::from(error).into(),
        })?;
        let Captured { result, graph, status, mut recorded } = captured;
        let refused = recorded.refused.take().map(Error::from);
        // SAFETY: the driver returned the graph and its ownership, or null.
        let captured = unsafe { CapturedGraph::from_raw(graph, self.clone(), recorded) };
        let ended = check("cuStreamEndCapture", status);
        let reason = |error: Error| match error {
            lost @ Error::DeviceLost { .. } => lost,
            error => Error::NotCapturable { reason: error.to_string() },
        };
        let by_driver = ended.is_err() && refused.is_none();
        let failed = match (&result, refused) {
            (_, Some(refused)) => Some(refused),
            (Err(_), None) => None,
            (Ok(_), None) => ended.err().map(reason),
        };
        let Some(captured) = captured else {
            let nothing = || Error::NotCapturable { reason: "the driver returned no graph".into() };
            return Err(Broken { by_driver, error: failed.or(result.err()).unwrap_or_else(nothing) });
        };
        match (failed, result) {
            (None, Ok(result)) => Ok((result, captured)),
            (Some(error), _) | (None, Err(error)) => Err(error.into()),
        }
    }
}

/// A failed capture.
pub(in crate::cuda) struct Broken {
    /// Why.
    pub error: Error,
    /// Did the driver end it for a reason outside the module? Another thread may have waited for the whole device, as
    /// libraries do when they create or destroy a handle.
    pub by_driver: bool,
}

impl From<Error> for Broken {
    fn from(error: Error) -> Self {
        Self { error, by_driver: false }
    }
}
