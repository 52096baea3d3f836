//! Contents of buffers while a recorded pass runs.

use std::sync::Arc;

use candle::{DType, Tensor};
use hashbrown::{HashMap, HashSet};
use opara_plan::rewrite::{first_item, Input, Item, Region};

use crate::backend::{Example, Planned, Replay};
use crate::cuda::capture::Capture;
use crate::cuda::driver::{copy_of, LaunchNode};
use crate::cuda::pass::OutputSpec;
use crate::cuda::program::CudaProgram;
use crate::cuda::replay::GraphReplay;
use crate::rewrite::evaluate::Arithmetic;
use crate::rewrite::set::Set;
use crate::trace::{BufferId, Role, Trace};
use crate::{timing, Error, Result};
use opara_plan::prepared::{Prepared, Settings};
use opara_plan::schedule::{BuiltIn, Scheduler};

/// Buffers of a pass of which the values are asked for, and the type of their elements.
pub(super) type Wanted = Vec<(BufferId, DType)>;

/// Results of a pass in recorded order for one example.
pub(super) struct Values {
    pub outputs: Vec<Tensor>,
    /// The wanted buffers, each as one row.
    pub of: HashMap<BufferId, Tensor>,
}

/// The microseconds that so many launches take one after the other, if eager calls tell: if these took long, and kept the device busy.
pub(super) fn busy_us(examples: &[Example], launches: usize) -> Option<f64> {
    const LONG_US: f64 = 25e3;
    let Example { eager_us: us, is_device_behind, .. } = *examples.first()?;
    (is_device_behind && us > LONG_US && timing::keeps_busy(us, launches)).then_some(us)
}

/// What eager calls gave, if no more is asked for.
pub(super) fn of_eager_calls(examples: &[Example], wanted: &Wanted) -> Option<Vec<Values>> {
    let values = |example: &Example| Values { outputs: example.outputs.clone(), of: HashMap::new() };
    wanted.is_empty().then(|| examples.iter().map(values).collect())
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
    let schedule = BuiltIn::Sequential.schedule(&prepared.problem())?;
    let plan = Planned { program: program.clone(), trace: trace.into(), prepared: prepared.into(), schedule };
    let replay = GraphReplay::new(program.clone(), plan.into(), None)?;
    /// Calls that are timed: the first ones are slower.
    const TIMED: usize = 4;
    /// After so much time there are no further calls: the first one of a long pass is hardly slower.
    const ENOUGH_US: f64 = 4e4;
    let (mut fastest, mut spent) = (f64::INFINITY, 0.);
    let mut values = Vec::with_capacity(examples.len());
    for example in examples {
        let state = program.state.lock();
        state.as_ref().map_or(Ok(()), crate::cuda::driver::WrittenMemory::restore)?;
        drop(state);
        let (mut outputs, us) = timing::timed(&program.device, || replay.call(&example.inputs))?;
        // Copies of the outputs, too, which are more than a pass has.
        spent += us;
        if us > ENOUGH_US && wanted.is_empty() {
            fastest = fastest.min(us);
        }
        let of = outputs.split_off(own);
        values.push(Values { outputs, of: wanted.iter().map(|&(buffer, _)| buffer).zip(of).collect() });
    }
    let first = examples.first().ok_or_else(|| Error::Internal { message: "there is no example".into() })?;
    for _ in 0..TIMED {
        if spent > ENOUGH_US && fastest.is_finite() {
            break;
        }
        let ((), us) = timing::timed(&program.device, || replay.call_zero_copy(&first.inputs, &mut |_| {}))?;
        (fastest, spent) = (fastest.min(us), spent + us);
    }
    Ok((values, fastest))
}

/// The bytes of intermediate buffers that are constants of a pass.
pub(super) type Uploads = HashMap<BufferId, Arc<[u8]>>;

/// The constants of a pass: one copy from the host fills such a buffer, and nothing else writes to it.
pub(super) fn uploads(capture: &Capture) -> Uploads {
    let Capture { trace, launches, .. } = capture;
    let mut writers: HashMap<BufferId, usize> = HashMap::new();
    for access in trace.ops.iter().flat_map(|op| &op.accesses).filter(|access| access.mode.writes()) {
        *writers.entry(access.buffer).or_default() += 1;
    }
    let launches = launches.lock();
    let filled = launches.of.iter().zip(&trace.ops).filter_map(|(of, op)| {
        let LaunchNode::Memcpy(memcpy) = &of.launch else { return None };
        let (bytes, [access]) = (memcpy.bytes_on_host()?, &op.accesses[..]) else { return None };
        let buffer = &trace.buffers[access.buffer];
        let is_all = buffer.role == Role::Intermediate && buffer.bytes == bytes.len() as u64;
        (is_all && writers[&access.buffer] == 1).then(|| (access.buffer, bytes.into()))
    });
    filled.collect()
}

/// The bits of an input that is one uploaded float.
pub(super) fn uploaded_number(uploads: &Uploads, input: &Input) -> Option<u64> {
    let bytes = uploads.get(&input.buffer).filter(|_| input.element.is_float() && input.len == 1)?;
    (bytes.len() as u64 == input.element.bytes())
        .then(|| bytes.iter().rev().fold(0, |bits, &byte| bits << 8 | u64::from(byte)))
}

