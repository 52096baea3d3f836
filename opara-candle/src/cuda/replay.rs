//! Replay: one launch of a CUDA graph per call.

use std::sync::Arc;

use candle::Tensor;
use parking_lot::{Mutex, MutexGuard};

use super::arena::State;
use super::driver::{address_of, aligned_input, Event, Executable, MemoryBlock, Relocation, Stream};
use super::pass::OutputSpec;
use super::program::CudaProgram;
use crate::arguments::share_memory;
use crate::backend::{Planned, Replay};
use crate::output_lock::OutputLock;
use crate::report::Mode;
use crate::zero_copy::take_outputs;
use crate::{Error, Result, StateError};

/// A closure that borrows the outputs.
type Closure<'a> = &'a mut dyn FnMut(&[Tensor]);

/// A graph with its output buffers.
pub(super) struct GraphReplay {
    /// Dropped before the program, whose kernels it launches.
    built: Mutex<Option<Built>>,
    program: Arc<CudaProgram>,
    plan: Arc<Planned>,
    fixed: Arc<Fixed>,
    stress: Option<u64>,
    /// The end of the last call's work, if every thread has a stream of its own.
    done: Option<Event>,
}

/// Memory that all schedules of one prepared trace share.
struct Fixed {
    outputs: Vec<Tensor>,
    /// The addresses of outputs and constants.
    relocation: Relocation,
    /// One call at a time uses the outputs, so that the work of calls is ordered on the stream.
    output_lock: OutputLock,
}

/// The executable graph, and the arenas' generations for which it was built.
struct Built {
    generations: [u64; 2],
    executable: Executable,
}

impl GraphReplay {
    pub fn new(program: Arc<CudaProgram>, plan: Arc<Planned>, stress: Option<u64>) -> Result<Self> {
        let zeros = |o: &OutputSpec| Tensor::zeros(&o.shape, o.dtype, &program.device);
        let outputs = program.capture.outputs.iter().map(zeros).collect::<candle::Result<Vec<_>>>()?;
        let relocation = program.relocation(&plan.prepared, &outputs)?;
        program.run_once(&plan.prepared, &relocation)?;
        let fixed = Fixed { outputs, relocation, output_lock: OutputLock::default() };
        Self::sharing(Arc::new(fixed), program, plan, stress)
    }

    fn sharing(fixed: Arc<Fixed>, program: Arc<CudaProgram>, plan: Arc<Planned>, stress: Option<u64>) -> Result<Self> {
        let done = if program.stream.is_per_thread() { Some(program.stream.event(false)?) } else { None };
        let replay = Self { built: Default::default(), program, plan, fixed, stress, done };
        replay.prepare(&mut replay.arenas(), &mut replay.built.lock())?;
        Ok(replay)
    }

    /// The numbers that CUPTI's records give its graph.
    pub fn ids(&self) -> Result<[u32; 2]> {
        self.built.lock().as_ref().map_or(Err(Error::NotMeasurable), |built| built.executable.ids())
    }

    /// Arena and workspaces, for one call.
    fn arenas(&self) -> [MutexGuard<'_, State>; 2] {
        [self.program.arena.lock(), self.program.workspaces.lock()]
    }

