//! A recording on a GPU: builds CUDA graphs from the captured launches, with the edges of a schedule.

use std::cmp::Reverse;
use std::sync::Arc;

use candle::{DType, Device, Tensor};
use parking_lot::Mutex;

use super::arena::Arena;
use super::capture::Capture;
use super::driver::kernels::Compiled;
use super::driver::{
    Executable, GraphBuilder, LaunchNode, MemoryBlock, Relocation, Stream, WatchedMemory, WrittenMemory,
};
use super::kernels::read_early;
use super::launches::CapturedLaunch;
use crate::backend::{Function, Planned};
use crate::trace::{Access, AccessMode, OpId, Role, Trace};
use crate::{Error, Result};
use opara_plan::graph::OpGraph;
use opara_plan::memory::{self, constant_bytes, Layout};
use opara_plan::prepared::Prepared;

/// A recording on a GPU.
pub(super) struct CudaProgram {
    pub capture: Capture,
    /// The module's memory that the capture uses.
    pub external: WatchedMemory,
    pub stream: Stream,
    pub device: Device,
    pub function: Function,
    pub arena: Arc<Arena>,
    pub workspaces: Arc<Arena>,
    /// The module's state on the device from before building. `None` after building.
    pub state: Arc<Mutex<Option<WrittenMemory>>>,
    /// Kernels that were compiled ahead, for fusion to find.
    pub compiled: Vec<Compiled>,
}

/// Bytes of a fill that delays a launch: some 15 microseconds, longer than most kernels.
const DELAY_BYTES: u64 = 64 << 20;

