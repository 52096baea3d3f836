//! A recorded pass on the CPU, as data.

use std::sync::Arc;

use candle::{DType, Layout, Tensor, TensorId};
use hashbrown::HashMap;

use super::cores::cores;
use crate::arguments::write;
use crate::trace::{Access, AccessMode, Buffer, BufferId, DeviceSpec, Op, Region, Role, Trace, Work};
use crate::verify::same_values;
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

impl Source {
    /// Do both stand for the same value? A weight is the same tensor in every pass. Any other constant was made inside `forward`,
    /// and may depend on the input.
    pub fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Argument(a), Self::Argument(b)) | (Self::Op(a), Self::Op(b)) => a == b,
            (Self::Constant(a), Self::Constant(b)) => a.id() == b.id(),
            _ => false,
        }
    }
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
    /// Its memory layout and dtype.
    pub layout: Layout,
    pub dtype: DType,
    pub(super) flops: u64,
    pub(super) bytes: u64,
    /// The storage of the result and its size in bytes. A view shares the storage of its argument.
    pub storage: (usize, u64),
}

impl HostOp {
    /// Host code may have read shape, dtype and strides of the result while the module was recorded.
    ///
    /// # Errors
    /// [`Error::OtherResult`] if they are others now.
    pub fn check_result(&self, result: &Tensor) -> Result<()> {
        let (recorded, layout) = (&self.layout, result.layout());
        let mut strides = recorded.stride().iter().zip(layout.stride()).zip(layout.dims());
        // A dimension of one element has any stride.
        let has_same_strides = layout.shape().elem_count() == 0 || strides.all(|((a, b), &dim)| a == b || dim == 1);
        if recorded.shape() == layout.shape() && self.dtype == result.dtype() && has_same_strides {
            return Ok(());
        }
        let told = |dtype: DType, layout: &Layout| -> Box<str> {
            match layout.is_contiguous() {
                true => format!("{dtype:?} {:?}", layout.dims()).into(),
                false => format!("{dtype:?} {:?} with strides {:?}", layout.dims(), layout.stride()).into(),
            }
        };
        let (first, second) = (told(self.dtype, recorded), told(result.dtype(), layout));
        Err(Error::OtherResult { op: self.name.into(), label: self.label.clone(), first, second })
    }
}

/// A forward pass as a list of operators.
pub(crate) struct CpuProgram {
    pub ops: Vec<HostOp>,
    pub outputs: Vec<Source>,
    /// For each call of an operator which of its operands it returned unchanged; such a call is no operator of the pass.
    pub(super) returned: Vec<Option<usize>>,
    /// The size of each argument's storage in bytes.
    pub(super) arguments: Vec<u64>,
    /// The number of inputs among the arguments; the others are state.
    pub(super) inputs: usize,
    /// The integers that it was recorded with, except those that are outputs.
    pub(super) integers: Vec<Tensor>,
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

    /// Overwrites the integers that it was recorded with. A function of an operator that holds them, instead of taking them as
    /// operands, then gives other answers when it is replayed. Of floats that shows by altered ones.
    pub fn spoil_integers(&mut self) -> Result<()> {
        for held in self.integers.drain(..).filter(|held| held.elem_count() > 0) {
            let zeros = held.zeros_like()?;
            let others = if same_values(&held, &zeros)? { held.ones_like()? } else { zeros };
            write(&held, &others)?;
        }
        Ok(())
    }

    /// Is the result of this operator a view of an argument, or of an earlier result?
    pub fn is_view(&self, op: usize) -> bool {
        self.ops[op].storage.0 != self.arguments.len() + op
    }

    /// Compares with a second recording on other input values.
    ///
    /// # Errors
    /// [`Error::Unstable`] if the operators differ, [`Error::UntracedTensor`] for a tensor made by an unrecorded
    /// operator.
    pub fn agrees_with(&self, other: &CpuProgram) -> Result<()> {
        let same = |(a, b): &(&Source, &Source)| a.is_same(b);
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
        let new_buffer = |trace: &mut Trace, bytes: u64, role| {
            // Readers wait for what writes it, also if it has no elements.
            trace.buffers.push(Buffer { bytes: bytes.max(1), role });
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
    DeviceSpec { name: "cpu".into(), processors: cores() as u32, ..Default::default() }
}
