//! Replay on worker threads: one lane a stream, over as many workers as there are cores.
//!
//! While at least two large operators are ready, each runs on one worker, and inside it rayon has that one thread. What
//! is left runs on the caller's thread, where rayon has all cores: just what eager execution does. So a chain costs
//! nothing more than eager, and branches do not fight for cores.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{Arc, OnceLock};

use candle::Tensor;
use hashbrown::HashMap;
use parking_lot::{Condvar, Mutex};

use super::record::{Program, Source};
use crate::error::panic_message;
use crate::executor::nested;
use crate::optimize::Optimized;
use crate::schedule::Schedule;
use crate::trace::{OpId, Work};
use crate::{Error, Result};

/// Operations, or quarters of a byte moved, below which handing an operator to another thread costs more than it
/// saves: some 50 microseconds of one core.
const LARGE: u64 = 1_000_000;

/// A program with a schedule, ready to run.
pub(crate) struct Lanes {
    program: Arc<Program>,
    /// For each position in launch order the positions that wait for it.
    successors: Vec<Vec<usize>>,
    waits: Vec<usize>,
    /// For each position the operator of the program.
    order: Vec<OpId>,
    /// Results of folded operators.
    constants: HashMap<OpId, Tensor>,
    large: Vec<bool>,
    /// Readers of each op's result; outputs count one more, so that they stay.
    uses: Vec<usize>,
    parallel: bool,
}

impl Lanes {
    pub fn new(program: Arc<Program>, ops: &Optimized, schedule: &Schedule) -> Result<Self> {
        let n = schedule.order.len();
        let mut position = vec![0; n];
        for (at, &op) in schedule.order.iter().enumerate() {
            position[op] = at;
        }
        let mut successors = vec![Vec::new(); n];
        for (op, predecessors) in schedule.predecessors.iter().enumerate() {
            for &p in predecessors {
                successors[position[p]].push(position[op]);
            }
        }
        let mut uses = vec![0; program.ops.len()];
        let kept = ops.kept.iter().flat_map(|&op| &program.ops[op].inputs);
        for source in kept.chain(&program.outputs) {
            if let Source::Op(i) = source {
                uses[*i] += 1;
            }
        }
        let size = |op: OpId| match ops.trace.ops[op].work {
            Work::Host { bytes, flops } => flops + 4 * bytes,
            _ => 0,
        };
        Ok(Self {
            successors,
            waits: schedule.order.iter().map(|&op| schedule.predecessors[op].len()).collect(),
            large: schedule.order.iter().map(|&op| size(op) > LARGE).collect(),
            order: schedule.order.iter().map(|&op| ops.kept[op]).collect(),
            constants: fold(&program, &ops.folded)?,
            uses,
            parallel: schedule.streams() > 1 && super::cores() > 1,
            program,
        })
    }

    /// Whether more than one worker can have something to do.
    pub fn is_parallel(&self) -> bool {
        self.parallel && !pool().is_empty()
    }

    /// Runs the program; `parallel` says whether workers take part.
    pub fn run(self: &Arc<Self>, inputs: &[Tensor], parallel: bool) -> Result<Vec<Tensor>> {
        let n = self.order.len();
        let queue = Queue {
            ready: (0..n).filter(|&at| self.waits[at] == 0).map(Reverse).collect(),
            waits: self.waits.clone(),
            left: n,
            ..Default::default()
        };
        let run = Arc::new(Run {
            lanes: self.clone(),
            inputs: inputs.to_vec(),
            values: self.uses.iter().map(|&uses| Mutex::new((None, uses))).collect(),
            queue: Mutex::new(queue),
            changed: Condvar::new(),
        });
        run.lead(parallel && self.is_parallel());
        if let Some(error) = run.queue.lock().error.take() {
            return Err(error);
        }
        self.program.outputs.iter().map(|source| run.take(source).map_err(Error::from)).collect()
    }
}

/// Runs the operators that depend on no input.
fn fold(program: &Program, folded: &[OpId]) -> Result<HashMap<OpId, Tensor>> {
    let mut results: HashMap<OpId, Tensor> = HashMap::new();
    for &id in folded {
        let op = &program.ops[id];
        let arguments = op.inputs.iter().filter_map(|source| match source {
            Source::Op(i) => results.get(i),
            Source::Constant(t) => Some(t),
            Source::Input(_) => None,
        });
        let result = (op.kernel)(&arguments.collect::<Vec<_>>())?;
        results.insert(id, result);
    }
    Ok(results)
}

#[derive(Default)]
struct Queue {
    ready: BinaryHeap<Reverse<usize>>,
    waits: Vec<usize>,
    /// Operators on workers.
    running: usize,
    /// Whether an operator runs on the caller's thread.
    leading: bool,
    left: usize,
    /// Whether the workers have been called in.
    called: bool,
    error: Option<Error>,
}

