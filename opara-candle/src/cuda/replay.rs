//! Replay: a new graph with the schedule's edges, launched once a call.

use std::cmp::Reverse;
use std::sync::Arc;

use candle::{DType, Device, Tensor};
use parking_lot::{Mutex, MutexGuard};

use super::arena::{Arena, State};
use super::capture::{Capture, OutputSpec, Recorded};
use super::driver::{
    address_of, aligned_input, Block, Event, Executable, GraphBuilder, Launch, Relocation, Stream, WatchedMemory,
    WrittenMemory,
};
use crate::backend::{Function, Planned, Program, Replay, Spans};
use crate::graph::OpGraph;
use crate::lending::Turn;
use crate::memory::{self, constant_bytes, Layout};
use crate::prepared::Prepared;
use crate::report::Mode;
use crate::trace::{OpId, Role, Trace};
use crate::{Error, Result};

/// What is needed to build a graph from a capture.
pub(super) struct CudaProgram {
    pub capture: Capture,
    /// The module's memory that the capture uses.
    pub external: WatchedMemory,
    pub stream: Stream,
    pub device: Device,
    pub function: Function,
    pub arena: Arc<Arena>,
    pub workspaces: Arc<Arena>,
    /// The module's state on the device from before building, until that ends.
    pub state: Mutex<Option<WrittenMemory>>,
}

impl Program for CudaProgram {
    fn restore_state(&self) -> Result<()> {
        self.state.lock().as_ref().map_or(Ok(()), WrittenMemory::restore)
    }

    fn end_of_building(&self) -> Result<()> {
        self.restore_state()?;
        *self.state.lock() = None;
        Ok(())
    }

    fn replay(self: Arc<Self>, plan: Arc<Planned>) -> Result<Box<dyn Replay>> {
        Ok(Box::new(GraphReplay::new(self, plan, None)?))
    }

    fn spans(self: Arc<Self>, plan: Arc<Planned>, inputs: &[Tensor], rounds: usize) -> Result<Vec<Spans>> {
        super::spans::spans(&self, &plan, inputs, rounds)
    }

    fn stressed(self: Arc<Self>, plan: Arc<Planned>, seed: u64) -> Result<Box<dyn Replay>> {
        Ok(Box::new(GraphReplay::new(self, plan, Some(seed))?))
    }
}

/// Bytes of a fill that holds a launch up: some 15 microseconds, longer than most kernels.
const DELAY_BYTES: u64 = 64 << 20;

