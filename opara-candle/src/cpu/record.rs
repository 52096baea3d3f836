//! Records operators on the CPU as the module calls them.

use std::cell::RefCell;
use std::sync::Arc;

use candle::{Storage, Tensor, TensorId};
use hashbrown::HashMap;

use crate::arguments::{copy, write, StateArguments};
use crate::reentrancy::run_nested;
use crate::trace::{scope, Access, AccessMode, Buffer, BufferId, DeviceSpec, Op, Region, Role, Trace, Work};
use crate::{Error, Result};

/// The function that computes an operator from its inputs.
pub(crate) type HostKernel = Arc<dyn Fn(&[&Tensor]) -> candle::Result<Tensor> + Send + Sync>;

/// The source of an operator's argument.
#[derive(Debug, Clone)]
pub(crate) enum Source {
    /// The n-th argument of the module. The inputs come first, then the tensors of the state.
    Argument(usize),
    /// The result of the n-th operator.
    Op(usize),
    /// A tensor that no recorded operator of this pass made: a weight, or the result of an unrecorded operator.
    Constant(Tensor),
}

/// One recorded operator.
pub(crate) struct HostOp {
    pub name: &'static str,
    pub label: String,
    pub kernel: HostKernel,
    pub inputs: Vec<Source>,
    /// Does it write to its first input in place? Its result is then a view of that input.
    pub in_place: bool,
    /// The tensor that it returned.
    pub result: TensorId,
    flops: u64,
    bytes: u64,
    /// The storage of the result and its size in bytes. A view shares the storage of its argument.
    pub storage: (usize, u64),
}

/// A forward pass as a list of operators.
pub(crate) struct CpuProgram {
    pub ops: Vec<HostOp>,
    pub outputs: Vec<Source>,
    /// The size of each argument's storage in bytes.
    arguments: Vec<u64>,
    /// The number of inputs among the arguments; the others are state.
    inputs: usize,
}

#[derive(Default)]
struct Recorder {
    ops: Vec<HostOp>,
    /// By tensor id, since ids are never reused. Addresses are reused, so they are compared only while both tensors are
    /// alive.
    sources: HashMap<TensorId, Source>,
    /// The number of the module's arguments, and of inputs among them.
    arguments: usize,
    inputs: usize,
    /// Storages of results that are views of tensors from outside.
    foreign: Vec<usize>,
    /// Tensors from outside the pass that operators wrote to, each with a copy of its previous contents.
    before: Vec<(Tensor, Tensor)>,
    /// The error of the first write to an input or to a tensor from outside.
    refused: Option<Error>,
}

impl Recorder {
    /// The storage of a result: that of an argument, or a new one. The module's arguments come first, then one per operator.
    fn storage_of(&mut self, result: &Tensor, arguments: &[&Tensor], sources: &[Source]) -> (usize, u64) {
        let (address, bytes) = storage(result);
        let bases = arguments.iter().zip(sources).filter(|(argument, _)| storage(argument).0 == address);
        let base = bases.map(|(_, source)| source).find_map(|source| match source {
            Source::Argument(i) => Some(*i),
            Source::Op(i) => Some(self.ops[*i].storage.0),
            Source::Constant(_) => {
                self.foreign.push(self.arguments + self.ops.len());
                None
            }
        });
        (base.unwrap_or(self.arguments + self.ops.len()), bytes)
    }

    /// Called before an operator writes to this tensor. Keeps the contents of a tensor from outside the pass.
    fn note_write(&mut self, name: &str, target: &Tensor) -> candle::Result<()> {
        let place = match self.sources.get(&target.id()) {
            Some(Source::Argument(i)) => Some(*i),
            Some(Source::Op(i)) => Some(self.ops[*i].storage.0),
            _ => None,
        };
        let refused = match place {
            Some(at) if at < self.inputs => "a tensor that it is called with",
            Some(at) if !self.foreign.contains(&at) => return Ok(()),
            _ => "a tensor from outside that is not declared as state",
        };
        self.before.push((target.clone(), copy(target)?));
        let reason = format!("`{name}` writes to {refused}: give it to `Builder::build_step` as state");
        self.refused.get_or_insert(Error::NotCapturable { reason });
        Ok(())
    }
}