/// One call.
struct Run {
    lanes: Arc<Lanes>,
    inputs: Vec<Tensor>,
    values: Vec<Mutex<(Option<Tensor>, usize)>>,
    queue: Mutex<Queue>,
    changed: Condvar,
}

impl Run {
    fn finished(queue: &Queue) -> bool {
        queue.error.is_some() && queue.running == 0 || queue.left == 0
    }

    /// Whether the workers' turn has come, or is not over.
    fn parallel(&self, queue: &Queue) -> bool {
        !queue.leading && (queue.running > 0 || self.large_ready(queue))
    }

    fn large_ready(&self, queue: &Queue) -> bool {
        queue.ready.iter().filter(|Reverse(at)| self.lanes.large[*at]).nth(1).is_some()
    }

    /// The caller's part: operators that have nothing large beside them.
    fn lead(self: &Arc<Self>, workers: bool) {
        let mut queue = self.queue.lock();
        while !Self::finished(&queue) {
            if workers && self.parallel(&queue) {
                if !std::mem::replace(&mut queue.called, true) {
                    for worker in pool() {
                        let run = self.clone();
                        worker.spawn(move || run.follow());
                    }
                }
                self.changed.notify_all();
                self.changed.wait(&mut queue);
                continue;
            }
            let Some(Reverse(at)) = queue.ready.pop() else { break };
            queue.leading = true;
            drop(queue);
            let result = self.execute(at);
            queue = self.queue.lock();
            queue.leading = false;
            self.finish(at, result, &mut queue);
        }
        self.changed.notify_all();
    }

    /// A worker's part.
    fn follow(&self) {
        let mut queue = self.queue.lock();
        while !Self::finished(&queue) {
            let next = if queue.error.is_none() && self.parallel(&queue) { queue.ready.pop() } else { None };
            let Some(Reverse(at)) = next else {
                self.changed.wait(&mut queue);
                continue;
            };
            queue.running += 1;
            drop(queue);
            let result = self.execute(at);
            queue = self.queue.lock();
            queue.running -= 1;
            self.finish(at, result, &mut queue);
            self.changed.notify_all();
        }
    }

    fn finish(&self, at: usize, result: Result<()>, queue: &mut Queue) {
        queue.left -= 1;
        match result {
            Ok(()) => {
                for &successor in &self.lanes.successors[at] {
                    queue.waits[successor] -= 1;
                    if queue.waits[successor] == 0 {
                        queue.ready.push(Reverse(successor));
                    }
                }
            }
            Err(error) => queue.error = queue.error.take().or(Some(error)),
        }
    }

    fn execute(&self, at: usize) -> Result<()> {
        let id = self.lanes.order[at];
        let op = &self.lanes.program.ops[id];
        let arguments = op.inputs.iter().map(|source| self.take(source)).collect::<candle::Result<Vec<_>>>()?;
        let references: Vec<&Tensor> = arguments.iter().collect();
        let result = catch_unwind(AssertUnwindSafe(|| nested(|| (op.kernel)(&references))));
        let result = result.map_err(|payload| Error::Panicked { message: panic_message(&*payload) })??;
        self.values[id].lock().0 = Some(result);
        Ok(())
    }

    /// A value for one of its readers; the last reader takes it away, so that its memory is free again.
    fn take(&self, source: &Source) -> candle::Result<Tensor> {
        match source {
            Source::Input(i) => Ok(self.inputs[*i].clone()),
            Source::Constant(t) => Ok(t.clone()),
            Source::Op(i) if self.lanes.constants.contains_key(i) => Ok(self.lanes.constants[i].clone()),
            Source::Op(i) => {
                let mut value = self.values[*i].lock();
                value.1 -= 1;
                let tensor = if value.1 == 0 { value.0.take() } else { value.0.clone() };
                tensor.ok_or_else(|| candle::Error::msg(format!("op {i} has no result")))
            }
        }
    }
}

/// One thread a core; rayon inside an operator that runs on it has that thread alone. Shared by all executors.
fn pool() -> &'static [rayon::ThreadPool] {
    static POOL: OnceLock<Vec<rayon::ThreadPool>> = OnceLock::new();
    POOL.get_or_init(|| {
        let worker = |i: usize| {
            rayon::ThreadPoolBuilder::new().num_threads(1).thread_name(move |_| format!("opara-worker-{i}")).build()
        };
        // Fewer threads than asked for are still a pool; none at all leaves everything to the caller.
        (0..super::cores()).map_while(|i| worker(i).ok()).collect()
    })
}
