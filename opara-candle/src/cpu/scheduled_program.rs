//! Replay on worker threads: one per core, over all streams of the schedule.
//!
//! Operators that gain from it run in parallel, each on one worker; rayon inside them has that one thread. All others
//! run on the caller's thread, where rayon has all cores, as in eager execution. So a chain costs no more than eager
//! execution, and parallel branches do not compete for cores.

use std::sync::{Arc, OnceLock};

use candle::Tensor;
use hashbrown::HashMap;
use parking_lot::{Condvar, Mutex};

use super::cores::cores;
use super::dispatch::{Dispatch, Steps};
use super::program::{CpuProgram, Source};
use crate::panics::caught;
use crate::reentrancy::run_nested;
use crate::trace::{OpId, Work};
use crate::{Error, Result};
use opara_plan::optimize::Optimized;
use opara_plan::schedule::{Schedule, Step};

/// A program with a schedule, ready to run.
pub(crate) struct ScheduledProgram {
    program: Arc<CpuProgram>,
    /// For each step of the schedule its operator; `None` for a barrier.
    order: Vec<Option<OpId>>,
    steps: Arc<Steps>,
    /// Results of constant-folded operators.
    constants: HashMap<OpId, Tensor>,
    /// The number of readers of each operator's result. Outputs count one more, so that they are not freed.
    uses: Vec<usize>,
    /// For each output: is it a view of a constant-folded operator's result?
    shared: Vec<bool>,
    parallel: bool,
}

impl ScheduledProgram {
    /// # Errors
    /// An error of a constant-folded operator: they run here.
    pub fn new(program: Arc<CpuProgram>, ops: &Optimized, schedule: &Schedule) -> Result<Self> {
        let scheduled = schedule.steps();
        let work = |step: &Step| match step.op.map(|op| &ops.trace.ops[op].work) {
            Some(Work::Host { bytes, flops }) => flops + 4 * bytes,
            _ => 0,
        };
        let scales = |step: &Step| {
            let name = step.op.map(|op| program.ops[ops.per_call[op]].name);
            matches!(name, Some("linear" | "matmul" | "attention" | "softmax" | "conv2d" | "max_pool2d" | "avg_pool2d"))
        };
        let mut steps = Steps {
            scales: scheduled.iter().map(scales).collect(),
            work: scheduled.iter().map(work).collect(),
            successors: vec![Vec::new(); scheduled.len()],
            waits: scheduled.iter().map(|step| step.after.len()).collect(),
        };
        for (at, step) in scheduled.iter().enumerate() {
            step.after.iter().for_each(|&before| steps.successors[before].push(at));
        }
        let mut uses = vec![0; program.ops.len()];
        let read = ops.per_call.iter().flat_map(|&op| &program.ops[op].inputs);
        for source in read.chain(&program.outputs) {
            if let Source::Op(i) = source {
                uses[*i] += 1;
            }
        }
        let steps = Arc::new(steps);
        let mut constants = fold(&program, &ops.folded)?;
        constants.retain(|&op, _| uses[op] > 0);
        let folded: Vec<usize> = ops.folded.iter().map(|&op| program.ops[op].storage.0).collect();
        let views = |output: &Source| matches!(output, Source::Op(i) if folded.contains(&program.ops[*i].storage.0));
        Ok(Self {
            shared: program.outputs.iter().map(views).collect(),
            order: scheduled.iter().map(|step| step.op.map(|op| ops.per_call[op])).collect(),
            parallel: schedule.streams() > 1 && steps.parallelism_pays(cores()),
            steps,
            constants,
            uses,
            program,
        })
    }

    /// May workers be faster?
    pub fn is_parallel(&self) -> bool {
        self.parallel && pool().len() > 1
    }

    /// Runs the program; `parallel` says whether workers take part.
    pub fn run(self: &Arc<Self>, arguments: &[Tensor], parallel: bool) -> Result<Vec<Tensor>> {
        let cores = if parallel && self.is_parallel() { pool().len() } else { 1 };
        let run = Arc::new(Run {
            scheduled: self.clone(),
            arguments: arguments.to_vec(),
            values: self.uses.iter().map(|&uses| Mutex::new((None, uses))).collect(),
            state: Mutex::new(State { dispatch: Dispatch::new(self.steps.clone(), cores), error: None }),
            changed: Condvar::new(),
        });
        match cores {
            1 => super::team::awake(|| run.lead()),
            _ => run.lead(),
        }
        if let Some(error) = run.state.lock().error.take() {
            return Err(error);
        }
        let own = |(source, shared): (&Source, &bool)| {
            let output = run.take(source)?;
            // The caller may write to the output, which must not change the constant.
            Ok(if *shared { output.copy()? } else { output })
        };
        self.program.outputs.iter().zip(&self.shared).map(own).collect()
    }
}