/// The intermediate buffers that the regions read and give, but for constants of the pass.
pub(super) fn wanted<'a>(capture: &Capture, regions: impl Iterator<Item = &'a Region>, uploads: &Uploads) -> Wanted {
    let mut wanted: Wanted = Vec::new();
    let mut known: HashSet<BufferId> = uploads.keys().copied().collect();
    for region in regions {
        let graph = &region.graph;
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

/// Contents of the buffers that a run reads and gives.
struct Contents<'a> {
    program: &'a CudaProgram,
    region: &'a Region,
    /// Weights, and other constants.
    constants: HashMap<BufferId, Tensor>,
}

impl<'a> Contents<'a> {
    fn new(program: &'a CudaProgram, region: &'a Region, uploads: &Uploads) -> Result<Self> {
        let addresses: HashMap<BufferId, u64> =
            program.capture.external.iter().map(|&(address, id)| (id, address)).collect();
        let mut constants: HashMap<BufferId, Tensor> = HashMap::new();
        for input in &region.graph.inputs {
            let (dtype, len) = (Arithmetic::Typed.dtype(input.element), input.len as usize);
            if program.capture.trace.buffers[input.buffer].role == Role::External {
                let address = *addresses.get(&input.buffer).ok_or_else(|| unknown(input.buffer))?;
                constants.insert(input.buffer, copy_of(&program.device, address, dtype, len)?);
            } else if let Some(bytes) = uploads.get(&input.buffer) {
                constants.insert(input.buffer, Tensor::from_raw_buffer(bytes, dtype, &[len], &program.device)?);
            }
        }
        Ok(Self { program, region, constants })
    }

    fn of(&self, example: &Example, values: &Values, buffer: BufferId) -> Result<Tensor> {
        let found = match self.program.capture.trace.buffers[buffer].role {
            Role::Input(i) => example.inputs.get(i).map(|input| input.flatten_all()).transpose()?,
            Role::Output(i) => values.outputs.get(i).map(|output| output.flatten_all()).transpose()?,
            _ => self.constants.get(&buffer).or(values.of.get(&buffer)).cloned(),
        };
        found.ok_or_else(|| unknown(buffer))
    }

    fn inputs(&self, example: &Example, values: &Values) -> Result<Vec<Tensor>> {
        self.region.graph.inputs.iter().map(|input| self.of(example, values, input.buffer)).collect()
    }
}

fn unknown(buffer: BufferId) -> Error {
    Error::Internal { message: format!("buffer {buffer} has no value") }
}

/// What the run read in the first example.
pub(super) fn operands(
    program: &CudaProgram,
    examples: &[Example],
    region: &Region,
    values: &[Values],
    uploads: &Uploads,
) -> Result<Vec<Tensor>> {
    let first = examples.first().zip(values.first());
    let (example, values) = first.ok_or_else(|| Error::Internal { message: "there is no example".into() })?;
    Contents::new(program, region, uploads)?.inputs(example, values)
}

/// For each example, what the run read and gave. If all are examples that the caller gave, the run on altered operands, too. Of a long
/// pass, the first item of a batch, if it has several.
pub(super) fn sets(
    program: &CudaProgram,
    examples: &[Example],
    region: &Region,
    values: &[Values],
    uploads: &Uploads,
    is_long: bool,
) -> Result<Vec<Set>> {
    let contents = Contents::new(program, region, uploads)?;
    let item = is_long.then(|| item_of(region, examples)).flatten();
    let set = |(example, values): (&Example, &Values)| {
        let inputs = contents.inputs(example, values)?;
        let outputs = region.graph.outputs.iter().map(|output| contents.of(example, values, output.buffer));
        let outputs = outputs.collect::<Result<Vec<_>>>()?;
        if let Some(set) = item.as_ref().and_then(|item| Set::of_item(item, inputs.clone(), &outputs).transpose()) {
            return Ok(set?);
        }
        let set = Set::new(&region.graph, inputs, outputs)?;
        program.device.synchronize()?;
        Ok(set)
    };
    let mut sets = examples.iter().zip(values).map(set).collect::<Result<Vec<_>>>()?;
    let is_altered = examples.iter().zip(values).any(|(example, _)| !example.is_given);
    let first = sets.first().filter(|_| !is_altered);
    // Without memory for it, the examples have to do.
    let altered = first.and_then(|set| set.altered(&region.graph, item.as_ref()).ok().flatten());
    sets.extend(altered);
    program.device.synchronize()?;
    Ok(sets)
}

/// The run for the first item of a batch, if the first dimension of an argument counts the items.
fn item_of(region: &Region, examples: &[Example]) -> Option<Item> {
    let inputs = examples.first()?.inputs.iter();
    let batches = inputs.filter(|input| input.rank() > 1).map(|input| input.dims()[0] as u64);
    batches.filter(|&items| items > 1).find_map(|items| first_item(&region.graph, items))
}
