//! Records operators on the CPU as the module calls them.

use std::cell::RefCell;
use std::sync::Arc;

use candle::{Storage, Tensor, TensorId};
use hashbrown::HashMap;

use super::program::{CpuProgram, HostOp, Source};
use super::unread::{Contents, Unread};
use crate::arguments::{copy, write, StateArguments};
use crate::empty::{placed, with_placed};
use crate::gradient;
use crate::reentrancy::run_nested;
use crate::trace::scope;
use crate::{Error, Result};

#[derive(Default)]
struct Recorder {
    ops: Vec<HostOp>,
    /// For each call of an operator which of its operands it returned unchanged.
    returned: Vec<Option<usize>>,
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

/// What becomes of the operators that a thread calls.
enum Pass {
    Recorded(Recorder),
    Unread(Unread),
}

thread_local! {
    static PASS: RefCell<Option<Pass>> = const { RefCell::new(None) };
}

/// Runs an operator, and records it if this thread records.
pub(crate) fn apply<F>(name: &'static str, inputs: &[&Tensor], flops: u64, f: F) -> candle::Result<Tensor>
where
    F: Fn(&[&Tensor]) -> candle::Result<Tensor> + Send + Sync + 'static,
{
    run(name, inputs, flops, false, move |t| gradient::watched(name, t, || with_placed(t, &f).and_then(placed)))
}

/// [`apply`] for an operator that writes to the first of `inputs` in place.
pub(crate) fn apply_in_place<F>(name: &'static str, inputs: &[&Tensor], f: F) -> candle::Result<()>
where
    F: Fn(&[&Tensor]) -> candle::Result<()> + Send + Sync + 'static,
{
    let written = move |t: &[&Tensor]| {
        with_placed(t, &f)?;
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
    let mut recorder = match PASS.take() {
        None => return f(inputs),
        Some(Pass::Unread(mut pass)) => {
            let result = pass.apply(name, inputs, in_place, || f(inputs));
            PASS.set(Some(Pass::Unread(pass)));
            return result;
        }
        Some(Pass::Recorded(recorder)) => recorder,
    };
    let label = scope::path();
    let noted = inputs.first().filter(|_| in_place).map_or(Ok(()), |target| recorder.note_write(name, target));
    let result = noted.and_then(|()| f(inputs));
    // An operator that returns its operand unchanged, such as `narrow` over all of it, computes nothing: the value keeps its
    // source.
    let operand = result.as_ref().ok().and_then(|result| inputs.iter().position(|input| input.id() == result.id()));
    recorder.returned.push(operand);
    if let Some(result) = result.as_ref().ok().filter(|_| operand.is_none()) {
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
            layout: result.layout().clone(),
            dtype: result.dtype(),
            flops: flops.max(result.elem_count() as u64),
            bytes,
            storage,
        });
    }
    PASS.set(Some(Pass::Recorded(recorder)));
    result
}

/// A thread's recording on its way to another thread, which continues it.
pub(crate) struct Suspended(Option<Pass>);

impl Suspended {
    /// Takes this thread's recording, if there is one.
    pub fn take() -> Self {
        Self(PASS.take())
    }

    /// Continues the recording on this thread while `f` runs.
    pub fn resume<T>(self, f: impl FnOnce() -> T) -> (T, Self) {
        let own = PASS.replace(self.0);
        let result = f();
        (result, Self(PASS.replace(own)))
    }

    /// Returns the recording to the thread that it was taken from.
    pub fn restore(self) {
        PASS.set(self.0);
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

/// Restores an outer recording: an executor may be built inside a module that is being recorded.
struct Restore(Option<Pass>);

impl Drop for Restore {
    fn drop(&mut self) {
        PASS.set(self.0.take());
    }
}

/// Runs `forward` on tensors without values, and compares it with a recording.
///
/// # Errors
/// [`Error::NotCapturable`] or [`Error::Unstable`] if it depends on values.
pub(super) fn check_unread(
    forward: impl Fn(&[Tensor]) -> candle::Result<Vec<Tensor>>,
    arguments: &[Tensor],
    program: &Arc<CpuProgram>,
) -> Result<()> {
    let _restore = Restore(PASS.take());
    let mut constants = HashMap::new();
    for contents in Contents::ALL {
        let (pass, arguments) = Unread::new(program.clone(), arguments, contents, std::mem::take(&mut constants))?;
        PASS.set(Some(Pass::Unread(pass)));
        let outputs = gradient::unwatched(|| run_nested(|| forward(&arguments)));
        if let Some(Pass::Unread(pass)) = PASS.take() {
            pass.agrees(outputs)?;
            constants = pass.into_constants();
        }
    }
    Ok(())
}

/// Runs `forward` on copies of `arguments`, some of which are `state`, and records it; also returns the eager answers.
pub(crate) fn record(
    forward: impl FnOnce(&[Tensor]) -> candle::Result<Vec<Tensor>>,
    arguments: &[Tensor],
    state: &StateArguments,
) -> Result<(CpuProgram, Vec<Tensor>)> {
    let _restore = Restore(PASS.take());
    // Copies, since the caller's tensor may also be one of the module's weights.
    let arguments = state.copies(arguments)?;
    let sources = arguments.iter().enumerate().map(|(i, t)| (t.id(), Source::Argument(i))).collect();
    let inputs = state.inputs(arguments.len());
    PASS.set(Some(Pass::Recorded(Recorder { sources, arguments: arguments.len(), inputs, ..Default::default() })));
    let (outputs, _) = scope::record(None, || run_nested(|| forward(&arguments)));
    let recorder = match PASS.take() {
        Some(Pass::Recorded(recorder)) => recorder,
        _ => Recorder::default(),
    };
    // In reverse order, so that the oldest contents are restored last.
    recorder.before.iter().rev().try_for_each(|(tensor, before)| write(tensor, before))?;
    let outputs = outputs?;
    recorder.refused.map_or(Ok(()), Err)?;
    let source = |t: &Tensor| recorder.sources.get(&t.id()).cloned().unwrap_or_else(|| Source::Constant(t.clone()));
    let sources = outputs.iter().map(source).collect();
    let is_output = |input: &&Tensor| outputs.iter().any(|output| storage(output).0 == storage(input).0);
    let integers = arguments[..inputs].iter().filter(|input| input.dtype().is_int() && !is_output(input));
    let integers = integers.cloned().collect();
    let bytes = arguments.iter().map(|argument| storage(argument).1).collect();
    let (ops, returned) = (recorder.ops, recorder.returned);
    let program = CpuProgram { ops, outputs: sources, returned, arguments: bytes, inputs, integers };
    let outputs = outputs.iter().map(Tensor::detach).collect();
    Ok((program, state.answers(outputs, &arguments)))
}
