//! Replay: a new graph with the schedule's edges, launched once a call.

use std::sync::Arc;

use candle::{Device, Tensor};
use parking_lot::ReentrantMutex;

use super::capture::Capture;
use super::driver::{Executable, GraphBuilder, Node, Relocation, Stream};
use crate::backend::{Function, Program, Replay};
use crate::memory::{Layout, ALIGNMENT};
use crate::optimize::Optimized;
use crate::report::Mode;
use crate::schedule::Schedule;
use crate::trace::{OpId, Role, Trace};
use crate::{Error, Result};

/// What is needed to build a graph from a capture.
pub(super) struct CudaProgram {
    pub capture: Capture,
    pub stream: Stream,
    pub device: Device,
    pub inputs: Vec<Tensor>,
    pub function: Function,
}

impl Program for CudaProgram {
    fn replay(&self, ops: &Optimized, schedule: &Schedule, layout: &Layout) -> Result<Box<dyn Replay>> {
        Ok(Box::new(self.build(ops, schedule, layout, None)?))
    }

    fn stressed(&self, ops: &Optimized, schedule: &Schedule, layout: &Layout, seed: u64) -> Result<Box<dyn Replay>> {
        Ok(Box::new(self.build(ops, schedule, layout, Some(seed))?))
    }
}

/// Bytes of a fill that holds a launch up: some 15 microseconds, longer than most kernels.
const DELAY_BYTES: usize = 64 << 20;

