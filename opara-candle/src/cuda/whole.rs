//! What a pass computes as one graph of values, and where what it reads lies.

use candle::{Device, Shape, Tensor};
use hashbrown::HashMap;
use opara_plan::rewrite::{whole, Graph, Whole};

use super::capture::capture;
use super::driver::{copy_of, CapturedWork};
use super::lift::lift;
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
    /// The inputs of which it overwrites a part, which are memory of the module.
    pub overwritten: Vec<usize>,
    /// Where each input of the graph lies.
    pub places: Vec<Place>,
    /// The shape of each output.
    pub shapes: Vec<Shape>,
    device: Device,
}

/// Where an input of a graph lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// It is the argument of this index.
    Argument(usize),
    /// In memory of the module, at this address.
    Memory(u64),
}

impl WholePass {
    /// Captures one call of `function`, which runs it, too.
    ///
    /// The capture is not repeated: who uses it compares it with another one.
    ///
    /// # Errors
    /// [`Error::NotCapturable`] with the reason, such as a launch whose meaning is not known.
    pub fn of(function: &Function, inputs: &[Tensor]) -> Result<Self> {
        let (function, inputs) = (function.clone(), inputs.to_vec());
        capture_thread::run(move || {
            let Target { device, stream } = Target::of(&inputs)?;
            let pool = stream.capture_pool(CapturedWork::Runs)?;
            let arguments = Rerun::of_copies(&StateArguments::default(), &inputs)?;
            let mut captured = capture(&stream, &device, &pool, &function, &arguments, inputs.len())?;
            lift(&mut captured.trace, &captured.launches.get_mut().of);
            let trace = &captured.trace;
            let Whole { mut graph, overwritten } = whole(trace).map_err(|op| {
                let unknown = trace.ops.get(op).map(|op| format!("it is not known what `{}` computes", op.name));
                let reason = unknown.unwrap_or_else(|| "it reads what the host uploads, or gives nothing".into());
                Error::NotCapturable { reason }
            })?;
            let addresses: HashMap<BufferId, u64> = captured.external.iter().map(|&(at, id)| (id, at)).collect();
            let place = |buffer: BufferId| match trace.buffers[buffer].role {
                Role::Input(i) => Some(Place::Argument(i)),
                _ => addresses.get(&buffer).copied().map(Place::Memory),
            };
            let places = graph.inputs.iter().map(|input| place(input.buffer)).collect::<Option<Vec<_>>>();
            let places =
                places.ok_or_else(|| Error::Internal { message: "a graph reads a buffer of its own".into() })?;
            graph.inputs.iter_mut().enumerate().for_each(|(at, input)| input.buffer = at);
            for output in &mut graph.outputs {
                let Role::Output(i) = trace.buffers[output.buffer].role else {
                    return Err(Error::NotCapturable { reason: "it keeps what it computes".into() });
                };
                output.buffer = i;
            }
            graph.outputs.sort_by_key(|output| output.buffer);
            let shapes = captured.outputs.iter().map(|output| output.shape.clone()).collect();
            Ok(Self { graph, overwritten, places, shapes, device })
        })
    }

    /// A copy of what the module has as an input of the graph, as one row; `None` if that is an argument.
    ///
    /// # Errors
    /// Memory that was freed since, or no memory for the copy.
    pub fn copied(&self, input: usize) -> Result<Option<Tensor>> {
        let of = &self.graph.inputs[input];
        let dtype = Arithmetic::Typed.dtype(of.element);
        match self.places[input] {
            Place::Argument(_) => Ok(None),
            Place::Memory(address) => copy_of(&self.device, address, dtype, of.len as usize).map(Some),
        }
    }
}