/// Runs the operators that depend on no input.
fn fold(program: &CpuProgram, folded: &[OpId]) -> Result<HashMap<OpId, Tensor>> {
    let mut results: HashMap<OpId, Tensor> = HashMap::new();
    for &id in folded {
        let op = &program.ops[id];
        let arguments = op.inputs.iter().filter_map(|source| match source {
            Source::Op(i) => results.get(i).cloned(),
            Source::Constant(t) => Some(t.detach()),
            Source::Argument(_) => None,
        });
        let arguments = arguments.collect::<Vec<_>>();
        let references: Vec<&Tensor> = arguments.iter().collect();
        let result = caught(|| Ok(run_nested(|| (op.kernel)(&references))?))?;
        results.insert(id, result.detach());
    }
    Ok(results)
}

struct State {
    dispatch: Dispatch,
    /// The first error of an operator.
    error: Option<Error>,
}

/// One call.
struct Run {
    scheduled: Arc<ScheduledProgram>,
    arguments: Vec<Tensor>,
    /// Each operator's result, and how many readers have yet to take it.
    values: Vec<Mutex<(Option<Tensor>, usize)>>,
    state: Mutex<State>,
    changed: Condvar,
}

impl Run {
    /// The loop of the caller's thread.
    fn lead(self: &Arc<Self>) {
        let mut called = false;
        let mut state = self.state.lock();
        while !state.dispatch.is_finished() {
            if let Some(at) = state.dispatch.lead() {
                drop(state);
                let result = self.execute(at);
                state = self.state.lock();
                self.finish(at, result, &mut state);
                continue;
            }
            if !std::mem::replace(&mut called, true) {
                for worker in pool() {
                    let run = self.clone();
                    worker.spawn(move || run.follow());
                }
            }
            self.changed.notify_all();
            self.changed.wait(&mut state);
        }
        self.changed.notify_all();
    }

    /// The loop of a worker thread.
    fn follow(&self) {
        let mut state = self.state.lock();
        while !state.dispatch.is_finished() {
            let Some(at) = state.dispatch.follow() else {
                self.changed.wait(&mut state);
                continue;
            };
            drop(state);
            let result = self.execute(at);
            state = self.state.lock();
            self.finish(at, result, &mut state);
            self.changed.notify_all();
        }
    }

    fn finish(&self, at: usize, result: Result<()>, state: &mut State) {
        if let Err(error) = result {
            state.dispatch.cancel();
            state.error.get_or_insert(error);
        }
        state.dispatch.finish(at);
    }

    fn execute(&self, at: usize) -> Result<()> {
        let Some(id) = self.scheduled.order[at] else { return Ok(()) };
        let op = &self.scheduled.program.ops[id];
        let arguments = op.inputs.iter().map(|source| self.take(source)).collect::<candle::Result<Vec<_>>>()?;
        let references: Vec<&Tensor> = arguments.iter().collect();
        let result = caught(|| Ok(run_nested(|| (op.kernel)(&references))?))?;
        op.check_result(&result)?;
        self.values[id].lock().0 = Some(result);
        Ok(())
    }

    /// A value for one of its readers. The last reader takes it out, so that its memory is freed.
    fn take(&self, source: &Source) -> candle::Result<Tensor> {
        match source {
            Source::Argument(i) => Ok(self.arguments[*i].clone()),
            // Without a graph, which would keep intermediate tensors alive.
            Source::Constant(t) => Ok(t.detach()),
            Source::Op(i) if self.scheduled.constants.contains_key(i) => Ok(self.scheduled.constants[i].clone()),
            Source::Op(i) => {
                let mut value = self.values[*i].lock();
                value.1 -= 1;
                let tensor = if value.1 == 0 { value.0.take() } else { value.0.clone() };
                tensor.ok_or_else(|| candle::Error::msg(format!("op {i} has no result")))
            }
        }
    }
}

/// One thread per core, shared by all executors. Rayon inside an operator on a worker has only that thread.
fn pool() -> &'static [rayon::ThreadPool] {
    static POOL: OnceLock<Vec<rayon::ThreadPool>> = OnceLock::new();
    POOL.get_or_init(|| {
        let worker = |i: usize| {
            rayon::ThreadPoolBuilder::new().num_threads(1).thread_name(move |_| format!("opara-worker-{i}")).build()
        };
        // If fewer threads can be started, the pool is smaller; with none, everything runs on the caller's thread.
        (0..cores()).map_while(|i| worker(i).ok()).collect()
    })
}
