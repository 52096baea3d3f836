//! The interface of a device: record a forward pass, and replay it by a schedule.

use std::path::PathBuf;
use std::sync::Arc;

use candle::Tensor;
use opara_plan::rewrite::Outcome;

use crate::report::{Mode, Rewrite};
use crate::timing::StageTimes;
use crate::trace::Trace;
use crate::{Error, Result};
use opara_plan::prepared::{Prepared, Settings};
use opara_plan::schedule::Schedule;

/// A module, or any function of several tensors to several tensors. The last of its arguments may be the state of a step.
pub(crate) type Function = Arc<dyn Fn(&[Tensor]) -> candle::Result<Vec<Tensor>> + Send + Sync>;

/// Inputs with the outputs that an eager forward gave, and the time that it took.
#[derive(Clone)]
pub(crate) struct Example {
    /// All arguments. A state among them is as it was before the call.
    pub inputs: Vec<Tensor>,
    /// The outputs, then the state after the call.
    pub outputs: Vec<Tensor>,
    pub eager_us: f64,
    /// Had the device still more than a tenth of the time to compute when the call returned? Then it was not kept waiting for launches.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "there is no device"))]
    pub is_device_behind: bool,
    /// Did the user give the inputs? If not, they are those of an example with other floats.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only launches on a GPU are rewritten"))]
    pub is_given: bool,
}

impl Example {
    /// Detaches the outputs: if the module has [variables](candle::Var), they would otherwise keep every intermediate
    /// tensor alive.
    pub fn new(inputs: Vec<Tensor>, outputs: &[Tensor], eager_us: f64) -> Self {
        let outputs = outputs.iter().map(Tensor::detach).collect();
        Self { inputs, outputs, eager_us, is_device_behind: false, is_given: true }
    }
}

/// Settings of kernel fusion.
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only launches on a GPU are fused"))]
#[derive(Debug, Clone)]
pub(crate) struct Fusing {
    /// The disk cache of fused kernels; `None` keeps none.
    pub folder: Option<PathBuf>,
}

/// A recorded forward pass.
pub(crate) struct Recording {
    /// The launches as the module made them.
    pub trace: Arc<Trace>,
    /// Missed speed-ups, and their reasons.
    pub notes: Vec<String>,
    pub examples: Vec<Example>,
    pub program: Box<dyn Program>,
    /// Microseconds for which the device still computed when eager calls of the module had returned.
    pub unfinished_us: f64,
}

/// Settings of rewriting.
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only launches on a GPU are rewritten"))]
#[derive(Debug)]
pub(crate) struct Rewriting {
    /// Settings of prepared traces, for the candidates that are timed.
    pub settings: Settings,
    /// Names of rules that are switched off.
    pub without: Vec<String>,
    /// The disk cache of what came of rewriting; `None` keeps nothing.
    pub folder: Option<PathBuf>,
    /// Is everything decided anew, whatever is on disk?
    pub is_anew: bool,
    /// Settings of the fusion that follows, if one does: its kernels are compiled while the rewritten launches run for the first time.
    pub fusing: Option<Fusing>,
}

/// A recorded forward pass some of whose launches are replaced by other operators.
pub(crate) struct RewrittenProgram {
    pub trace: Arc<Trace>,
    /// The result of each rule.
    pub rewrites: Vec<Rewrite>,
    /// Bytes that constants may take in addition to the usual limit.
    pub room: u64,
    /// Launches that stay candle's, and the reasons.
    pub notes: Vec<String>,
    /// Decisions for later builds; `None` if these have to decide again.
    pub outcome: Option<Outcome>,
    /// Is it all as an earlier build decided?
    pub is_kept: bool,
    /// Examples with the outputs that replays are compared with.
    pub examples: Vec<Example>,
    /// The time of each part.
    pub times: StageTimes,
    pub program: Box<dyn Program>,
    /// The pass as it was recorded, if some of it is replaced.
    pub exact: Option<Recorded>,
}

impl RewrittenProgram {
    /// A pass as it was recorded, of which nothing is to be kept.
    pub fn unchanged(trace: Arc<Trace>, examples: Vec<Example>, times: StageTimes, program: Box<dyn Program>) -> Self {
        let (rewrites, notes) = (Vec::new(), Vec::new());
        Self { trace, rewrites, room: 0, notes, outcome: None, is_kept: false, examples, times, program, exact: None }
    }
}

