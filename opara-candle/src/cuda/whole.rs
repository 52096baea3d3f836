//! What a pass computes as one graph of values, and where what it reads lies.

use std::sync::Arc;

use candle::{Device, Shape, Tensor};
use hashbrown::HashMap;
use opara_plan::kernel_catalog::Meaningless;
use opara_plan::rewrite::{whole_with, Graph, Value, Whole};
use parking_lot::Mutex;

use super::capture::{capture, Capture};
use super::driver::{copy_of, CapturedGraph, CapturedWork, HeldLaunch, LaunchNode, Lent};
use super::lift::lift;
use super::opaque::{opaque_launches, OpaqueLaunches};
use super::target::Target;
use crate::arguments::{Rerun, StateArguments};
use crate::backend::Function;
use crate::rewrite::evaluate::Arithmetic;
use crate::trace::{BufferId, Role};
use crate::{capture_thread, Error, Result};

/// What a pass computes.
pub(crate) struct WholePass {
    /// The computation. Buffers of inputs and outputs are numbered in their order.
    pub graph: Graph,
    /// The inputs of which it overwrites a part, which are memory of the module, and what they are then.
    pub overwritten: Vec<(usize, Value)>,
    /// The address of each tensor that the module keeps, and what it is, where that is followed.
    kept: Vec<(u64, Value)>,
    /// Where each input of the graph lies.
    pub places: Vec<Place>,
    /// The shape of each output.
    pub shapes: Vec<Shape>,
    /// For each node of the graph the launch that it was made for: its name and its scope.
    pub launches: Vec<[String; 2]>,
    /// The launches of kernels without a meaning, which the graph has by numbers.
    pub held: Vec<HeldLaunch>,
    /// Has what the module dropped of older tensors, which the pass has read. Dropped before the device, whose kernels it names.
    _graphs: Vec<Arc<Mutex<CapturedGraph>>>,
    device: Device,
}

/// Where an input of a graph lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    /// It is the argument of this index.
    Argument(usize),
    /// In memory of the module, at this address.
    Memory(u64),
    /// On the host, which uploads these bytes.
    Upload(Arc<[u8]>),
}

impl WholePass {
    /// Captures one call of `function`, which runs it, too. The module may keep tensors that it makes, and drop older ones.
    ///
    /// The capture is not repeated: who uses it compares it with another one.
    ///
    /// # Errors
    /// [`Error::NotCapturable`] with the reason, such as a launch whose meaning is not known.
    pub fn of(function: &Function, inputs: &[Tensor]) -> Result<Self> {
        let (function, inputs) = (function.clone(), inputs.to_vec());
        capture_thread::run(move || {
            let Target { device, stream } = Target::of(&inputs)?;
            let pool = stream.capture_pool(CapturedWork::RunsAndHolds)?;
            let arguments = Rerun::of_copies(&StateArguments::default(), &inputs)?;
            let mut captured = capture(&stream, &device, &pool, &function, &arguments, inputs.len())?;
            lift(&mut captured.trace, &captured.launches.get_mut().of);
            let opaque = opaque_launches(&mut captured)?;
            Self::read(captured, opaque, device)
        })
    }

    fn read(captured: Capture, opaque: OpaqueLaunches, device: Device) -> Result<Self> {
        let trace = &captured.trace;
        let kept = captured.kept.iter().map(|&(_, buffer)| buffer);
        let Whole { mut graph, overwritten, kept, origins } = whole_with(trace, kept, &opaque.known).map_err(|at| {
            let unknown = trace.ops.get(at).map(|op| {
                let scope = if op.label.is_empty() { String::new() } else { format!(" (at `{}`)", op.label) };
                let why =
                    Meaningless::of(&op.name).map(|of| of.why).into_iter().chain(opaque.refused.get(&at).copied());
                let why: String = why.map(|why| format!(": {why}")).collect();
                format!("it is not known what `{}` computes{scope}{why}", op.name)
            });
            let reason = unknown.unwrap_or_else(|| "it gives nothing that it computes".into());
            Error::NotCapturable { reason }
        })?;
        let addresses: HashMap<BufferId, u64> = captured.external.iter().map(|&(at, id)| (id, at)).collect();
        let uploads = uploads(&captured);
        let place = |buffer: BufferId| match trace.buffers[buffer].role {
            Role::Input(i) => Some(Place::Argument(i)),
            _ => match uploads.get(&buffer) {
                Some(bytes) => Some(Place::Upload(bytes.clone())),
                None => addresses.get(&buffer).copied().map(Place::Memory),
            },
        };
        let places = graph.inputs.iter().map(|input| place(input.buffer)).collect::<Option<Vec<_>>>();
        let places = places.ok_or_else(|| Error::NotCapturable {
            reason: "it reads what the host uploads to a part of a tensor, so make the tensor of one upload".into(),
        })?;
        graph.inputs.iter_mut().enumerate().for_each(|(at, input)| input.buffer = at);
        for output in &mut graph.outputs {
            let Role::Output(i) = trace.buffers[output.buffer].role else {
                return Err(Error::Internal { message: "a graph gives a buffer of its own".into() });
            };
            output.buffer = i;
        }
        graph.outputs.sort_by_key(|output| output.buffer);
        let address = |buffer| captured.kept.iter().find(|(_, of)| *of == buffer).map(|(address, _)| *address);
        let kept = kept.into_iter().filter_map(|(buffer, value)| Some((address(buffer)?, value))).collect();
        let shapes = captured.outputs.iter().map(|output| output.shape.clone()).collect();
        let launch = |op: &usize| [trace.ops[*op].name.to_string(), trace.ops[*op].label.clone()];
        let launches = origins.iter().map(launch).collect();
        let graphs = captured.launches.lock().graphs.clone();
        Ok(Self { graph, overwritten, kept, places, shapes, launches, held: opaque.held, device, _graphs: graphs })
    }