/// Whether a launch is held up under this seed: one of eight.
fn is_held_up(seed: u64, op: OpId) -> bool {
    let mixed = (op as u64 ^ seed.wrapping_mul(0x9E37_79B9_7F4A_7C15)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed >> 61 == 0
}

impl CudaProgram {
    fn block(&self, bytes: u64) -> Result<Block> {
        Block::of(&Tensor::zeros(bytes.max(1) as usize, DType::U8, &self.device)?)
    }

    /// Where outputs and constants are.
    fn relocation(&self, plan: &Prepared, outputs: &[Tensor]) -> Result<Relocation> {
        let buffers = &plan.ops.trace.buffers;
        let constants = self.block(plan.ops.constant_bytes())?;
        let mut relocation = Relocation::default();
        for (id, buffer) in buffers.iter().enumerate() {
            if let Role::Output(i) = buffer.role {
                relocation.place(id, buffer.bytes, &Block::of(&outputs[i])?, 0)?;
            }
        }
        // The largest first: what is aligned less comes last.
        let mut order: Vec<usize> = (0..buffers.len()).filter(|&id| buffers[id].role == Role::Constant).collect();
        order.sort_by_key(|&id| Reverse(buffers[id].bytes));
        let mut offset = 0;
        for id in order {
            relocation.place(id, buffers[id].bytes, &constants, offset)?;
            offset += constant_bytes(buffers[id].bytes);
        }
        Ok(relocation)
    }

    /// Fills the constants: runs the folded launches, one after the other, in memory that is given back then.
    fn run_once(&self, plan: &Prepared, relocation: &Relocation) -> Result<()> {
        let once = &plan.ops.once;
        if once.ops.is_empty() {
            return Ok(());
        }
        let chain =
            OpGraph::from_predecessors((0..once.ops.len()).map(|op| op.checked_sub(1).into_iter().collect()).collect());
        let layout = memory::plan(once, &chain, Role::Intermediate, None);
        let scratch = self.block(layout.bytes)?;
        let mut relocation = relocation.clone();
        place(&mut relocation, once, &layout, &scratch)?;
        let launches = self.capture.launches.lock();
        let mut graph = GraphBuilder::new(&self.stream, relocation)?;
        for (at, &op) in plan.ops.folded.iter().enumerate() {
            let after: Vec<usize> = at.checked_sub(1).into_iter().collect();
            add(&mut graph, &launches.of[op], &after)?;
        }
        let mut executable = graph.instantiate(Box::new(self.function.clone()))?;
        self.external.launch(&self.stream, || executable.launch(&[], &[&scratch]))
    }

    /// The schedule's graph for these arenas; with a seed, under stress.
    fn build(
        &self,
        plan: &Planned,
        fixed: &Relocation,
        memory: &[Block; 2],
        stress: Option<u64>,
    ) -> Result<Executable> {
        let Prepared { ops, layouts, .. } = &*plan.prepared;
        let mut relocation = fixed.clone();
        for (id, buffer) in ops.trace.buffers.iter().enumerate() {
            if let Role::Input(i) = buffer.role {
                relocation.place_input(id, i, buffer.bytes);
            }
        }
        for (layout, block) in layouts.iter().zip(memory) {
            place(&mut relocation, &ops.trace, layout, block)?;
        }
        let launches = self.capture.launches.lock();
        let mut graph = GraphBuilder::new(&self.stream, relocation)?;
        let mut poison = Vec::new();
        if stress.is_some() {
            for block in memory {
                poison.push(graph.fill(block, 0xff, &[])?);
            }
        }
        let delay = stress.map(|_| self.block(DELAY_BYTES)).transpose()?;
        let mut urgent = vec![false; ops.kept.len()];
        plan.schedule.urgent.iter().for_each(|&op| urgent[op] = true);
        let mut node: Vec<usize> = Vec::with_capacity(ops.kept.len());
        let before = plan.schedule.stream_predecessors();
        let mut node_of = vec![None; ops.kept.len()];
        for step in plan.schedule.steps() {
            let mut after: Vec<usize> = step.after.iter().map(|&p| node[p]).collect();
            // What a stream ran last is implied by other edges now and then. Given all the same, it lets the driver go on
            // with a branch of its own instead of taking up another one, which it holds in some 100 KiB and never gives back.
            let last = step.op.and_then(|op| node_of[before[op]?]);
            after.extend(last.filter(|last| !after.contains(last)));
            if after.is_empty() {
                after.extend(&poison);
            }
            let Some(op) = step.op else {
                node.push(graph.join(&after)?);
                continue;
            };
            if let (Some(seed), Some(delay)) = (stress.filter(|&seed| is_held_up(seed, op)), &delay) {
                let held_up = graph.fill(delay, seed as u8, &after)?;
                after = vec![held_up];
            }
            let launch = &launches.of[ops.kept[op]];
            let added = add(&mut graph, launch, &after)?;
            if urgent[op] && matches!(launch.launch, Launch::Kernel(_)) {
                graph.hurry(added)?;
            }
            node_of[op] = Some(added);
            node.push(added);
        }
        graph.instantiate(Box::new(self.function.clone()))
    }
}

/// What outputs are lent to.
type Closure<'a> = &'a mut dyn FnMut(&[Tensor]);

/// Moves the buffers of a layout into its arena.
fn place(relocation: &mut Relocation, trace: &Trace, layout: &Layout, arena: &Block) -> Result<()> {
    for (id, buffer) in trace.buffers.iter().enumerate() {
        if let Some(offset) = layout.offset(id) {
            relocation.place_in_arena(id, buffer.bytes, arena, offset)?;
        }
    }
    Ok(())
}

/// Adds a recorded launch behind the nodes `after`; returns its node.
fn add(graph: &mut GraphBuilder, op: &Recorded, after: &[usize]) -> Result<usize> {
    match (&op.launch, op.pointers.as_slice()) {
        (Launch::Kernel(kernel), pointers) => graph.kernel(kernel, pointers, after),
        (Launch::Memset(memset), [to]) => graph.memset(memset, *to, after),
        (Launch::Memcpy(upload), [to]) if upload.source().is_none() => graph.memcpy(upload, None, *to, after),
        (Launch::Memcpy(memcpy), [from, to]) => graph.memcpy(memcpy, Some(*from), *to, after),
        _ => Err(Error::NotCapturable { reason: "a memset or a copy touches memory that is not known".into() }),
    }
}

/// A graph with its static outputs.
pub(super) struct GraphReplay {
    /// Dropped before the program, whose kernels it launches.
    built: Mutex<Option<Built>>,
    program: Arc<CudaProgram>,
    plan: Arc<Planned>,
    fixed: Arc<Fixed>,
    stress: Option<u64>,
    /// End of the last call's work, where every thread has a stream of its own.
    done: Option<Event>,
}

/// Memory that does not move: what all schedules of one prepared trace share.
struct Fixed {
    outputs: Vec<Tensor>,
    /// Where outputs and constants are.
    relocation: Relocation,
    /// One call at a time uses the outputs. What calls enqueue is then in order on the one stream.
    turn: Turn,
}

/// A graph for the arenas as they were.
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
        let fixed = Fixed { outputs, relocation, turn: Turn::default() };
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

    /// Builds the graph, unless there is one for the arenas as they are. Returns their memory.
    fn prepare(&self, arenas: &mut [MutexGuard<'_, State>; 2], built: &mut Option<Built>) -> Result<[Block; 2]> {
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

    /// Replays, and lets `copy` launch what it makes of the outputs; then lends them to `f`.
    fn run(&self, inputs: &[Tensor], copy: &mut dyn FnMut(&[Tensor]) -> Result<()>, f: Option<Closure>) -> Result<()> {
        let Fixed { outputs, turn, .. } = &*self.fixed;
        let turn = turn.take()?;
        let done = Done(self);
        let result = self.launch(inputs, &mut self.built.lock()).and_then(|()| copy(outputs));
        if let (Ok(()), Some(f)) = (&result, f) {
            turn.is_a_closures();
            f(outputs);
        }
        done.record()?;
        match result {
            // A graph cannot even be built for memory that is gone.
            Err(_) if self.is_stale() => Err(Error::Freed),
            result => result,
        }
    }

    fn launch(&self, inputs: &[Tensor], built: &mut Option<Built>) -> Result<()> {
        // Others had their turn since the executor asked.
        if self.is_stale() {
            return Err(Error::Freed);
        }
        let stream = &self.program.stream;
        let others = inputs.iter().map(|input| Stream::of(input.device())).collect::<Result<Vec<_>>>()?;
        let others: Vec<&Stream> = others.iter().filter(|other| other.id() != stream.id()).collect();
        let inputs =
            inputs.iter().map(|input| aligned_input(input, &self.fixed.outputs)).collect::<Result<Vec<_>>>()?;
        // Work on inputs that other streams have still to do, copies for alignment included, and later work there keep
        // their order with this launch.
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

/// Notes the end of a call's work on the calling thread's stream when dropped, whatever comes of the call, a closure's
/// panic too: the next thread's stream must not overwrite what is still being read.
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

/// Whether a tensor shares memory with one of these allocations. One that cannot be looked at does.
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

    fn takes(&self, inputs: &[Tensor]) -> bool {
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

    fn lend(&self, inputs: &[Tensor], f: &mut dyn FnMut(&[Tensor])) -> Result<()> {
        self.run(inputs, &mut |_| Ok(()), Some(f))
    }
}
