//! A pass whose ops are all known, as one graph.

use hashbrown::HashMap;

use super::compute::Compute;
use super::constants::renumbered;
use super::graph::{Graph, Node, Operand, Output, Value};
use super::parts::concat;
use super::run::{Run, State};
use crate::trace::{Buffer, BufferId, Dim, Element, Function, Meaning, OpId, Role, Trace};

/// The graph of all ops of a pass.
#[derive(Debug, Clone, PartialEq)]
pub struct Whole {
    /// The computation. Memory of the module counts as constant, a cache of earlier tokens, too, and so do uploads.
    pub graph: Graph,
    /// The inputs of which the pass overwrites a part, or all: memory of the module. What it has then is no output of the graph, but this
    /// value.
    pub overwritten: Vec<(usize, Value)>,
    /// The values of buffers that the module keeps, as far as they are followed.
    pub kept: Vec<(BufferId, Value)>,
    /// For each node of the graph the op that it was made for.
    pub origins: Vec<OpId>,
}

/// A launch without a meaning that writes one buffer, all of it, and reads others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opaque {
    /// The same for launches that do the same with what they read.
    pub number: u64,
    /// What it reads: buffers, from this byte on.
    pub reads: Vec<(BufferId, u64)>,
    /// Its result.
    pub writes: BufferId,
    /// The type of the result, if its readers do not tell.
    pub element: Option<Element>,
}

/// The graph of all ops of a trace, if each has a meaning. The module keeps some buffers of it.
///
/// # Errors
/// The first op that is not understood; or the number of ops, if what they give is not.
pub fn whole(trace: &Trace, kept: impl IntoIterator<Item = BufferId>) -> Result<Whole, OpId> {
    whole_with(trace, kept, &HashMap::new())
}

/// The same for a trace in which some ops without a meaning are known as far as this.
///
/// # Errors
/// Those of [`whole`].
pub fn whole_with(
    trace: &Trace,
    kept: impl IntoIterator<Item = BufferId>,
    opaque: &HashMap<OpId, Opaque>,
) -> Result<Whole, OpId> {
    let users = trace.users();
    let last_users: Vec<Option<OpId>> = users.iter().map(|users| users.last().copied()).collect();
    let is_written = trace.written();
    let mut run = Run::new(trace, &last_users, &is_written);
    (run.is_whole, run.elements) = (true, elements(trace));
    let mut take = |op| match opaque.get(&op) {
        Some(opaque) => run.take_opaque(op, opaque),
        None => run.take(op),
    };
    if let Some(op) = (0..trace.ops.len()).find(|&op| take(op).is_none()) {
        return Err(op);
    }
    let memory: Vec<BufferId> = run.states.keys().copied().filter(|&buffer| run.is_memory(buffer)).collect();
    let mut overwritten: Vec<(usize, Value)> =
        memory.into_iter().filter_map(|buffer| Some((run.inputs[&buffer], run.left(buffer)?))).collect();
    overwritten.sort_unstable_by_key(|(input, _)| *input);
    let kept: Vec<_> = kept.into_iter().filter_map(|buffer| Some((buffer, run.left(buffer)?))).collect();
    let outputs = (0..trace.buffers.len()).filter(|&buffer| matches!(trace.buffers[buffer].role, Role::Output(_)));
    for buffer in outputs {
        let value = run.left(buffer).ok_or(trace.ops.len())?;
        run.graph.outputs.push(Output { value, buffer });
    }
    run.graph.merge_constants();
    let now = run.graph.constants_first();
    let overwritten = overwritten.into_iter().map(|(input, value)| (input, renumbered(value, &now))).collect();
    let kept = kept.into_iter().map(|(buffer, value)| (buffer, renumbered(value, &now))).collect();
    let mut origins: Vec<_> = now.iter().zip(run.origins).collect();
    origins.sort_unstable();
    let origins = origins.into_iter().map(|(_, op)| op).collect();
    let is_any = !run.graph.outputs.is_empty() && !run.graph.inputs.is_empty();
    is_any.then_some(Whole { graph: run.graph, overwritten, kept, origins }).ok_or(trace.ops.len())
}

/// The type of each buffer's elements: that of the views that have one, or of what its bytes are copied to.
fn elements(trace: &Trace) -> HashMap<BufferId, Element> {
    let meanings = || trace.ops.iter().filter_map(|op| op.meaning.as_deref());
    let typed = meanings().flat_map(Meaning::views).filter(|view| view.element != Element::Byte);
    let mut elements: HashMap<BufferId, Element> = typed.map(|view| (view.buffer, view.element)).collect();
    // Copies of copies: the last one is read first.
    for meaning in meanings().rev() {
        if let (Function::Copy, [from], Some(to)) = (&meaning.function, &meaning.reads[..], &meaning.writes) {
            if let Some(&element) = elements.get(&to.buffer).filter(|_| from.element == Element::Byte) {
                elements.entry(from.buffer).or_insert(element);
            }
        }
    }
    elements
}

impl Run<'_> {
    /// Adds an op without a meaning.
    fn take_opaque(&mut self, op: OpId, opaque: &Opaque) -> Option<()> {
        self.op = op;
        let to = opaque.writes;
        let Buffer { bytes, role } = self.trace.buffers[to];
        let is_own = matches!(role, Role::Intermediate | Role::Output(_)) && !self.inputs.contains_key(&to);
        if !is_own || !matches!(self.states.get(&to), None | Some(State::Zeros(_))) {
            return None;
        }
        let mut operands = Vec::with_capacity(opaque.reads.len());
        for &(buffer, from) in &opaque.reads {
            // Nobody else knows the type of what it alone reads.
            let is_alone = !self.elements.contains_key(&buffer) && self.is_memory(buffer);
            let value = match self.inputs.get(&buffer) {
                None if is_alone => self.add_input(buffer, Element::U8),
                _ => self.value(buffer, Element::Byte)?,
            };
            let size = self.graph.element(value).bytes();
            let first = from.is_multiple_of(size).then_some(from / size)?;
            let len = self.graph.len(value).checked_sub(first)?;
            operands.push(Operand { value, first, dims: vec![Dim { len, stride: 1 }] });
        }
        let element = self.elements.get(&to).copied().or(opaque.element)?;
        let node = Node::new(Compute::Opaque(opaque.number), operands, element, bytes / element.bytes());
        let value = self.push(node);
        self.set(to, State::Whole(value))
    }

    /// The value that is left in a buffer at the end.
    fn left(&mut self, buffer: BufferId) -> Option<Value> {
        match self.states.get(&buffer)? {
            State::Whole(value) => Some(*value),
            State::Parts(_, parts) => {
                let node = concat(parts, self.trace.buffers[buffer].bytes)?;
                Some(self.push(node))
            }
            State::Zeros(_) | State::Upload(_) | State::Scratch(_) => None,
        }
    }
}
