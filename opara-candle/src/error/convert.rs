//! Conversions between the error type and the errors of candle and `opara-plan`.

use opara_plan::trace::{InvalidTrace, TraceFileError};

use super::Error;
use crate::fault::Fault;

impl From<candle::Error> for Error {
    fn from(error: candle::Error) -> Self {
        match error {
            // From an executor inside a module, or a module that panicked.
            candle::Error::WithBacktrace { inner, .. } if is_own(&inner) => Self::from(*inner),
            candle::Error::Context { inner, .. } if is_own(&inner) => Self::from(*inner),
            candle::Error::Cuda(inner) => match inner.downcast::<Error>() {
                Ok(own) => *own,
                Err(other) => of_candle(candle::Error::Cuda(other)),
            },
            error => of_candle(error),
        }
    }
}

fn of_candle(error: candle::Error) -> Error {
    let fault = Fault::of(&error);
    Error::Candle(error).with_fault(fault)
}

/// Is this an [`Error`] that [`candle::Error::from`] wrapped?
fn is_own(error: &candle::Error) -> bool {
    match error {
        candle::Error::WithBacktrace { inner, .. } | candle::Error::Context { inner, .. } => is_own(inner),
        candle::Error::Cuda(inner) => inner.is::<Error>(),
        _ => false,
    }
}

impl From<opara_plan::Error> for Error {
    fn from(error: opara_plan::Error) -> Self {
        match error {
            opara_plan::Error::InvalidTrace(error) => error.into(),
            opara_plan::Error::TraceFile(error) => error.into(),
            opara_plan::Error::InvalidSchedule(reason) => Error::InvalidSchedule(reason),
            opara_plan::Error::InvalidLayout(reason) => Error::InvalidLayout(reason),
            other => Error::Internal { message: other.to_string() },
        }
    }
}

impl From<InvalidTrace> for Error {
    fn from(InvalidTrace { op, name, reason }: InvalidTrace) -> Self {
        Error::InvalidTrace { op, name, reason }
    }
}

impl From<TraceFileError> for Error {
    fn from(TraceFileError { path, source }: TraceFileError) -> Self {
        Error::TraceFile { path, source }
    }
}

impl From<Error> for candle::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Candle(error) => error,
            Error::OutOfMemory { source } | Error::DeviceLost { source } if matches!(*source, Error::Candle(_)) => {
                (*source).into()
            }
            // `Error::from` unwraps these again. `Cuda` is candle's only variant that can be downcast.
            own @ (Error::OutOfMemory { .. }
            | Error::DeviceLost { .. }
            | Error::Panicked { .. }
            | Error::Training(_)
            | Error::NotOneOutput { .. }) => candle::Error::Cuda(Box::new(own)),
            other => candle::Error::wrap(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use opara_plan::trace::FileError;

    use super::*;

    #[test]
    fn errors_of_plans_keep_kind_and_message() {
        let trace = InvalidTrace { op: 3, name: "badd_f32".into(), reason: "it ends early".into() };
        let file = TraceFileError { path: "a.trace".into(), source: FileError::Foreign };
        for error in [
            opara_plan::Error::InvalidTrace(trace),
            opara_plan::Error::TraceFile(file),
            opara_plan::Error::InvalidSchedule("op 1 has no stream".into()),
            opara_plan::Error::InvalidLayout("buffers 1 and 2 overlap".into()),
        ] {
            let message = error.to_string();
            let kind = format!("{error:?}");
            let error = Error::from(error);
            assert_eq!(error.to_string(), message);
            let same_kind = match error {
                Error::InvalidTrace { .. } => kind.starts_with("InvalidTrace"),
                Error::TraceFile { .. } => kind.starts_with("TraceFile"),
                Error::InvalidSchedule(_) => kind.starts_with("InvalidSchedule"),
                Error::InvalidLayout(_) => kind.starts_with("InvalidLayout"),
                _ => false,
            };
            assert!(same_kind, "{kind} became {error:?}");
        }
    }
}
