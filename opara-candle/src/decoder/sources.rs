//! The common step of a decoder, and the sources of its inputs.

use candle::{DType, Shape, Tensor};
use opara_plan::rewrite::{Cache, Compute, Graph, Grown, Growth, Input, Source, Value};
use opara_plan::trace::{Element, Function};

use super::counted::{Counted, Numbers};
use super::known::refused;
use crate::cuda::{Place, WholePass};
use crate::rewrite::evaluate::{arranged_bytes, evaluate, Arithmetic, Numbers as Finite};
use crate::{ops, Result};

/// The common step: what it computes, and of what.
pub(super) struct Common {
    graph: Graph,
    sources: Vec<From>,
    /// Of the logits.
    shape: Shape,
    /// Where the states begin among the tensors of a text.
    states: usize,
    capacity: usize,
}

/// An input of the common step.
enum From {
    Weight(Tensor),
    Argument(usize),
    Position,
    /// A tensor of the text.
    Kept(usize),
    /// The first elements of a row of a table of two dimensions.
    Row(Tensor, usize),
    Counted(Numbers),
    Unwritten(Element),
}

impl Common {
    /// The common step, whose first output is the logits.
    ///
    /// # Errors
    /// Tables for fewer positions than there is capacity.
    pub fn new(
        growth: &Growth,
        inputs: Vec<Tensor>,
        pass: &WholePass,
        counted: &[Counted],
        capacity: usize,
    ) -> Result<Self> {
        let (grown, states) = (1 + growth.caches.len(), 1 + growth.caches.len() + growth.grown.len());
        let source = |(at, source): (usize, &Source)| match *source {
            Source::Position => Ok(From::Position),
            Source::Cache(at) => Ok(From::Kept(1 + at)),
            Source::Grown(at) => Ok(From::Kept(grown + at)),
            Source::State(at) => Ok(From::Kept(states + at)),
            Source::Unwritten(element) => Ok(From::Unwritten(element)),
            Source::Recorded(input) => Ok(match pass.places[input] {
                Place::Argument(at) => From::Argument(at),
                _ => From::Weight(inputs[input].clone()),
            }),
            Source::Counted(input) => {
                let counted = counted.iter().find(|of| of.input == input);
                let counted = counted.ok_or_else(|| refused("an upload is not known"))?;
                Ok(From::Counted(counted.source(&growth.graph.inputs[at], inputs[input].device())?))
            }
            Source::Row { table, first, between } => {
                let (table, first, between) = (&inputs[table], first as usize, between as usize);
                let rows = (table.elem_count() - first) / between;
                if rows < capacity {
                    let tables = format!("the model has tables for {rows} positions, fewer than {capacity}");
                    return Err(refused(&format!("{tables}, so choose a smaller capacity")));
                }
                let rows = table.narrow(0, first, rows * between)?.reshape((rows, between))?.force_contiguous()?;
                Ok(From::Row(rows, growth.graph.inputs[at].len as usize))
            }
        };
        let sources = growth.sources.iter().enumerate().map(source).collect::<Result<_>>()?;
        let shape = pass.shapes.first().cloned().unwrap_or_else(|| Shape::from(()));
        Ok(Self { graph: growth.graph.clone(), sources, shape, states, capacity })
    }

    /// Bytes of the weights, in the order that operators need.
    pub fn bytes(&self) -> u64 {
        let of = |(from, input): (&From, &Input)| match from {
            From::Weight(weight) => {
                arranged_bytes(input.element, (weight.elem_count() * weight.dtype().size_in_bytes()) as u64)
            }
            _ => 0,
        };
        self.sources.iter().zip(&self.graph.inputs).map(of).sum()
    }

    /// The logits of one token of each row; the text has its keys, values and states then.
    pub fn step(&self, x: &[Tensor], text: &[Tensor]) -> candle::Result<Vec<Tensor>> {
        let position = &text[0];
        let input = |from: &From| match from {
            From::Weight(weight) => Ok(weight.clone()),
            From::Argument(at) => Ok(x[*at].clone()),
            From::Position => Ok(position.clone()),
            From::Kept(at) => Ok(text[*at].clone()),
            From::Row(table, elements) => table.index_select(position, 0)?.narrow(1, 0, *elements)?.contiguous(),
            From::Counted(numbers) => numbers.at(position),
            From::Unwritten(element) => self.unwritten(position, *element),
        };
        let inputs = self.sources.iter().map(input).collect::<candle::Result<Vec<_>>>()?;
        let outputs = evaluate(&self.graph, &inputs, Arithmetic::Typed, Finite::All)?;
        let states = &text[self.states..];
        let (logits, left) = outputs.split_at(outputs.len() - states.len());
        // What is another state, or a part of it, is read before that is overwritten.
        let is_kept = |at: usize| is_input(&self.graph, self.graph.outputs[logits.len() + at].value);
        let left = left.iter().enumerate().map(|(at, left)| if is_kept(at) { left.copy() } else { Ok(left.clone()) });
        let left = left.collect::<candle::Result<Vec<_>>>()?;
        for (state, left) in states.iter().zip(left) {
            ops::assign(state, &left.flatten_all()?)?;
        }
        ops::advance(position, 1)?;
        logits.iter().map(|logits| logits.reshape(&self.shape)).collect()
    }

    /// 0 for each place that is written, and minus infinity behind the new token.
    fn unwritten(&self, position: &Tensor, element: Element) -> candle::Result<Tensor> {
        let (device, dtype) = (position.device(), Arithmetic::Typed.dtype(element));
        let is_written = Tensor::arange(0, self.capacity as u32, device)?.broadcast_le(position)?;
        let [seen, hidden] =
            [0., f32::NEG_INFINITY].map(|bias| Tensor::full(bias, self.capacity, device)?.to_dtype(dtype));
        is_written.where_cond(&seen?, &hidden?)
    }
}

/// Is a value an input, or a copy of one, which need not have memory of its own?
fn is_input(graph: &Graph, value: Value) -> bool {
    match value {
        Value::Input(_) => true,
        Value::Node(at) => {
            let node = &graph.nodes[at];
            let is_copy = node.compute == Compute::Recorded(Function::Copy);
            is_copy && node.operands.iter().all(|from| is_input(graph, from.value))
        }
    }
}

/// The tensors of a text without tokens: its position, and what each step reads and leaves.
pub(super) fn empty_text(growth: &Growth, pass: &WholePass, capacity: usize, token: &Tensor) -> Result<Vec<Tensor>> {
    let device = token.device();
    let zeros = |shape: Shape, element| Tensor::zeros(shape, Arithmetic::Typed.dtype(element), device);
    let cache = |cache: &Cache| {
        let [heads, size] = [cache.heads, cache.size].map(|n| n as usize);
        zeros((1, 2, heads, capacity, size).into(), cache.element)
    };
    let grown = |of: &Grown| zeros((of.rows as usize, capacity, of.step as usize).into(), of.element);
    let state =
        |input: &usize| zeros((pass.graph.inputs[*input].len as usize).into(), pass.graph.inputs[*input].element);
    let position = Tensor::zeros(1, DType::U32, device);
    let tensors = std::iter::once(position).chain(growth.caches.iter().map(cache));
    let tensors = tensors.chain(growth.grown.iter().map(grown)).chain(growth.states.iter().map(state));
    Ok(tensors.collect::<candle::Result<_>>()?)
}