    /// A copy of what the module has as an input of the graph, as one row; `None` if that is an argument.
    ///
    /// # Errors
    /// Memory that was freed since, or no memory for the copy.
    pub fn copied(&self, input: usize) -> Result<Option<Tensor>> {
        let of = &self.graph.inputs[input];
        let dtype = Arithmetic::Typed.dtype(of.element);
        match &self.places[input] {
            Place::Argument(_) => Ok(None),
            Place::Memory(address) => copy_of(&self.device, *address, dtype, of.len as usize).map(Some),
            Place::Upload(bytes) => Ok(Some(
                Tensor::from_raw_buffer(bytes, dtype, &[of.len as usize], &Device::Cpu)?.to_device(&self.device)?,
            )),
        }
    }

    /// The module's memory that is an input of the graph, as one row, where it lies; `None` if the input is an argument or an upload.
    ///
    /// # Errors
    /// Memory that was freed since.
    pub fn lent(&self, input: usize) -> Result<Option<Lent>> {
        let of = &self.graph.inputs[input];
        let Place::Memory(address) = &self.places[input] else { return Ok(None) };
        Lent::new(&self.device, *address, Arithmetic::Typed.dtype(of.element), of.len as usize).map(Some)
    }

    /// For each input what this pass leaves there for the next one of the same module, if it does not stay as it is.
    ///
    /// # Errors
    /// Where the next one reads what this one has neither made nor read.
    pub fn left_to(&self, next: &Self) -> Result<Vec<Option<Value>>> {
        let left = |(input, place): (usize, &Place)| {
            let Place::Memory(address) = place else { return Ok(None) };
            let overwritten = self.overwritten.iter().find(|(of, _)| *of == input);
            if self.places.get(input) == Some(place) {
                return Ok(overwritten.map(|(_, value)| *value));
            }
            let kept = || self.kept.iter().find(|(at, _)| at == address).map(|(_, value)| *value);
            let moved = || self.places.iter().position(|at| at == place).map(Value::Input);
            kept().or_else(moved).map(Some).ok_or_else(|| Error::NotCapturable {
                reason: format!(
                    "the step behind one more token reads memory (input {input}) that the step before has neither made nor read: \
                     it reads other weights at another length, or makes a table anew outside of a step"
                ),
            })
        };
        next.places.iter().enumerate().map(left).collect()
    }

    /// Does this pass leave these values for the next one?
    pub fn leaves(&self, next: &[Option<Value>]) -> bool {
        let is_left = |(input, value): (usize, Value)| match value {
            Value::Input(_) => true,
            value => self.kept.iter().any(|(_, of)| *of == value) || self.overwritten.contains(&(input, value)),
        };
        next.iter().enumerate().filter_map(|(input, value)| Some((input, (*value)?))).all(is_left)
    }
}

/// The bytes of each buffer that an upload fills, and nothing else writes.
fn uploads(captured: &Capture) -> HashMap<BufferId, Arc<[u8]>> {
    let (trace, launches) = (&captured.trace, captured.launches.lock());
    let mut uploads: HashMap<BufferId, Option<Arc<[u8]>>> = HashMap::new();
    for (op, recorded) in trace.ops.iter().zip(&launches.of) {
        for access in op.accesses.iter().filter(|access| access.mode.writes()) {
            let bytes = match &recorded.launch {
                LaunchNode::Memcpy(upload) => upload.bytes_on_host(),
                _ => None,
            };
            let all = bytes.filter(|bytes| bytes.len() as u64 == trace.buffers[access.buffer].bytes).map(Arc::from);
            let is_first = !uploads.contains_key(&access.buffer);
            uploads.insert(access.buffer, all.filter(|_| is_first));
        }
    }
    uploads.into_iter().filter_map(|(buffer, bytes)| Some((buffer, bytes?))).collect()
}

#[cfg(test)]
mod tests;
