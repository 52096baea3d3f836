//! What the pipeline asks of a device: record a forward pass, and turn a schedule into something that replays it.

use std::path::PathBuf;
use std::sync::Arc;

use candle::Tensor;

use crate::prepared::Prepared;
use crate::report::Mode;
use crate::schedule::Schedule;
use crate::trace::Trace;
use crate::{Error, Result};

/// A module, or any function of several tensors to several tensors.
pub(crate) type Function = Arc<dyn Fn(&[Tensor]) -> candle::Result<Vec<Tensor>> + Send + Sync>;

/// Inputs with the outputs that an eager forward gave, and the time that it took.
pub(crate) struct Example {
    pub inputs: Vec<Tensor>,
    pub outputs: Vec<Tensor>,
    pub eager_us: f64,
}

impl Example {
    /// The outputs alone: those of a module with [variables](candle::Var) would hold all that they were computed from.
    pub fn new(inputs: Vec<Tensor>, outputs: &[Tensor], eager_us: f64) -> Self {
        Self { inputs, outputs: outputs.iter().map(Tensor::detach).collect(), eager_us }
    }
}

/// How chains of launches become one launch each.
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only launches on a GPU are fused"))]
#[derive(Debug)]
pub(crate) struct Fusing {
    /// Keeps the kernels that are compiled for that.
    pub folder: Option<PathBuf>,
}

/// A recorded forward pass.
pub(crate) struct Recording {
    /// The launches as the module made them.
    pub trace: Arc<Trace>,
    /// What could be faster and is not, and why.
    pub notes: Vec<String>,
    pub examples: Vec<Example>,
    pub program: Box<dyn Program>,
}

/// A recorded forward pass some of whose launches are fused.
pub(crate) struct FusedProgram {
    /// With one op for each group of launches.
    pub trace: Arc<Trace>,
    /// Launches that others stand for, of the same results.
    pub replaced: usize,
    /// What could be faster and is not, and why.
    pub notes: Vec<String>,
    pub program: Box<dyn Program>,
}

/// What is replayed, and in which order.
#[derive(Clone)]
pub(crate) struct Planned {
    pub program: Arc<dyn Program>,
    /// The recorded trace after fusion: what the program launches, one op a launch.
    pub trace: Arc<Trace>,
    pub prepared: Arc<Prepared>,
    pub schedule: Schedule,
}

impl Planned {
    /// The same with another schedule.
    pub fn with(&self, schedule: Schedule) -> Arc<Self> {
        Arc::new(Self { schedule, ..self.clone() })
    }
}

/// For each op the nanoseconds at which it began and ended.
pub(crate) type Spans = Vec<(u64, u64)>;

/// What a device needs beside the trace to launch the ops again.
pub(crate) trait Program: Send + Sync {
    /// The same pass with groups of launches replaced by one launch each, where the device has a way to.
    ///
    /// # Errors
    /// A call of the driver that failed.
    fn fuse(self: Box<Self>, fusing: Fusing) -> Result<FusedProgram>;

    /// Something that runs the folded ops now and replays the others as planned.
    fn replay(self: Arc<Self>, plan: Arc<Planned>) -> Result<Box<dyn Replay>>;

    /// Puts the module's state on the device back to what it was before building.
    fn restore_state(&self) -> Result<()> {
        Ok(())
    }

    /// Building has ended: does the same for the last time.
    fn end_of_building(&self) -> Result<()> {
        Ok(())
    }

    /// When each op runs, in each of so many replays of a plan.
    fn spans(self: Arc<Self>, _plan: Arc<Planned>, _inputs: &[Tensor], _rounds: usize) -> Result<Vec<Spans>> {
        Err(Error::NotMeasurable)
    }

    /// As [`replay`](Self::replay), with random launches held up and the arena poisoned before each call, where the
    /// device has a way to.
    fn stressed(self: Arc<Self>, plan: Arc<Planned>, _seed: u64) -> Result<Box<dyn Replay>> {
        self.replay(plan)
    }
}

/// A forward pass that can be replayed from any thread.
pub(crate) trait Replay: Send + Sync {
    /// How it replays.
    fn mode(&self) -> Mode;

    /// Outputs of their own for these inputs, which have the shapes and dtypes of the recording.
    ///
    /// # Errors
    /// [`Error::Freed`] once it [is stale](Self::is_stale); [`Error::Lent`] if another thread's closure has the outputs and
    /// this thread is in such a closure, too, and so must not wait for it.
    fn call(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>>;

    /// Lends the outputs to `f`; the next call overwrites them. The errors are those of [`call`](Self::call).
    fn lend(&self, inputs: &[Tensor], f: &mut dyn FnMut(&[Tensor])) -> Result<()> {
        f(&self.call(inputs)?);
        Ok(())
    }

    /// Whether a replay computes with these inputs what the module does: not if the module writes to memory that they share
    /// with one of its weights, since a replay reads its inputs in another order.
    fn takes(&self, _inputs: &[Tensor]) -> bool {
        true
    }

    /// Another schedule of the same prepared trace. It shares memory with this one where that saves some, so the two
    /// take turns.
    fn rescheduled(&self, plan: Arc<Planned>) -> Result<Box<dyn Replay>> {
        plan.program.clone().replay(plan)
    }

    /// Whether memory that it reads, and does not own, has been freed: then it may not be called any more.
    fn is_stale(&self) -> bool {
        false
    }

    /// Ways of replaying among which measurement decides.
    fn variants(&self) -> usize {
        1
    }

    /// Uses this variant from now on.
    fn choose(&mut self, _variant: usize) {}
}