/// Whether a launch is held up under this seed: one of eight.
fn is_held_up(seed: u64, op: OpId) -> bool {
    let mixed = (op as u64 ^ seed.wrapping_mul(0x9E37_79B9_7F4A_7C15)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed >> 61 == 0
}

impl CudaProgram {
    /// The schedule's graph with static outputs, arena and constants; with a seed, under stress.
    fn build(&self, ops: &Optimized, schedule: &Schedule, layout: &Layout, stress: Option<u64>) -> Result<GraphReplay> {
        let trace = &ops.trace;
        let outputs = self
            .capture
            .outputs
            .iter()
            .map(|o| Tensor::zeros(&o.shape, o.dtype, &self.device))
            .collect::<candle::Result<Vec<_>>>()?;
        let arena = Tensor::zeros(layout.bytes as usize, candle::DType::U8, &self.device)?;
        let constants = Tensor::zeros(constant_bytes(trace) as usize, candle::DType::U8, &self.device)?;
        let mut relocation = Relocation::default();
        let mut constant = 0;
        for (id, buffer) in trace.buffers.iter().enumerate() {
            match (buffer.role, layout.offset(id)) {
                (Role::Output(i), _) => relocation.place(id, buffer.bytes, &outputs[i], 0)?,
                (Role::Constant, _) => {
                    relocation.place(id, buffer.bytes, &constants, constant)?;
                    constant += buffer.bytes.next_multiple_of(ALIGNMENT);
                }
                (_, Some(offset)) => relocation.place(id, buffer.bytes, &arena, offset)?,
                // Inputs were captured at their static address; external memory stays where it is.
                _ => {}
            }
        }
        self.run_once(&ops.folded, &relocation)?;
        let mut graph = GraphBuilder::new(&self.stream, relocation)?;
        let poison = stress.filter(|_| layout.bytes > 0).map(|_| graph.fill(&arena, 0xff, &[])).transpose()?;
        let delay = stress.map(|_| Tensor::zeros(DELAY_BYTES, candle::DType::U8, &self.device)).transpose()?;
        let mut node = vec![0; schedule.order.len()];
        for &op in &schedule.order {
            let mut after: Vec<usize> = schedule.predecessors[op].iter().map(|&p| node[p]).collect();
            if after.is_empty() {
                after.extend(poison);
            }
            if let (Some(seed), Some(delay)) = (stress.filter(|&seed| is_held_up(seed, op)), &delay) {
                let held_up = graph.fill(delay, seed as u8, &after)?;
                after = vec![held_up];
            }
            node[op] = self.add(&mut graph, ops.kept[op], &after)?;
        }
        let keep = Box::new((self.function.clone(), self.inputs.clone()));
        let executable = graph.instantiate(keep)?;
        let done = if self.stream.is_per_thread() { Some(self.stream.event(false)?) } else { None };
        let (stream, inputs) = (self.stream.clone(), self.inputs.clone());
        let busy = ReentrantMutex::new(());
        Ok(GraphReplay { stream, inputs, outputs, executable, busy, done: done.map(Arc::new) })
    }
}

fn constant_bytes(trace: &Trace) -> u64 {
    let constants = trace.buffers.iter().filter(|b| b.role == Role::Constant);
    constants.map(|b| b.bytes.next_multiple_of(ALIGNMENT)).sum()
}

impl CudaProgram {
    /// Adds a recorded launch behind the nodes `after`; returns its node.
    fn add(&self, graph: &mut GraphBuilder, op: OpId, after: &[usize]) -> Result<usize> {
        let (node, pointers) = &self.capture.launches[op];
        match (node, pointers.as_slice()) {
            (Node::Kernel(kernel), pointers) => graph.kernel(kernel, pointers, after),
            (Node::Memset(memset), [to]) => graph.memset(memset, *to, after),
            (Node::Memcpy(upload), [to]) if upload.source().is_none() => graph.memcpy(upload, None, *to, after),
            (Node::Memcpy(memcpy), [from, to]) => graph.memcpy(memcpy, Some(*from), *to, after),
            _ => {
                let reason = format!("op {op} `{}` touches memory that is not known", self.capture.trace.ops[op].name);
                Err(Error::NotCapturable { reason })
            }
        }
    }

    /// Runs the folded launches, one after the other.
    fn run_once(&self, folded: &[OpId], relocation: &Relocation) -> Result<()> {
        if folded.is_empty() {
            return Ok(());
        }
        let mut graph = GraphBuilder::new(&self.stream, relocation.clone())?;
        for (at, &op) in folded.iter().enumerate() {
            let after: Vec<usize> = at.checked_sub(1).into_iter().collect();
            self.add(&mut graph, op, &after)?;
        }
        super::while_not_capturing(|| graph.instantiate(Box::new(self.function.clone()))?.launch())
    }
}

/// A graph with its static inputs and outputs.
struct GraphReplay {
    stream: Stream,
    inputs: Vec<Tensor>,
    outputs: Vec<Tensor>,
    executable: Executable,
    /// One call at a time uses the static tensors. What they enqueue is then in order on the one stream.
    busy: ReentrantMutex<()>,
    /// End of the last call's work, where every thread has a stream of its own.
    done: Option<Arc<super::driver::Event>>,
}

impl GraphReplay {
    fn run(&self, inputs: &[Tensor], then: &mut dyn FnMut(&[Tensor]) -> Result<()>) -> Result<()> {
        if self.busy.is_owned_by_current_thread() {
            return Err(Error::Lent);
        }
        let _busy = super::while_waiting(|| self.busy.lock());
        super::while_not_capturing(|| {
            if let Some(done) = &self.done {
                self.stream.wait(done)?;
            }
            for (input, fixed) in inputs.iter().zip(&self.inputs) {
                self.stream.copy(&input.contiguous()?, fixed)?;
            }
            self.executable.launch()
        })?;
        let result = then(&self.outputs);
        // Also behind a failure: the next thread's stream must not overwrite what is still being read.
        if let Some(done) = &self.done {
            self.stream.record(done)?;
        }
        result
    }
}

impl Replay for GraphReplay {
    fn mode(&self) -> Mode {
        Mode::Graph
    }

    fn call(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let mut copies = Vec::new();
        self.run(inputs, &mut |outputs| {
            copies = outputs.iter().map(Tensor::copy).collect::<candle::Result<_>>()?;
            Ok(())
        })?;
        Ok(copies)
    }

    fn lend(&self, inputs: &[Tensor], f: &mut dyn FnMut(&[Tensor])) -> Result<()> {
        self.run(inputs, &mut |outputs| {
            f(outputs);
            Ok(())
        })
    }
}
