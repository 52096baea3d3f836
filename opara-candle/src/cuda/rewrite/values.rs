//! What is in buffers while a recorded pass runs.

use std::sync::Arc;

use candle::{DType, Tensor};
use hashbrown::{HashMap, HashSet};
use opara_plan::rewrite::Region;

use crate::backend::{Example, Planned, Replay};
use crate::cuda::capture::Capture;
use crate::cuda::driver::copy_of;
use crate::cuda::pass::OutputSpec;
use crate::cuda::program::CudaProgram;
use crate::cuda::replay::GraphReplay;
use crate::prepared::{Prepared, Settings};
use crate::rewrite::evaluate::Arithmetic;
use crate::rewrite::set::Set;
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
    /// Calls that are timed: the first ones are slower.
    const TIMED: usize = 4;
    /// After so much time there are no further calls: the first one of a long pass is hardly slower.
    const LONG_US: f64 = 4e4;
    let (mut fastest, mut spent) = (f64::INFINITY, 0.);
    let mut values = Vec::with_capacity(examples.len());
    for example in examples {
        let state = program.state.lock();
        state.as_ref().map_or(Ok(()), crate::cuda::driver::WrittenMemory::restore)?;
        drop(state);
        let (mut outputs, us) = timing::timed(&program.device, || replay.call(&example.inputs))?;
        // Copies of the outputs, too, which are more than a pass has.
        spent += us;
        let of = outputs.split_off(own);
        values.push(Values { outputs, of: wanted.iter().map(|&(buffer, _)| buffer).zip(of).collect() });
    }
    let first = examples.first().ok_or_else(|| Error::Internal { message: "there is no example".into() })?;
    for _ in 0..TIMED {
        let ((), us) = timing::timed(&program.device, || replay.call_zero_copy(&first.inputs, &mut |_| {}))?;
        (fastest, spent) = (fastest.min(us), spent + us);
        if spent > LONG_US {
            break;
        }
    }
    Ok((values, fastest))
}

/// The intermediate buffers that the regions read and give.
pub(super) fn wanted<'a>(capture: &Capture, regions: impl Iterator<Item = &'a Region>) -> Wanted {
    let mut wanted: Wanted = Vec::new();
    let mut known: HashSet<BufferId> = HashSet::new();
    for Region { graph, .. } in regions {
        let inputs = graph.inputs.iter().map(|input| (input.buffer, input.element));
        let outputs = graph.outputs.iter().map(|output| (output.buffer, graph.element(output.value)));
        for (buffer, element) in inputs.chain(outputs) {
            let is_inside = capture.trace.buffers[buffer].role == Role::Intermediate;
            if is_inside && known.insert(buffer) {
                wanted.push((buffer, Arithmetic::Typed.dtype(element)));
            }
        }
    }
    wanted
}

/// For each example, what the run read and gave.
pub(super) fn sets(
    program: &CudaProgram,
    examples: &[Example],
    region: &Region,
    values: &[Values],
) -> Result<Vec<Set>> {
    let buffers = &program.capture.trace.buffers;
    let addresses: HashMap<BufferId, u64> =
        program.capture.external.iter().map(|&(address, id)| (id, address)).collect();
    let unknown = |buffer| Error::Internal { message: format!("buffer {buffer} has no value") };
    let mut weights: HashMap<BufferId, Tensor> = HashMap::new();
    for input in region.graph.inputs.iter().filter(|input| buffers[input.buffer].role == Role::External) {
        let address = *addresses.get(&input.buffer).ok_or_else(|| unknown(input.buffer))?;
        let dtype = Arithmetic::Typed.dtype(input.element);
        weights.insert(input.buffer, copy_of(&program.device, address, dtype, input.len as usize)?);
    }
    let of = |example: &Example, values: &Values, buffer: BufferId| -> Result<Tensor> {
        let found = match buffers[buffer].role {
            Role::Input(i) => example.inputs.get(i).map(|input| input.flatten_all()).transpose()?,
            Role::Output(i) => values.outputs.get(i).map(|output| output.flatten_all()).transpose()?,
            _ => weights.get(&buffer).or(values.of.get(&buffer)).cloned(),
        };
        found.ok_or_else(|| unknown(buffer))
    };
    let set = |(example, values): (&Example, &Values)| {
        let of = |buffer| of(example, values, buffer);
        let inputs = region.graph.inputs.iter().map(|input| of(input.buffer)).collect::<Result<Vec<_>>>()?;
        let outputs = region.graph.outputs.iter().map(|output| of(output.buffer)).collect::<Result<_>>()?;
        let set = Set::new(&region.graph, inputs, outputs)?;
        program.device.synchronize()?;
        Ok(set)
    };
    examples.iter().zip(values).map(set).collect()
}
