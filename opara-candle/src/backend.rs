//! What the pipeline asks of a device: record a forward pass, and turn a schedule into something that replays it.

use std::sync::Arc;

use candle::Tensor;

use crate::memory::Layout;
use crate::optimize::Optimized;
use crate::report::Mode;
use crate::schedule::Schedule;
use crate::trace::Trace;
use crate::Result;

/// A module, or any function of several tensors to several tensors.
pub(crate) type Function = Arc<dyn Fn(&[Tensor]) -> candle::Result<Vec<Tensor>> + Send + Sync>;

/// Inputs with the outputs that an eager forward gave, and the time that it took.
pub(crate) struct Example {
    pub inputs: Vec<Tensor>,
    pub outputs: Vec<Tensor>,
    pub eager_us: f64,
}

/// A recorded forward pass.
pub(crate) struct Recording {
    pub trace: Trace,
    pub examples: Vec<Example>,
    pub program: Box<dyn Program>,
}

/// What a device needs beside the trace to launch the ops again.
pub(crate) trait Program: Send {
    /// Something that runs the folded ops now and replays the others in the order of `schedule`, buffers placed by
    /// `layout`.
    fn replay(&self, ops: &Optimized, schedule: &Schedule, layout: &Layout) -> Result<Box<dyn Replay>>;

    /// The same with random launches held up and the arena poisoned before each call, where the device has a way to.
    fn stressed(&self, ops: &Optimized, schedule: &Schedule, layout: &Layout, _seed: u64) -> Result<Box<dyn Replay>> {
        self.replay(ops, schedule, layout)
    }
}

/// A forward pass that can be replayed from any thread.
pub(crate) trait Replay: Send + Sync {
    /// How it replays.
    fn mode(&self) -> Mode;

    /// Outputs of their own for these inputs, which have the shapes and dtypes of the recording.
    fn call(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>>;

    /// Lends the outputs to `f`; the next call overwrites them.
    fn lend(&self, inputs: &[Tensor], f: &mut dyn FnMut(&[Tensor])) -> Result<()> {
        f(&self.call(inputs)?);
        Ok(())
    }

    /// Ways of replaying among which measurement decides.
    fn variants(&self) -> usize {
        1
    }

    /// Uses this variant from now on.
    fn choose(&mut self, _variant: usize) {}
}