/// Is a launch delayed in a stress test with this seed? One of eight is.
fn is_delayed(seed: u64, op: OpId) -> bool {
    let mixed = (op as u64 ^ seed.wrapping_mul(0x9E37_79B9_7F4A_7C15)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed >> 61 == 0
}

impl CudaProgram {
    /// The same recording once more, with the same arenas and the same state of the module. Nothing is compiled for it.
    pub fn duplicate(&self) -> Self {
        let Self { capture, external, stream, device, function, arena, workspaces, state, .. } = self;
        Self {
            capture: capture.duplicate(),
            external: external.duplicate(&capture.external_addresses()),
            stream: stream.clone(),
            device: device.clone(),
            function: function.clone(),
            arena: arena.clone(),
            workspaces: workspaces.clone(),
            state: state.clone(),
            compiled: Vec::new(),
        }
    }

    /// Watches the module's memory that the capture uses by now.
    pub fn watch_externals(&self) {
        self.external.limit_to(&self.capture.external_addresses());
    }

    fn block(&self, bytes: u64) -> Result<MemoryBlock> {
        MemoryBlock::of(&Tensor::zeros(bytes.max(1) as usize, DType::U8, &self.device)?)
    }

    /// Relocates outputs and constants.
    pub fn relocation(&self, plan: &Prepared, outputs: &[Tensor]) -> Result<Relocation> {
        let buffers = &plan.ops.trace.buffers;
        let constants = self.block(plan.ops.constant_bytes())?;
        let mut relocation = Relocation::default();
        for (id, buffer) in buffers.iter().enumerate() {
            if let Role::Output(i) = buffer.role {
                relocation.place(id, buffer.bytes, &MemoryBlock::of(&outputs[i])?, 0)?;
            }
        }
        // The largest first: short constants, with a smaller alignment, come last.
        let mut order: Vec<usize> = (0..buffers.len()).filter(|&id| buffers[id].role == Role::Constant).collect();
        order.sort_by_key(|&id| Reverse(buffers[id].bytes));
        let mut offset = 0;
        for id in order {
            relocation.place(id, buffers[id].bytes, &constants, offset)?;
            offset += constant_bytes(buffers[id].bytes);
        }
        Ok(relocation)
    }

    /// Computes the constants: runs the folded launches one after the other, in temporary memory.
    pub fn run_once(&self, plan: &Prepared, relocation: &Relocation) -> Result<()> {
        let once = &plan.ops.once;
        if once.ops.is_empty() {
            return Ok(());
        }
        let in_sequence =
            OpGraph::from_predecessors((0..once.ops.len()).map(|op| op.checked_sub(1).into_iter().collect()).collect());
        let layout = memory::plan(once, &in_sequence, Role::Intermediate, None);
        let scratch = self.block(layout.bytes)?;
        let mut relocation = relocation.clone();
        place(&mut relocation, once, &layout, &scratch)?;
        let launches = self.capture.launches.lock();
        let mut graph = GraphBuilder::new(&self.stream, relocation)?;
        for (at, &op) in plan.ops.folded.iter().enumerate() {
            let after: Vec<usize> = at.checked_sub(1).into_iter().collect();
            add(&mut graph, &launches.of[op], &after, |_| false)?;
        }
        let mut executable = graph.instantiate(Box::new(self.function.clone()))?;
        self.external.launch(&self.stream, || executable.launch(&[], &[&scratch]))
    }

    /// Builds the schedule's graph for these arenas. With a `stress` seed, random launches are delayed and arenas are poisoned.
    pub fn build(
        &self,
        plan: &Planned,
        fixed: &Relocation,
        memory: &[MemoryBlock; 2],
        stress: Option<u64>,
    ) -> Result<Executable> {
        let Prepared { ops, layouts, .. } = &*plan.prepared;
        let mut relocation = fixed.clone();
        for (id, buffer) in ops.trace.buffers.iter().enumerate() {
            let argument = match buffer.role {
                Role::Input(i) => Some(i),
                Role::State(i) => Some(self.capture.inputs + i),
                _ => None,
            };
            if let Some(argument) = argument {
                relocation.place_argument(id, argument, buffer.bytes);
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
        // A kernel may load these while its predecessors still run: weights, if no launch writes to any, and arguments that no
        // launch before it has written to.
        let writes_external = |access: &Access| {
            access.mode != AccessMode::Read && ops.trace.buffers[access.buffer].role == Role::External
        };
        let are_weights_constant = !ops.trace.ops.iter().flat_map(|op| &op.accesses).any(writes_external);
        let mut written = vec![false; ops.trace.buffers.len()];
        let delay = stress.map(|_| self.block(DELAY_BYTES)).transpose()?;
        let mut urgent = vec![false; ops.per_call.len()];
        plan.schedule.urgent.iter().for_each(|&op| urgent[op] = true);
        let mut node: Vec<usize> = Vec::with_capacity(ops.per_call.len());
        let before = plan.schedule.stream_predecessors();
        let mut node_of = vec![None; ops.per_call.len()];
        for step in plan.schedule.steps() {
            let mut after: Vec<usize> = step.after.iter().map(|&p| node[p]).collect();
            // Other edges sometimes imply that on the stream's last launch. With it the driver continues that branch; without it,
            // it may open another branch, which takes some 100 KiB that are never freed.
            let last = step.op.and_then(|op| node_of[before[op]?]);
            after.extend(last.filter(|last| !after.contains(last)));
            if after.is_empty() {
                after.extend(&poison);
            }
            let Some(op) = step.op else {
                node.push(graph.join(&after)?);
                continue;
            };
            if let (Some(seed), Some(delay)) = (stress.filter(|&seed| is_delayed(seed, op)), &delay) {
                let delayed = graph.fill(delay, seed as u8, &after)?;
                after = vec![delayed];
            }
            let launch = &launches.of[ops.per_call[op]];
            let is_argument = |buffer: usize| matches!(ops.trace.buffers[buffer].role, Role::Input(_) | Role::State(_));
            let is_settled = |word| {
                let pointer = launch.pointers.iter().find(|pointer| pointer.word == word);
                are_weights_constant && launch.fixed.contains(&word)
                    || pointer.is_some_and(|to| is_argument(to.buffer) && !written[to.buffer])
            };
            let added = add(&mut graph, launch, &after, is_settled)?;
            for access in ops.trace.ops[op].accesses.iter().filter(|access| access.mode.writes()) {
                written[access.buffer] = true;
            }
            if urgent[op] && matches!(launch.launch, LaunchNode::Kernel(_)) {
                graph.hurry(added)?;
            }
            node_of[op] = Some(added);
            node.push(added);
        }
        graph.instantiate(Box::new(self.function.clone()))
    }
}

/// Relocates the buffers of a layout to its arena.
fn place(relocation: &mut Relocation, trace: &Trace, layout: &Layout, arena: &MemoryBlock) -> Result<()> {
    for (id, buffer) in trace.buffers.iter().enumerate() {
        if let Some(offset) = layout.offset(id) {
            relocation.place_in_arena(id, buffer.bytes, arena, offset)?;
        }
    }
    Ok(())
}

/// Adds a captured launch after the nodes `after`; returns its node. A kernel with early loads may begin before its predecessors
/// have ended if `is_settled` holds for the offset of each argument that it loads from early.
fn add(
    graph: &mut GraphBuilder,
    op: &CapturedLaunch,
    after: &[usize],
    is_settled: impl Fn(usize) -> bool,
) -> Result<usize> {
    match (&op.launch, op.pointers.as_slice()) {
        (LaunchNode::Kernel(kernel), pointers) => {
            let waits = read_early(kernel).is_some_and(|early| early.into_iter().all(is_settled));
            graph.kernel(kernel, pointers, after, waits)
        }
        (LaunchNode::Memset(memset), [to]) => graph.memset(memset, *to, after),
        (LaunchNode::Memcpy(upload), [to]) if upload.source().is_none() => graph.memcpy(upload, None, *to, after),
        (LaunchNode::Memcpy(memcpy), [from, to]) => graph.memcpy(memcpy, Some(*from), *to, after),
        _ => Err(Error::NotCapturable { reason: "a memset or a copy touches memory that is not known".into() }),
    }
}