thread_local! {
    static RECORDER: RefCell<Option<Recorder>> = const { RefCell::new(None) };
}

/// Runs an operator, and records it if this thread records.
pub(crate) fn apply<F>(name: &'static str, inputs: &[&Tensor], flops: u64, f: F) -> candle::Result<Tensor>
where
    F: Fn(&[&Tensor]) -> candle::Result<Tensor> + Send + Sync + 'static,
{
    run(name, inputs, flops, false, f)
}

/// [`apply`] for an operator that writes to the first of `inputs` in place.
pub(crate) fn apply_in_place<F>(name: &'static str, inputs: &[&Tensor], f: F) -> candle::Result<()>
where
    F: Fn(&[&Tensor]) -> candle::Result<()> + Send + Sync + 'static,
{
    let written = move |t: &[&Tensor]| {
        f(t)?;
        // A new tensor id for the written value. The operand's id stands for the value before.
        t[0].reshape(t[0].shape())
    };
    run(name, inputs, 0, true, written).map(drop)
}

fn run<F>(name: &'static str, inputs: &[&Tensor], flops: u64, in_place: bool, f: F) -> candle::Result<Tensor>
where
    F: Fn(&[&Tensor]) -> candle::Result<Tensor> + Send + Sync + 'static,
{
    let _scope = scope::scope(name);
    // An operator built from other operators is recorded as one: the recorder is taken out while it runs.
    let Some(mut recorder) = RECORDER.take() else { return f(inputs) };
    let label = scope::path();
    let noted = inputs.first().filter(|_| in_place).map_or(Ok(()), |target| recorder.note_write(name, target));
    let result = noted.and_then(|()| f(inputs));
    // An operator that returns its operand unchanged, such as `narrow` over all of it, computes nothing: the value keeps its
    // source.
    let is_operand = |result: &&Tensor| inputs.iter().any(|input| input.id() == result.id());
    if let Some(result) = result.as_ref().ok().filter(|result| !is_operand(result)) {
        let sources: Vec<Source> = inputs
            .iter()
            .map(|t| recorder.sources.get(&t.id()).cloned().unwrap_or_else(|| Source::Constant((*t).clone())))
            .collect();
        let storage = recorder.storage_of(result, inputs, &sources);
        let bytes = inputs.iter().map(|t| size(t)).sum::<u64>() + size(result);
        recorder.sources.insert(result.id(), Source::Op(recorder.ops.len()));
        recorder.ops.push(HostOp {
            name,
            label,
            kernel: Arc::new(f),
            inputs: sources,
            in_place,
            result: result.id(),
            flops: flops.max(result.elem_count() as u64),
            bytes,
            storage,
        });
    }
    RECORDER.set(Some(recorder));
    result
}

/// A thread's recording on its way to another thread, which continues it.
pub(crate) struct Suspended(Option<Recorder>);

impl Suspended {
    /// Takes this thread's recording, if there is one.
    pub fn take() -> Self {
        Self(RECORDER.take())
    }

    /// Continues the recording on this thread while `f` runs.
    pub fn resume<T>(self, f: impl FnOnce() -> T) -> (T, Self) {
        let own = RECORDER.replace(self.0);
        let result = f();
        (result, Self(RECORDER.replace(own)))
    }

    /// Returns the recording to the thread that it was taken from.
    pub fn restore(self) {
        RECORDER.set(self.0);
    }
}

fn size(t: &Tensor) -> u64 {
    (t.elem_count() * t.dtype().size_in_bytes()) as u64
}

/// Address and size of a tensor's storage. Views of one storage have the same address.
fn storage(t: &Tensor) -> (usize, u64) {
    use candle::CpuStorage as S;
    fn of<T>(v: &[T]) -> (usize, u64) {
        (v.as_ptr() as usize, std::mem::size_of_val(v) as u64)
    }
    match &*t.storage_and_layout().0 {
        Storage::Cpu(S::U8(v)) => of(v),
        Storage::Cpu(S::U32(v)) => of(v),
        Storage::Cpu(S::I16(v)) => of(v),
        Storage::Cpu(S::I32(v)) => of(v),
        Storage::Cpu(S::I64(v)) => of(v),
        Storage::Cpu(S::BF16(v)) => of(v),
        Storage::Cpu(S::F16(v)) => of(v),
        Storage::Cpu(S::F32(v)) => of(v),
        Storage::Cpu(S::F64(v)) => of(v),
        _ => (t as *const Tensor as usize, size(t)),
    }
}

/// Runs `forward` on copies of `arguments`, some of which are `state`, and records it; also returns the eager answers.
pub(crate) fn record(
    forward: impl FnOnce(&[Tensor]) -> candle::Result<Vec<Tensor>>,
    arguments: &[Tensor],
    state: &StateArguments,
) -> Result<(CpuProgram, Vec<Tensor>)> {
    /// Restores an outer recording: an executor may be built inside a module that is being recorded.
    struct Restore(Option<Recorder>);
    impl Drop for Restore {
        fn drop(&mut self) {
            RECORDER.set(self.0.take());
        }
    }
    let _restore = Restore(RECORDER.take());
    // Copies, since the caller's tensor may also be one of the module's weights.
    let arguments = state.copies(arguments)?;
    let sources = arguments.iter().enumerate().map(|(i, t)| (t.id(), Source::Argument(i))).collect();
    let inputs = state.inputs(arguments.len());
    RECORDER.set(Some(Recorder { sources, arguments: arguments.len(), inputs, ..Default::default() }));
    let (outputs, _) = scope::record(None, || run_nested(|| forward(&arguments)));
    let recorder = RECORDER.take().unwrap_or_default();
    // In reverse order, so that the oldest contents are restored last.
    recorder.before.iter().rev().try_for_each(|(tensor, before)| write(tensor, before))?;
    let outputs = outputs?;
    recorder.refused.map_or(Ok(()), Err)?;
    let source = |t: &Tensor| recorder.sources.get(&t.id()).cloned().unwrap_or_else(|| Source::Constant(t.clone()));
    let sources = outputs.iter().map(source).collect();
    let bytes = arguments.iter().map(|argument| storage(argument).1).collect();
    let program = CpuProgram { ops: recorder.ops, outputs: sources, arguments: bytes, inputs };
    Ok((program, state.answers(outputs, &arguments)))
}

impl CpuProgram {
    /// Checks that a recorded operator made every output.
    ///
    /// # Errors
    /// [`Error::UntracedOutput`] for the first output that no recorded operator made.
    pub fn check_outputs(&self) -> Result<()> {
        match self.outputs.iter().position(|output| matches!(output, Source::Constant(_))) {
            Some(output) => Err(Error::UntracedOutput { output }),
            None => Ok(()),
        }
    }

    /// Compares with a second recording on other input values.
    ///
    /// A weight is the same tensor in both recordings. Any other constant was made inside `forward` and may depend on
    /// the input, so a replay must not reuse it.
    ///
    /// # Errors
    /// [`Error::Unstable`] if the operators differ, [`Error::UntracedTensor`] for a tensor made by an unrecorded
    /// operator.
    pub fn agrees_with(&self, other: &CpuProgram) -> Result<()> {
        let same = |pair: &(&Source, &Source)| match pair {
            (Source::Argument(a), Source::Argument(b)) | (Source::Op(a), Source::Op(b)) => a == b,
            (Source::Constant(a), Source::Constant(b)) => a.id() == b.id(),
            _ => false,
        };
        let names = |p: &CpuProgram, i: usize| p.ops.get(i).map_or("nothing", |op| op.name);
        for at in 0..self.ops.len().max(other.ops.len()) {
            if names(self, at) != names(other, at) {
                let (first, second) = (names(self, at).into(), names(other, at).into());
                return Err(Error::Unstable { at, first, second });
            }
            let (op, again) = (&self.ops[at], &other.ops[at]);
            if op.inputs.len() != again.inputs.len() {
                let of = |op: &HostOp| format!("{} of {} tensors", op.name, op.inputs.len());
                return Err(Error::Unstable { at, first: of(op), second: of(again) });
            }
            for (argument, pair) in op.inputs.iter().zip(&again.inputs).enumerate() {
                if !same(&pair) {
                    let shape = match pair {
                        (Source::Constant(t), _) | (_, Source::Constant(t)) => t.shape().clone(),
                        _ => ().into(),
                    };
                    let (op, label) = (op.name.to_string(), op.label.clone());
                    return Err(Error::UntracedTensor { op, label, argument, shape });
                }
            }
        }
        let outputs = || self.outputs.iter().zip(&other.outputs);
        if self.outputs.len() != other.outputs.len() || !outputs().all(|pair| same(&pair)) {
            let list = |p: &CpuProgram| {
                let names: Vec<&str> = p.outputs.iter().map(|output| p.name(output)).collect();
                format!("outputs of {names:?}")
            };
            return Err(Error::Unstable { at: self.ops.len(), first: list(self), second: list(other) });
        }
        Ok(())
    }

    fn name(&self, source: &Source) -> &'static str {
        match source {
            Source::Argument(i) if *i >= self.inputs => "state",
            Source::Argument(_) => "input",
            Source::Op(i) => self.ops[*i].name,
            Source::Constant(_) => "weight",
        }
    }

    /// The recording as a [`Trace`]: one buffer per storage, and one for the handle of each view. A view writes only
    /// its handle; an operator that reads a view reads its handle and its storage.
    pub fn trace(&self) -> Trace {
        let mut trace = Trace { device: device_spec(), ..Default::default() };
        let mut by_storage: HashMap<usize, BufferId> = HashMap::new();
        let new_buffer = |trace: &mut Trace, bytes, role| {
            trace.buffers.push(Buffer { bytes, role });
            trace.buffers.len() - 1
        };
        // The buffers of a value: its handle, and its storage if that is another buffer.
        let mut arguments: Vec<Vec<BufferId>> = Vec::new();
        for (i, &bytes) in self.arguments.iter().enumerate() {
            let role = i.checked_sub(self.inputs).map_or(Role::Input(i), Role::State);
            let buffer = new_buffer(&mut trace, bytes, role);
            by_storage.insert(i, buffer);
            arguments.push(vec![buffer]);
        }
        let mut values: Vec<Vec<BufferId>> = Vec::new();
        for (id, op) in self.ops.iter().enumerate() {
            let mut accesses = Vec::new();
            for (at, source) in op.inputs.iter().enumerate() {
                let buffers: &[BufferId] = match source {
                    Source::Argument(i) => &arguments[*i],
                    Source::Op(i) => &values[*i],
                    Source::Constant(_) => &[],
                };
                accesses.extend(buffers.iter().map(|&buffer| access(&trace, buffer, AccessMode::Read)));
                // Elements lie in the last one, behind the handle.
                let written = buffers.last().filter(|_| op.in_place && at == 0);
                accesses.extend(written.map(|&buffer| access(&trace, buffer, AccessMode::ReadWrite)));
            }
            let (storage, bytes) = op.storage;
            let role = match self.outputs.iter().position(|o| matches!(o, Source::Op(i) if *i == id)) {
                Some(output) => Role::Output(output),
                None => Role::Intermediate,
            };
            let value = match by_storage.get(&storage) {
                Some(&base) => vec![new_buffer(&mut trace, std::mem::size_of::<Tensor>() as u64, role), base],
                None => {
                    let buffer = new_buffer(&mut trace, bytes, role);
                    by_storage.insert(storage, buffer);
                    vec![buffer]
                }
            };
            accesses.push(access(&trace, value[0], AccessMode::Write));
            values.push(value);
            trace.ops.push(Op {
                name: op.name.into(),
                label: op.label.clone(),
                work: Work::Host { bytes: op.bytes, flops: op.flops },
                accesses,
                nanos: None,
                meaning: None,
            });
        }
        trace
    }
}

fn access(trace: &Trace, buffer: BufferId, mode: AccessMode) -> Access {
    Access { buffer, region: Region::contiguous(0, trace.buffers[buffer].bytes), mode }
}

fn device_spec() -> DeviceSpec {
    DeviceSpec { name: "cpu".into(), processors: super::cores() as u32, ..Default::default() }
}
