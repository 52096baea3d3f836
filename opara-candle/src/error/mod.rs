//! The error type.

mod convert;
mod decoder;
mod mismatch;
mod state;
mod train;

use std::path::PathBuf;

use candle::{DType, DeviceLocation, Shape};

use opara_plan::trace::FileError;

pub use decoder::DecoderError;
pub use mismatch::Mismatch;
pub(crate) use mismatch::STRESSED;
pub use state::StateError;
pub use train::{TrainError, UnreachedError};

use crate::fault::Fault;

/// Result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an executor could not be built, or a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The module's own error, or candle's.
    #[error(transparent)]
    Candle(candle::Error),

    /// The device has no memory left, for a forward pass or for building. If only building lacks memory, the module runs eagerly
    /// instead.
    #[error(
        "the device has no memory left: {source}. Free some, or give it smaller inputs; \
         `OparaExecutor::invalidate` then lets plans be built anew"
    )]
    OutOfMemory {
        /// The call that failed: [`Error::Driver`], or [`Error::Candle`].
        source: Box<Error>,
    },

    /// The device, or this process's context on it, is lost: a kernel or the hardware failed. Every later use of the device in this
    /// process fails, too.
    #[error("the device is lost: every later call on it fails in this process, so restart the process. {source}")]
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

    /// [`Module::forward`](candle::Module::forward) of an executor was called, but the wrapped function does not have exactly one
    /// output.
    #[error(
        "`forward` returns one tensor, but the wrapped function returns {got}: use `OparaExecutor::call`, which returns all \
         of them"
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
        /// Index of the input.
        index: usize,
        /// The example's device.
        expected: DeviceLocation,
        /// This input's device.
        got: DeviceLocation,
    },

    /// The module fails on an input whose dtype differs from the example's.
    #[error(
        "the module fails on input {index} of dtype {got:?} (the example's was {expected:?}): convert it with \
         `Tensor::to_dtype`; the module's error: {source}"
    )]
    InputDType {
        /// Index of the input.
        index: usize,
        /// The example's dtype.
        expected: DType,
        /// This call's dtype.
        got: DType,
        /// The module's error.
        source: candle::Error,
    },

    /// A step cannot run on this state.
    #[error(transparent)]
    State(#[from] StateError),

    /// A decoder's text cannot go on so.
    #[error(transparent)]
    Decoder(#[from] DecoderError),

    /// A step of training cannot be built.
    #[error(transparent)]
    Training(#[from] TrainError),

    /// The first output of a stream's step is not a tensor of token ids.
    #[error("a stream needs steps whose first output holds token ids in u32, and got {}", got.map_or("none".into(), |dtype| format!("{dtype:?}")))]
    NotTokens {
        /// The dtype of the first output, if there is any.
        got: Option<DType>,
    },

    /// A tensor was made outside the recorded operators, so a replay would not recompute it.
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
        /// Index of the argument.
        argument: usize,
        /// Its shape.
        shape: Shape,
    },

    /// An output was not made by a recorded operator.
    #[error(
        "output {output} was not made by a recorded operator. On the CPU only `opara_candle::ops` and `opara_candle::nn` are \
         recorded: use them in the module to run it in parallel. A CUDA device takes candle's own operators as they are, \
         without any change"
    )]
    UntracedOutput {
        /// Index of the output.
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
        /// The launch of the first pass.
        first: String,
        /// The launch of the second pass.
        second: String,
    },

    /// An operator gave a result of one shape while it was recorded, and of another one later.
    #[error(
        "`{op}` at `{label}` gave {first} while it was recorded, and {second} later: the shape of its result depends on input values, \
         which a replay does not follow"
    )]
    OtherResult {
        /// The operator.
        op: String,
        /// Its scope path.
        label: String,
        /// Dtype and shape of the recorded result.
        first: Box<str>,
        /// Dtype and shape of the later one.
        second: Box<str>,
    },

    /// An example of [`Builder::example`](crate::Builder::example) has other shapes or dtypes than the first one.
    #[error(
        "input {index} of further example {example} is {got_dtype:?} {got:?} where the first example's is \
         {expected_dtype:?} {expected:?}: further examples need its shapes and dtypes"
    )]
    ExampleShape {
        /// Index of the further example.
        example: usize,
        /// Index of the input in it.
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

    /// The module keeps state on the host between calls, or two calls with the same inputs differ for an unknown reason.
    ///
    /// Building has called the module by then, which changed its state: construct the module again.
    #[error(
        "the module keeps state from call to call{}: {reason}. Building has called it, which moved that state on. Make it \
         anew, and carry the state on by `Builder::build_step`, or let plain calls run it from the first one on: \
         `Builder::on_stateful(OnStateful::Eager)`",
        if scope.is_empty() { String::new() } else { format!(" (at `{scope}`)") }
    )]
    Stateful {
        /// The observation that shows it.
        reason: String,
        /// Scope path of the operator at which it was detected; empty if there is none.
        scope: String,
    },

    /// The module fails while it is captured, but not in an eager call.
    #[error("the forward pass cannot be captured: {source}")]
    FailsInCapture {
        /// The module's error.
        source: candle::Error,
    },

    /// The module fails on inputs with the example's shapes and other float values.
    #[error(
        "the forward pass cannot be captured: it fails on other values in inputs of the same shapes, so that a replay \
         cannot be verified on them (with `Builder::verify(false)` it is called with examples only): {source}"
    )]
    FailsOnOtherValues {
        /// The module's error.
        source: candle::Error,
    },

    /// Stream capture failed, or the captured work cannot be replayed.
    #[error("the forward pass cannot be captured: {reason}")]
    NotCapturable {
        /// The cause, and what to do about it.
        reason: String,
    },

    /// The module draws random numbers. Its calls differ without state, and a replay would draw other numbers.
    #[error("the forward pass cannot be captured: {reason}")]
    DrawsRandomNumbers {
        /// The observation that shows it, and its place.
        reason: String,
    },

    /// Executors are switched off. Reports contain this as the reason; calls do not return it.
    #[error("executors are switched off by OPARA_OFF=1 in the environment")]
    SwitchedOff,

    /// A GPU was requested in a build without CUDA.
    #[error("this build has no CUDA: build with `--features cuda`, or `cudnn` for convolutions")]
    NoCuda,

    /// A trace or a schedule was requested, but calls with these inputs run eagerly.
    #[error("nothing is recorded for these inputs, since calls of them run eagerly: {reason}")]
    NotRecorded {
        /// Why these calls run eagerly.
        reason: String,
    },

    /// A report, a trace or times were requested for shapes that have no plan, while another plan of the executor is built. Waiting for
    /// that could take forever, since its module may wait for this thread.
    #[error("another plan of this executor is being built: ask again when the call that builds it has returned")]
    Building,

    /// Times of single ops were requested, but they can be measured on a CUDA device only.
    #[error("times of single ops can be measured for captured modules on a CUDA device only")]
    NotMeasurable,

    /// A closure of [`call_zero_copy`](crate::OparaExecutor::call_zero_copy) calls its own executor with inputs of the same shapes
    /// and dtypes. That call would overwrite the outputs that the closure borrows.
    #[error(
        "the executor was called with the same shapes inside a closure that borrows its outputs: copy them and call it after \
         the closure"
    )]
    OutputsBorrowed,

    /// While a plan was built or measured, the module freed memory that the recorded pass reads.
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
    #[error(transparent)]
    Mismatch(#[from] Mismatch),

    /// A trace that contradicts itself.
    #[error("op {op} (`{name}`) of the trace is invalid: {reason}")]
    InvalidTrace {
        /// Index of the op.
        op: usize,
        /// Its name.
        name: String,
        /// The contradiction.
        reason: String,
    },

    /// A trace file could not be read or written.
    #[error("trace file `{}`: {source}", path.display())]
    TraceFile {
        /// The file.
        path: PathBuf,
        /// The cause, with its position in the file.
        source: FileError,
    },

    /// A [`Scheduler`](opara_plan::schedule::Scheduler) of the user's own panicked.
    #[error("the scheduler `{scheduler}` panicked: {message}")]
    SchedulerPanicked {
        /// Its name.
        scheduler: String,
        /// The panic's message.
        message: String,
    },

    /// A schedule that violates a dependency.
    #[error("invalid schedule: {0}")]
    InvalidSchedule(String),

    /// A memory layout in which two live buffers overlap.
    #[error("invalid memory layout: {0}")]
    InvalidLayout(String),

    /// A bug of this library.
    #[error("internal fault of opara-candle, please report it: {message}")]
    Internal {
        /// A description of the fault.
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
    /// Is it a reason for a decoder to run eagerly, at least for now?
    pub(crate) fn is_refusal(&self) -> bool {
        self.is_uncapturable() || matches!(self, Error::OutOfMemory { .. })
    }

    /// Can the module run eagerly instead? A module that keeps state cannot: building has called it, so that eager calls would
    /// continue from a changed state.
    pub fn is_uncapturable(&self) -> bool {
        use Error::*;
        matches!(
            self,
            UntracedTensor { .. }
                | UntracedOutput { .. }
                | Unstable { .. }
                | OtherResult { .. }
                | FailsInCapture { .. }
                | FailsOnOtherValues { .. }
                | NotCapturable { .. }
                | DrawsRandomNumbers { .. }
                | Mismatch(_)
                | MemoryFreed
        )
    }

    /// [`Error::Stateful`] without the operator at which it was detected.
    pub(crate) fn stateful(reason: impl Into<String>) -> Self {
        Error::Stateful { reason: reason.into(), scope: String::new() }
    }

    /// Wraps this error in the variant of the device's fault, if the device has one.
    pub(crate) fn with_fault(self, fault: Option<Fault>) -> Self {
        match fault {
            Some(Fault::OutOfMemory) => Error::OutOfMemory { source: Box::new(self) },
            Some(Fault::Lost) => Error::DeviceLost { source: Box::new(self) },
            None => self,
        }
    }
}