/// A recorded forward pass beside the one that other operators are put into.
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only launches on a GPU are rewritten"))]
pub(crate) struct Recorded {
    /// Examples with the module's own outputs.
    pub examples: Vec<Example>,
    pub program: Box<dyn Program>,
    /// Microseconds of its launches one after the other, without fusion.
    pub sequential_us: f64,
}

/// A recorded forward pass some of whose launches are fused.
pub(crate) struct FusedProgram {
    /// The trace after fusion: one op for each group of launches.
    pub trace: Arc<Trace>,
    /// Launches that became part of a fused one.
    pub replaced: usize,
    /// Missed speed-ups, and their reasons.
    pub notes: Vec<String>,
    pub program: Box<dyn Program>,
}

/// A program and the schedule by which it is replayed.
#[derive(Clone)]
pub(crate) struct Planned {
    pub program: Arc<dyn Program>,
    /// The recorded trace after fusion: one op for each launch of the program.
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

/// For each op: the nanoseconds at which it began and ended.
pub(crate) type OpTimes = Vec<(u64, u64)>;

/// A recording on its device: everything but the trace that is needed to launch the ops again.
pub(crate) trait Program: Send + Sync {
    /// Replaces launches by other operators where these are faster and no less accurate. What an earlier build decided is compared
    /// again, and decided anew if it does not stand.
    ///
    /// # Errors
    /// A lost device.
    fn rewrite(
        self: Box<Self>,
        examples: Vec<Example>,
        rewriting: Rewriting,
        kept: Option<Outcome>,
    ) -> Result<RewrittenProgram>;

    /// Replaces groups of launches by one launch each, if the device supports it.
    ///
    /// # Errors
    /// A call of the driver that failed.
    fn fuse(self: Box<Self>, fusing: Fusing) -> Result<FusedProgram>;

    /// Runs the folded ops now, and returns a replay of the others as planned.
    fn replay(self: Arc<Self>, plan: Arc<Planned>) -> Result<Box<dyn Replay>>;

    /// Restores the module's state on the device to that before building.
    fn restore_state(&self) -> Result<()> {
        Ok(())
    }

    /// Restores that state for the last time, at the end of building.
    fn end_of_building(&self) -> Result<()> {
        Ok(())
    }

    /// Measures when each op runs, in each of `rounds` replays of a plan.
    fn op_times(self: Arc<Self>, _plan: Arc<Planned>, _inputs: &[Tensor], _rounds: usize) -> Result<Vec<OpTimes>> {
        Err(Error::NotMeasurable)
    }

    /// As [`replay`](Self::replay), but with random launches delayed and the arena poisoned before each call, if the device
    /// supports it.
    fn stressed(self: Arc<Self>, plan: Arc<Planned>, _seed: u64) -> Result<Box<dyn Replay>> {
        self.replay(plan)
    }
}

/// A forward pass that can be replayed from any thread.
pub(crate) trait Replay: Send + Sync {
    /// The kind of replay.
    fn mode(&self) -> Mode;

    /// Replays with these arguments, which have the shapes and dtypes of the recording; a state among them is written in
    /// place. Returns copies of the outputs.
    ///
    /// # Errors
    /// [`Error::MemoryFreed`] once it [is stale](Self::is_stale); [`Error::OutputsBorrowed`] if another thread's closure borrows the outputs
    /// and this thread is inside such a closure, too: two threads could then wait for each other forever.
    fn call(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>>;

    /// Zero-copy: `f` borrows the output buffers; the next call overwrites them. Errors: as for [`call`](Self::call).
    fn call_zero_copy(&self, inputs: &[Tensor], f: &mut dyn FnMut(&[Tensor])) -> Result<()> {
        f(&self.call(inputs)?);
        Ok(())
    }

    /// Does a replay of these inputs compute the module's results? It does not if the module writes to a weight that shares
    /// memory with an input, since a replay reads its inputs at another time.
    fn accepts(&self, _inputs: &[Tensor]) -> bool {
        true
    }

    /// Another schedule of the same prepared trace. It may share memory with this one, so only one of the two may run at a
    /// time.
    fn rescheduled(&self, plan: Arc<Planned>) -> Result<Box<dyn Replay>> {
        plan.program.clone().replay(plan)
    }

    /// Has memory been freed that the replay reads but does not own? If so, it must not be called any more.
    fn is_stale(&self) -> bool {
        false
    }

    /// The number of variants of replaying, of which the fastest is chosen by measurement.
    fn variants(&self) -> usize {
        1
    }

    /// Uses this variant from now on.
    fn choose(&mut self, _variant: usize) {}
}
