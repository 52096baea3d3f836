//! What can go wrong, in terms of what the caller can do about it.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::PathBuf;

use candle::{DType, DeviceLocation, Shape};

use opara_plan::trace::{FileError, InvalidTrace, TraceFileError};

use crate::fault::Fault;

/// Result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an executor could not be built or a call not be answered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The module's own error, or candle's.
    #[error(transparent)]
    Candle(candle::Error),

    /// The device has no memory left, for the module or for building. While it is built, a module that the device has memory
    /// for runs eagerly instead.
    #[error(
        "the device has no memory left: {source}. Free some, or give it smaller inputs; \
         `OparaExecutor::invalidate` then lets plans be built anew"
    )]
    OutOfMemory {
        /// The call that failed: [`Error::Driver`], or [`Error::Candle`].
        source: Box<Error>,
    },

    /// The device is lost, or this process's context on it: a kernel failed, or the hardware did. Whatever uses the device
    /// in this process fails from now on.
    #[error("the device is lost to this process, in which every later call on it fails, too: start it anew. {source}")]
    DeviceLost {
        /// The call that failed: [`Error::Driver`], or [`Error::Candle`].
        source: Box<Error>,
    },

    /// The number of tensors differs from the example's.
    #[error("the executor was built for {expected} input tensors and got {got}")]
    InputCount {
        /// Tensors in the example.
        expected: usize,
        /// Tensors in the call.
        got: usize,
    },

    /// [`Module::forward`](candle::Module::forward) of an executor was called, and the wrapped function has not one output.
    #[error(
        "`forward` answers with one tensor, and the wrapped function returns {got}: use `OparaExecutor::call`, which \
         returns all of them"
    )]
    NotOneOutput {
        /// Tensors that the function returns.
        got: usize,
    },

    /// An input lies on another device than the example did.
    #[error(
        "input {index} is on {got:?} but the executor was built on {expected:?}: move it with `Tensor::to_device`"
    )]
    InputDevice {
        /// Which input.
        index: usize,
        /// Where the example was.
        expected: DeviceLocation,
        /// Where this one is.
        got: DeviceLocation,
    },

    /// An input has a dtype that the module does not take.
    #[error(
        "the module fails on input {index} of dtype {got:?} (the example's was {expected:?}): convert it with \
         `Tensor::to_dtype`; the module said: {source}"
    )]
    InputDType {
        /// Which input.
        index: usize,
        /// The example's dtype.
        expected: DType,
        /// This call's dtype.
        got: DType,
        /// What the module said.
        source: candle::Error,
    },

    /// A tensor was made outside the recorded operators, so a replay would not compute it anew.
    #[error(
        "argument {argument} of `{op}` (shape {shape:?}, at `{label}`) was made inside `forward` by an operator that is \
         not recorded: make it with `opara_candle::ops` or `opara_candle::nn`. On the CPU only these are recorded; a CUDA \
         device takes candle's own operators as they are"
    )]
    UntracedTensor {
        /// The operator that uses the tensor.
        op: String,
        /// Scope path of that operator.
        label: String,
        /// Which argument it is.
        argument: usize,
        /// Its shape.
        shape: Shape,
    },

    /// The module recorded no operator that leads from its inputs to its outputs.
    #[error(
        "output {output} was not made by a recorded operator. On the CPU only `opara_candle::ops` and `opara_candle::nn` are \
         recorded: use them in the module to run it in parallel. A CUDA device takes candle's own operators as they are, \
         without any change"
    )]
    UntracedOutput {
        /// Which output.
        output: usize,
    },

    /// Two forward passes launched different operators.
    #[error(
        "the module does not launch the same operators at every call (first difference at launch {at}: `{first}` then \
         `{second}`): its control flow depends on input values or on state of its own"
    )]
    Unstable {
        /// Index of the launch that differs.
        at: usize,
        /// What the first pass launched there.
        first: String,
        /// What the second pass launched there.
        second: String,
    },

    /// A further example of [`Builder::example`](crate::Builder::example) does not fit the first one.
    #[error(
        "input {index} of further example {example} is {got_dtype:?} {got:?} where the first example's is \
         {expected_dtype:?} {expected:?}: further examples need its shapes and dtypes"
    )]
    ExampleShape {
        /// Which further example.
        example: usize,
        /// Which input of it.
        index: usize,
        /// Shape of the first example's input.
        expected: Shape,
        /// Its dtype.
        expected_dtype: DType,
        /// Shape of this input.
        got: Shape,
        /// Its dtype.
        got_dtype: DType,
    },

    /// The module keeps state on the host from one call to the next, or two calls with the same inputs differ without it.
    ///
    /// Building has called the module by then, so that its state is not what it was: make the module anew.
    #[error(
        "the module keeps state from call to call{}: {reason}. Building has called it, which moved that state on. Make it \
         anew, and pass the state in and out of it as tensors, or let plain calls run it from the first one on: \
         `Builder::on_stateful(OnStateful::Eager)`",
        if scope.is_empty() { String::new() } else { format!(" (at `{scope}`)") }
    )]
    Stateful {
        /// What showed it.
        reason: String,
        /// Scope path of the operator that showed it; empty where none did.
        scope: String,
    },

    /// The module fails while it is captured, and succeeds when it is not.
    #[error("the forward pass cannot be captured: {source}")]
    FailsInCapture {
        /// What the module said.
        source: candle::Error,
    },

    /// The module takes its example, but not the same shapes with other floats in them.
    #[error(
        "the forward pass cannot be captured: it fails on other values in inputs of the same shapes, so that a recording \
         cannot be proven to hold for them (`Builder::verify(false)` feeds it nothing but examples): {source}"
    )]
    FailsOnOtherValues {
        /// What the module said.
        source: candle::Error,
    },

    /// Stream capture failed or recorded something that a replay cannot repeat.
    #[error("the forward pass cannot be captured: {reason}")]
    NotCapturable {
        /// What stood in the way, and what to do about it.
        reason: String,
    },

    /// The module draws random numbers: its calls differ although it keeps no state, and a replay would draw others.
    #[error("the forward pass cannot be captured: {reason}")]
    DrawsRandomNumbers {
        /// How it was found, and where.
        reason: String,
    },

    /// Executors are switched off: a report gives this as the reason, and no call is answered with it.
    #[error("executors are switched off by OPARA_OFF=1 in the environment")]
    SwitchedOff,

    /// A GPU was asked for that this build cannot use.
    #[error("this build has no CUDA: build with `--features cuda`, or `cudnn` for convolutions")]
    NoCuda,

    /// A trace or a schedule was asked for, but calls with these inputs run eagerly.
    #[error("nothing is recorded for these inputs, since calls of them run eagerly: {reason}")]
    NotRecorded {
        /// Why they run eagerly.
        reason: String,
    },

    /// Times of single ops were asked for where they are not measured.
    #[error("times of single ops are measured of captured modules on a CUDA device only")]
    NotMeasurable,

    /// A closure of [`call_zero_copy`](crate::OparaExecutor::call_zero_copy) calls its own executor with inputs of the same shapes
    /// and dtypes. That call would overwrite the outputs that the closure borrows.
    #[error(
        "the executor was called with the same shapes inside a closure that borrows its outputs: copy them and call it after \
         the closure"
    )]
    OutputsBorrowed,

    /// The module freed memory that its recorded pass reads, while a plan was built or measured.
    #[error(
        "the module frees memory that its recorded pass reads: let it keep its tensors (weights, caches, tables for each \
         shape) for as long as it lives"
    )]
    MemoryFreed,

    /// The module panicked while it was made, recorded or replayed.
    #[error("the module panicked: {message}")]
    Panicked {
        /// The panic's message.
        message: String,
    },

    /// A replay's bits differ from the eager result's.
    #[error("{}, so {}", difference(self), blame(mode))]
    Mismatch {
        /// Which replay.
        mode: &'static str,
        /// Which output.
        output: usize,
        /// Elements whose bits differ.
        differing: usize,
        /// Elements in all.
        elements: usize,
    },

    /// A trace that contradicts itself.
    #[error("op {op} (`{name}`) of the trace is invalid: {reason}")]
    InvalidTrace {
        /// Which op.
        op: usize,
        /// Its name.
        name: String,
        /// What is wrong.
        reason: String,
    },

    /// A trace file could not be read or written.
    #[error("trace file `{}`: {source}", path.display())]
    TraceFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, and where.
        source: FileError,
    },

    /// A [`Scheduler`](crate::schedule::Scheduler) of the user's own panicked.
    #[error("the scheduler `{scheduler}` panicked: {message}")]
    SchedulerPanicked {
        /// Its name.
        scheduler: String,
        /// The panic's message.
        message: String,
    },

    /// A schedule that does not respect its graph.
    #[error("invalid schedule: {0}")]
    InvalidSchedule(String),

    /// A memory layout that lets two live buffers overlap.
    #[error("invalid memory layout: {0}")]
    InvalidLayout(String),

    /// A fault of this library.
    #[error("internal fault of opara-candle, please report it: {message}")]
    Internal {
        /// What went wrong.
        message: String,
    },

    /// A call of the CUDA driver failed.
    #[error("{call} failed: {message}")]
    Driver {
        /// The driver function.
        call: &'static str,
        /// The driver's own text.
        message: String,
    },
}