    /// Builds the graph, unless it exists for the current arenas. Returns the arenas' memory.
    fn prepare(&self, arenas: &mut [MutexGuard<'_, State>; 2], built: &mut Option<Built>) -> Result<[MemoryBlock; 2]> {
        let CudaProgram { arena, workspaces, device, .. } = &*self.program;
        let [tensors, scratch] = &self.plan.prepared.layouts;
        let memory = [
            arena.memory(&mut arenas[0], tensors.bytes, device)?,
            workspaces.memory(&mut arenas[1], scratch.bytes, device)?,
        ];
        let generations = [arenas[0].generation, arenas[1].generation];
        if built.as_ref().is_none_or(|b| b.generations != generations) {
            *built = None;
            let executable = self.program.build(&self.plan, &self.fixed.relocation, &memory, self.stress)?;
            *built = Some(Built { generations, executable });
        }
        Ok(memory)
    }

    /// Replays, calls `copy` to enqueue copies of the outputs, then lets `f` borrow the outputs.
    fn run(&self, inputs: &[Tensor], copy: &mut dyn FnMut(&[Tensor]) -> Result<()>, f: Option<Closure>) -> Result<()> {
        let Fixed { outputs, output_lock, .. } = &*self.fixed;
        let held = take_outputs(output_lock)?;
        let done = Done(self);
        // A stale replay launches nothing, and building a graph fails if its memory was freed.
        let launched = self.launch(inputs, &mut self.built.lock()).map_err(|error| match error {
            lost @ Error::DeviceLost { .. } => lost,
            _ if self.is_stale() => Error::MemoryFreed,
            error => error,
        });
        let result = launched.and_then(|()| copy(outputs));
        if let (Ok(()), Some(f)) = (&result, f) {
            held.pass_to_closure();
            f(outputs);
        }
        done.record()?;
        result
    }

    fn launch(&self, inputs: &[Tensor], built: &mut Option<Built>) -> Result<()> {
        // Other calls may have run since the executor checked.
        if self.is_stale() {
            return Err(Error::MemoryFreed);
        }
        let stream = &self.program.stream;
        let others = inputs.iter().map(|input| Stream::of(input.device())).collect::<Result<Vec<_>>>()?;
        let others: Vec<&Stream> = others.iter().filter(|other| other.id() != stream.id()).collect();
        let (inputs, state) = inputs.split_at(self.program.capture.inputs.min(inputs.len()));
        let is_ours = |tensor: &Tensor| self.fixed.outputs.iter().any(|output| share_memory(tensor, output));
        if let Some(index) = state.iter().position(is_ours) {
            return Err(StateError::Shared { index, other: "an output buffer of the executor".into() }.into());
        }
        let state = state.iter().cloned().map(Ok);
        let inputs = inputs.iter().map(|input| aligned_input(input, &self.fixed.outputs));
        let inputs = inputs.chain(state).collect::<Result<Vec<_>>>()?;
        // Orders this launch after the work of other streams on the inputs, alignment copies included, and their later work
        // after this launch.
        others.iter().try_for_each(|other| other.then(stream))?;
        if let Some(done) = &self.done {
            stream.wait(done)?;
        }
        let mut arenas = self.arenas();
        let [memory, workspaces] = self.prepare(&mut arenas, built)?;
        let Some(built) = built else { return Ok(()) };
        arenas.iter().try_for_each(|arena| arena.acquire(stream))?;
        self.program.external.launch(stream, || built.executable.launch(&inputs, &[&memory, &workspaces]))?;
        arenas.iter_mut().try_for_each(|arena| arena.release(stream))?;
        others.iter().try_for_each(|other| stream.then(other))
    }
}

/// Records the end of a call's work on the calling thread's stream when dropped, also after an error or a panic of the closure:
/// the next thread's stream must not overwrite outputs that are still read.
struct Done<'a>(&'a GraphReplay);

impl Done<'_> {
    fn record(self) -> Result<()> {
        let result = self.note();
        std::mem::forget(self);
        result
    }

    fn note(&self) -> Result<()> {
        let GraphReplay { done, program, .. } = self.0;
        done.as_ref().map_or(Ok(()), |done| program.stream.record(done))
    }
}

impl Drop for Done<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.note() {
            tracing::error!(%error, "the end of a call whose closure panicked is unknown");
        }
    }
}

/// Does a tensor share memory with one of these allocations? If its address cannot be read, the answer is yes.
fn overlaps(tensor: &Tensor, allocations: &[(u64, u64)]) -> bool {
    let Ok(start) = address_of(tensor) else { return true };
    // A view of an allocation begins in it.
    allocations.iter().any(|&(first, bytes)| (first..first + bytes).contains(&start))
}

impl Replay for GraphReplay {
    fn mode(&self) -> Mode {
        Mode::Graph
    }

    fn rescheduled(&self, plan: Arc<Planned>) -> Result<Box<dyn Replay>> {
        let (fixed, program) = (self.fixed.clone(), self.program.clone());
        Ok(Box::new(Self::sharing(fixed, program, plan, None)?))
    }

    fn accepts(&self, inputs: &[Tensor]) -> bool {
        let written = &self.program.capture.written;
        written.is_empty() || !inputs.iter().any(|input| overlaps(input, written))
    }

    fn is_stale(&self) -> bool {
        self.program.external.is_freed()
    }

    fn call(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let mut copies = Vec::new();
        let copy = &mut |outputs: &[Tensor]| {
            copies = outputs.iter().map(Tensor::copy).collect::<candle::Result<_>>()?;
            Ok(())
        };
        self.run(inputs, copy, None)?;
        Ok(copies)
    }

    fn call_zero_copy(&self, inputs: &[Tensor], f: &mut dyn FnMut(&[Tensor])) -> Result<()> {
        self.run(inputs, &mut |_| Ok(()), Some(f))
    }
}
