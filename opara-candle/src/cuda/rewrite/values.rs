//! What is in buffers while a recorded pass runs.

use std::sync::Arc;

use candle::{DType, Tensor};
use hashbrown::HashMap;

use crate::backend::{Example, Planned, Replay};
use crate::cuda::pass::OutputSpec;
use crate::cuda::program::CudaProgram;
use crate::cuda::replay::GraphReplay;
use crate::prepared::{Prepared, Settings};
use crate::schedule::{Policy, Scheduler};
use crate::trace::{BufferId, Role, Trace};
use crate::{timing, Error, Result};

/// Buffers of a pass of which the values are asked for, and the type of their elements.
pub(super) type Wanted = Vec<(BufferId, DType)>;

/// What a pass in recorded order gave for one example.
pub(super) struct Values {
    pub outputs: Vec<Tensor>,
    /// The wanted buffers, each as one row.
    pub of: HashMap<BufferId, Tensor>,
}

/// Runs the program in recorded order on each example. `wanted` are intermediate buffers. Also the microseconds of the fastest run.
///
/// # Errors
/// Those of the driver, and no memory.
pub(super) fn run(
    program: Box<CudaProgram>,
    examples: &[Example],
    wanted: &Wanted,
    settings: Settings,
) -> (Box<CudaProgram>, Result<(Vec<Values>, f64)>) {
    let mut program = program;
    let own = program.capture.outputs.len();
    let mut trace = program.capture.trace.clone();
    for (at, &(buffer, dtype)) in wanted.iter().enumerate() {
        let bytes = trace.buffers[buffer].bytes;
        trace.buffers[buffer].role = Role::Output(own + at);
        let shape = (bytes as usize / dtype.size_in_bytes()).into();
        program.capture.outputs.push(OutputSpec { shape, dtype, address: 0, bytes, whole: true });
    }
    // An arena of its own: the executor's would stay as large as this run needs.
    let arena = std::mem::take(&mut program.arena);
    let program = Arc::new(*program);
    let result = of_program(&program, trace, examples, own, wanted, settings);
    // All that was built of it is gone.
    let mut program = Box::new(Arc::into_inner(program).unwrap_or_else(|| unreachable!("nothing else holds it")));
    program.capture.outputs.truncate(own);
    program.arena = arena;
    (program, result)
}

fn of_program(
    program: &Arc<CudaProgram>,
    trace: Trace,
    examples: &[Example],
    own: usize,
    wanted: &Wanted,
    settings: Settings,
) -> Result<(Vec<Values>, f64)> {
    let prepared = Prepared::new(&trace, settings);
    let schedule = Policy::Sequential.schedule(&prepared.problem())?;
    let plan = Planned { program: program.clone(), trace: trace.into(), prepared: prepared.into(), schedule };
    let replay = GraphReplay::new(program.clone(), plan.into(), None)?;
    let mut fastest = f64::INFINITY;
    let mut values = Vec::with_capacity(examples.len());
    for example in examples {
        let state = program.state.lock();
        state.as_ref().map_or(Ok(()), crate::cuda::driver::WrittenMemory::restore)?;
        drop(state);
        let mut outputs = replay.call(&example.inputs)?;
        let of = outputs.split_off(own);
        values.push(Values { outputs, of: wanted.iter().map(|&(buffer, _)| buffer).zip(of).collect() });
    }
    /// The first launches are longer.
    const TIMED: usize = 4;
    let first = examples.first().ok_or_else(|| Error::Internal { message: "there is no example".into() })?;
    for _ in 0..TIMED {
        let ((), us) = timing::timed(&program.device, || replay.call_zero_copy(&first.inputs, &mut |_| {}))?;
        fastest = fastest.min(us);
    }
    Ok((values, fastest))
}