impl Error {
    /// Whether the module itself is sound, so that it can run eagerly instead. A module that keeps state is not: building
    /// has called it, so that eager calls would go on from another state than the caller's.
    pub fn is_uncapturable(&self) -> bool {
        use Error::*;
        matches!(
            self,
            UntracedTensor { .. }
                | UntracedOutput { .. }
                | Unstable { .. }
                | FailsInCapture { .. }
                | FailsOnOtherValues { .. }
                | NotCapturable { .. }
                | DrawsRandomNumbers { .. }
                | Mismatch { .. }
                | MemoryFreed
        )
    }

    /// That the module keeps state, with no operator that shows where.
    pub(crate) fn stateful(reason: impl Into<String>) -> Self {
        Error::Stateful { reason: reason.into(), scope: String::new() }
    }

    /// This error as one of a device that has a fault; itself where it has none.
    pub(crate) fn with_fault(self, fault: Option<Fault>) -> Self {
        match fault {
            Some(Fault::OutOfMemory) => Error::OutOfMemory { source: Box::new(self) },
            Some(Fault::Lost) => Error::DeviceLost { source: Box::new(self) },
            None => self,
        }
    }
}

impl From<candle::Error> for Error {
    fn from(error: candle::Error) -> Self {
        match error {
            // Of an executor in a module, or of a module that panicked.
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

/// Whether [`candle::Error::from`] made this of an error that comes back as it was.
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
            // Known again by `Error::from`: candle's one variant that can be looked into.
            own @ (Error::OutOfMemory { .. }
            | Error::DeviceLost { .. }
            | Error::Panicked { .. }
            | Error::NotOneOutput { .. }) => candle::Error::Cuda(Box::new(own)),
            other => candle::Error::wrap(other),
        }
    }
}

