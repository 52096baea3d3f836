//! The common step of a decoder, and the sources of its inputs.

use candle::{DType, Shape, Tensor};
use opara_plan::rewrite::{Cache, Compute, Graph, Grown, Growth, Input, Inputs, Source, Value};
use opara_plan::trace::{Element, Function};

use super::counted::{Counted, Numbers};
use super::known::refused;
use crate::cuda::driver::{opaque_name, HeldLaunch};
use crate::cuda::{Place, WholePass};
use crate::rewrite::evaluate::{arranged_bytes, evaluate_joined, Arithmetic};
use crate::rewrite::join::join;
use crate::rewrite::joined::Joined;
use crate::{ops, Result};

/// The common step: what it computes, and of what.
pub(super) struct Common {
    growth: Growth,
    recorded: Inputs,
    sources: Vec<From>,
    joined: Joined,
    /// Of the logits of one token.
    shape: Shape,
    /// The dimension of tokens, if there are logits of each.
    each: Option<usize>,
    /// Where the states begin among the tensors of a text.
    states: usize,
    capacity: usize,
    /// The launches that it has by numbers.
    _held: Vec<HeldLaunch>,
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
    /// The index of the last token.
    Last,
    Places,
}

impl Common {
    /// The common step, whose first output is the logits.
    ///
    /// # Errors
    /// Tables for fewer positions than there is capacity.
    pub fn new(
        growth: &Growth,
        inputs: &[Tensor],
        recorded: &Inputs,
        pass: &WholePass,
        counted: &[Counted],
        each: Option<usize>,
    ) -> Result<Self> {
        let capacity = recorded.capacity as usize;
        let (grown, states) = (1 + growth.caches.len(), 1 + growth.caches.len() + growth.grown.len());
        let mask = states + growth.states.len();
        let source = |(at, source): (usize, &Source)| match *source {
            Source::Position => Ok(From::Position),
            Source::Cache(at) => Ok(From::Kept(1 + at)),
            Source::Grown(at) => Ok(From::Kept(grown + at)),
            Source::State(at) => Ok(From::Kept(states + at)),
            Source::Given(_) => Ok(From::Kept(mask)),
            Source::Unwritten(element) => Ok(From::Unwritten(element)),
            Source::Last | Source::Places => Err(refused("its step has several tokens")),
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
        let sources = growth.sources.iter().enumerate().map(source).collect::<Result<Vec<_>>>()?;
        let nothing = Tensor::zeros(1, DType::U8, inputs[0].device())?;
        let weight = |from: &From| match from {
            From::Weight(weight) => weight.clone(),
            _ => nothing.clone(),
        };
        let joined = join(&growth.graph, &sources.iter().map(weight).collect::<Vec<_>>())?;
        let shape = pass.shapes.first().cloned().unwrap_or_else(|| Shape::from(()));
        let (growth, recorded, _held) = (growth.clone(), recorded.clone(), pass.held.clone());
        Ok(Self { growth, recorded, sources, joined, shape, each, states, capacity, _held })
    }

    /// How many tokens a text may have.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// The dimension of tokens, if there are logits of each.
    pub fn each(&self) -> Option<usize> {
        self.each
    }

    /// The step of several tokens.
    ///
    /// # Errors
    /// [`Error::NotCapturable`](crate::Error::NotCapturable) with the reason if there is none.
    pub fn several(&self, tokens: usize) -> Result<Growth> {
        let growth = self.growth.several(tokens as u64, &self.recorded, self.each.is_some());
        let opaque = self.growth.graph.nodes.iter().filter_map(|node| match node.compute {
            Compute::Opaque(number) => Some(format!("; it is not known what `{}` computes", opaque_name(number))),
            _ => None,
        });
        growth.map_err(|why| {
            let names: String = opaque.collect();
            refused(&format!("several tokens are not one graph: {why}{names}"))
        })
    }

    /// Bytes of the weights, in the order that operators need.
    pub fn bytes(&self) -> u64 {
        let of = |(from, input): (&From, &Input)| match from {
            From::Weight(weight) => {
                arranged_bytes(input.element, (weight.elem_count() * weight.dtype().size_in_bytes()) as u64)
            }
            _ => 0,
        };
        self.sources.iter().zip(&self.growth.graph.inputs).map(of).sum()
    }

    /// The logits of a token of each row, or of several, `x[0]`, of which those of index `x[1]` are the last ones; the text has their keys,
    /// values and states then.
    pub fn step(&self, x: &[Tensor], text: &[Tensor]) -> candle::Result<Vec<Tensor>> {
        let (position, tokens) = (&text[0], x[0].dim(1)?);
        let several = (tokens > 1).then(|| self.several(tokens).map_err(candle::Error::wrap)).transpose()?;
        let Growth { graph, sources, .. } = several.as_ref().unwrap_or(&self.growth);
        let places = self.places(position, tokens)?;
        let input = |from: &From| match from {
            From::Weight(weight) => Ok(weight.clone()),
            // The tokens of one place lie together.
            From::Argument(at) => x[*at].t()?.contiguous(),
            From::Position => Ok(position.clone()),
            From::Last => Ok(x[1].clone()),
            From::Places => Ok(places.clone()),
            From::Kept(at) => Ok(text[*at].clone()),
            From::Row(table, elements) => table.index_select(&places, 0)?.narrow(1, 0, *elements)?.contiguous(),
            From::Counted(numbers) => numbers.at(&places),
            From::Unwritten(element) => self.unwritten(&places, *element),
        };
        // What the step of several has besides.
        let besides = sources[self.sources.len()..].iter().map(|source| match source {
            Source::Last => Ok(From::Last),
            Source::Places => Ok(From::Places),
            source => candle::bail!("{source:?} is of one token"),
        });
        let besides = besides.collect::<candle::Result<Vec<_>>>()?;
        let inputs = self.sources.iter().chain(&besides).map(input).collect::<candle::Result<Vec<_>>>()?;
        let outputs = evaluate_joined(graph, &inputs, &self.joined)?;
        let states = &text[self.states..][..self.growth.states.len()];
        let (logits, left) = outputs.split_at(outputs.len() - states.len());
        // What is another state, or a part of it, is read before that is overwritten.
        let is_kept = |at: usize| is_input(graph, graph.outputs[logits.len() + at].value);
        let left = left.iter().enumerate().map(|(at, left)| if is_kept(at) { left.copy() } else { Ok(left.clone()) });
        let left = left.collect::<candle::Result<Vec<_>>>()?;
        for (state, left) in states.iter().zip(left) {
            ops::assign(state, &left.flatten_all()?)?;
        }
        if tokens > 1 {
            ops::assign(position, &(position + &x[1])?)?;
        }
        ops::advance(position, 1)?;
        let Some(each) = self.each.filter(|_| tokens > 1) else {
            return logits.iter().map(|logits| logits.reshape(&self.shape)).collect();
        };
        let mut shape = self.shape.dims().to_vec();
        shape[each] = tokens;
        let rows: usize = shape[..each].iter().product();
        logits.iter().map(|logits| logits.reshape((tokens, rows, ()))?.transpose(0, 1)?.reshape(&shape[..])).collect()
    }

    /// The positions of new tokens; one behind the last that a text may have counts as that.
    fn places(&self, position: &Tensor, tokens: usize) -> candle::Result<Tensor> {
        if tokens == 1 {
            return Ok(position.clone());
        }
        let device = position.device();
        let places = Tensor::arange(0, tokens as u32, device)?.broadcast_add(position)?;
        places.broadcast_minimum(&Tensor::new(&[self.capacity as u32 - 1], device)?)
    }

    /// 0 for each place that is written, and minus infinity behind the new token, or behind each one.
    fn unwritten(&self, places: &Tensor, element: Element) -> candle::Result<Tensor> {
        let (device, dtype) = (places.device(), Arithmetic::Typed.dtype(element));
        let all = Tensor::arange(0, self.capacity as u32, device)?.unsqueeze(0)?;
        let is_written = all.broadcast_le(&places.unsqueeze(1)?)?;
        let [seen, hidden] =
            [0., f32::NEG_INFINITY].map(|bias| Tensor::full(bias, is_written.shape(), device)?.to_dtype(dtype));
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

/// The tensors of a text without tokens: its position, what each step reads and leaves, and the mask, if there is one, by which all tokens
/// count.
pub(super) fn empty_text(
    growth: &Growth,
    pass: &WholePass,
    capacity: usize,
    (token, mask): (&Tensor, Option<DType>),
) -> Result<Vec<Tensor>> {
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
    let mask = mask.map(|dtype| Tensor::ones((token.dim(0)?, capacity), dtype, device));
    let tensors = tensors.chain(growth.grown.iter().map(grown)).chain(growth.states.iter().map(state)).chain(mask);
    Ok(tensors.collect::<candle::Result<_>>()?)
}