/// What of a replay differs, without a reason.
pub(crate) fn difference(mismatch: &Error) -> String {
    match mismatch {
        Error::Mismatch { mode, output, differing, elements } => format!(
            "output {output} of the {mode} differs from the module's own result in {differing} of {elements} elements"
        ),
        other => other.to_string(),
    }
}

/// What a replay that differs says about the module, once no other schedule helps.
fn blame(mode: &str) -> &'static str {
    match mode {
        STRESSED => "the schedule misses a dependency: please report it",
        _ => {
            "the module is not a pure function of its inputs: its own code reads values of tensors, draws random numbers, \
             or does something else at every call. Compute outputs from inputs and weights by operators alone"
        }
    }
}

/// What [`Error::Mismatch`] calls a replay that was held up on purpose.
pub(crate) const STRESSED: &str = "replay under stress";

/// The result of `f`, with a panic as an error.
pub(crate) fn caught<T>(f: impl FnOnce() -> Result<T>) -> Result<T> {
    caught_as(|message| Error::Panicked { message }, f)
}

/// The result of `f`, with a panic as the error that `error` makes of its message.
pub(crate) fn caught_as<T>(error: impl FnOnce(String) -> Error, f: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|payload| Err(error(panic_message(&*payload))))
}

/// The message of a caught panic.
fn panic_message(payload: &(dyn std::any::Any + Send)) -> String {
    payload
        .downcast_ref::<&str>()
        .map(|s| s.to_string())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".into())
}

#[cfg(test)]
mod tests {
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
