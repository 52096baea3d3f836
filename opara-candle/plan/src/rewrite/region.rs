//! Runs of consecutive ops whose meaning is known.

use std::ops::Range;

use hashbrown::{HashMap, HashSet};

use super::compute::Compute;
use super::constants::renumbered;
use super::graph::{Graph, Input, Node, Operand, Output, Value};
use crate::trace::{is_contiguous, Buffer, BufferId, Dim, Element, Function, Meaning, Op, OpId, Role, Trace, View};

/// Consecutive ops, and what they compute together.
#[derive(Debug, Clone, PartialEq)]
pub struct Region {
    /// The ops.
    pub ops: Range<OpId>,
    /// Ops of the run that are not replaced, since later ops read their results: uploads and zeros.
    pub kept: Vec<OpId>,
    /// The graph of the other ops.
    pub graph: Graph,
}

/// The longest runs of consecutive ops whose meaning is known, in their order. Ops that compute nothing alone make no run.
///
/// Since the ops of a run follow one another, whatever takes their place may read what was there before and fill what is read
/// afterwards, and nothing else.
pub fn regions(trace: &Trace) -> Vec<Region> {
    let last_users: Vec<Option<OpId>> = trace.users().iter().map(|users| users.last().copied()).collect();
    let is_written = trace.written();
    let mut regions = Vec::new();
    let mut start = 0;
    while start < trace.ops.len() {
        let mut limit = trace.ops.len();
        let end = loop {
            let mut run = Run::new(trace, &last_users, &is_written);
            let end = start + (start..limit).take_while(|&op| run.take(op).is_some()).count();
            // What a part of a call leaves is for the call's last launch, which is not taken.
            let whole = start + trace.ops[start..end].iter().rposition(|op| !is_part(op)).map_or(0, |last| last + 1);
            if whole < end {
                limit = whole;
                continue;
            }
            // Where later ops read what the run has filled in part, it has to end before that.
            match run.finish(start..end) {
                Ok(region) => {
                    regions.extend(region);
                    break end;
                }
                Err(before) => limit = before.max(start),
            }
        };
        start = end.max(start + 1);
    }
    regions
}

/// Whether rules may be about it, and operators compute it about as fast as candle's kernel does.
fn is_of_rules(meaning: &Meaning) -> bool {
    let has_operator = !matches!(
        meaning.function,
        Function::Unfold(_) | Function::Fold(_) | Function::Attention(_) | Function::PagedAttention(..)
    );
    has_operator && meaning.views().all(|view| view.element.is_of_rules())
}

fn is_part(op: &Op) -> bool {
    op.meaning.as_ref().is_some_and(|meaning| meaning.function == Function::Part)
}

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

/// The known contents of a buffer that the run has written.
enum State {
    /// All of it is a value.
    Whole(Value),
    /// It was zeroed by this op.
    Zeros(OpId),
    /// It was uploaded by this op.
    Upload(OpId),
    /// Parts of it are, which begin with this op.
    Parts(OpId, Vec<Part>),
    /// A library's call wrote to it, first this op.
    Scratch(OpId),
}

/// A part of a buffer.
struct Part {
    first: u64,
    dims: Vec<Dim>,
    operand: Operand,
    element: Element,
}

/// A run of ops as it grows.
struct Run<'a> {
    trace: &'a Trace,
    last_users: &'a [Option<OpId>],
    is_written: &'a [bool],
    /// Is it to be the whole pass? Then it may take rows of a table by what a call gives, and overwrite parts of the module's memory.
    is_whole: bool,
    /// The type of the elements of buffers that are read as bytes, where it is known.
    elements: HashMap<BufferId, Element>,
    graph: Graph,
    /// For each node, whether it depends on constants alone.
    constant: Vec<bool>,
    /// For each node, the op that was taken then, which is this one now.
    origins: Vec<OpId>,
    op: OpId,
    states: HashMap<BufferId, State>,
    /// By buffer.
    inputs: HashMap<BufferId, usize>,
}

impl<'a> Run<'a> {
    fn new(trace: &'a Trace, last_users: &'a [Option<OpId>], is_written: &'a [bool]) -> Self {
        let (graph, constant, origins) = (Graph::default(), Vec::new(), Vec::new());
        let (elements, states, inputs) = (HashMap::new(), HashMap::new(), HashMap::new());
        let (is_whole, op) = (false, 0);
        Self { trace, last_users, is_written, is_whole, elements, graph, constant, origins, op, states, inputs }
    }

    /// Adds an op; `None` if it cannot be part of the run. What was noted of it meanwhile changes nothing for the ops before it.
    fn take(&mut self, op: OpId) -> Option<()> {
        let trace = self.trace;
        self.op = op;
        let meaning = trace.ops[op].meaning.as_deref()?;
        let written: HashSet<BufferId> = meaning.writes.iter().map(|view| view.buffer).collect();
        // What else it writes is scratch memory of a library.
        let others = trace.ops[op].accesses.iter().filter(|access| access.mode.writes());
        for access in others.filter(|access| !written.contains(&access.buffer)) {
            let is_scratch = matches!(
                trace.buffers[access.buffer].role,
                Role::Workspace | Role::Intermediate | Role::External | Role::Constant
            );
            match self.states.get(&access.buffer) {
                None if is_scratch => {}
                Some(State::Zeros(_) | State::Scratch(_)) => {}
                // A part of a call may write what the call's last launch is said to write.
                _ if meaning.function == Function::Part => {}
                _ => return None,
            }
            if trace.buffers[access.buffer].role == Role::Intermediate {
                self.states.entry(access.buffer).or_insert(State::Scratch(op));
            }
        }
        let Some(to) = &meaning.writes else { return Some(()) };
        let is_memory = self.is_whole && self.is_memory(to.buffer);
        let is_own = matches!(trace.buffers[to.buffer].role, Role::Intermediate | Role::Output(_));
        if !is_memory && (self.inputs.contains_key(&to.buffer) || !is_own) {
            return None;
        }
        let is_all = to.first == 0 && to.is_contiguous() && to.end() == Some(trace.buffers[to.buffer].bytes);
        match meaning.function {
            Function::Zeros | Function::Upload if !is_all || is_memory => return None,
            Function::Zeros => return self.set(to.buffer, State::Zeros(op)),
            Function::Upload => return self.set(to.buffer, State::Upload(op)),
            _ => {}
        }
        let mut operands = meaning.reads.iter().map(|view| self.operand(view)).collect::<Option<Vec<_>>>()?;
        let is_alone = self.looks_up(&meaning.function, &operands) || self.chooses(&meaning.function, &operands);
        if !self.is_whole && (is_alone || !is_of_rules(meaning)) {
            return None;
        }
        let mut element = to.element;
        let (mut first, mut dims) = (to.first, to.dims.clone());
        if let (Function::Copy, Element::Byte, [from]) = (&meaning.function, to.element, &mut operands[..]) {
            // Bytes are elements of whatever is copied.
            element = self.graph.element(from.value);
            let size = element.bytes();
            let whole = |n: u64| n.is_multiple_of(size).then_some(n / size);
            from.first = whole(from.first)?;
            first = whole(first)?;
            for dim in from.dims.iter_mut().chain(&mut dims) {
                dim.len = whole(dim.len)?;
            }
        }
        let len = dims.iter().map(|dim| dim.len).product();
        let is_copy = meaning.function == Function::Copy
            && operands.first().is_some_and(|operand| self.graph.element(operand.value) == element);
        let operand = match operands.pop() {
            Some(operand) if is_copy && !is_all => operand,
            last => {
                operands.extend(last);
                let compute = Compute::Recorded(meaning.function.clone());
                let value = self.push(Node::new(compute, operands, element, len));
                if is_all && !is_memory {
                    return self.set(to.buffer, State::Whole(value));
                }
                Operand::whole(value, len)
            }
        };
        let part = Part { first, dims, operand, element };
        if is_memory {
            let value = self.push_overwritten(to.buffer, part)?;
            return self.set(to.buffer, State::Whole(value));
        }
        match self.states.get_mut(&to.buffer) {
            Some(State::Parts(_, parts)) => parts.push(part),
            // It is overwritten in part: what is left of it is not followed.
            Some(State::Whole(_) | State::Upload(_) | State::Scratch(_) | State::Zeros(_)) => return None,
            None => drop(self.states.insert(to.buffer, State::Parts(op, vec![part]))),
        }
        Some(())
    }

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

    /// Whether it takes rows of a table by what a call gives: no rule is about that, and the table may be a vocabulary's.
    fn looks_up(&self, function: &Function, operands: &[Operand]) -> bool {
        let is_constant = |operand: &Operand| self.graph.is_constant(operand.value, &self.constant);
        match (function, operands) {
            (Function::IndexSelect { .. } | Function::QuantizedRows(_), [table, ids]) => {
                is_constant(table) && !is_constant(ids)
            }
            _ => false,
        }
    }

    /// Whether it gives whole numbers that a rounding of floats may change, or depends on them. A run that ends before it is judged by the
    /// floats.
    fn chooses(&self, function: &Function, operands: &[Operand]) -> bool {
        let is_float = operands.first().is_some_and(|operand| self.graph.element(operand.value).is_float());
        match function {
            Function::ArgSort(..) | Function::ArgMax(_) | Function::ArgMin(_) => true,
            // What an expert gives is another's where that was chosen otherwise.
            Function::ExpertProduct(_) | Function::Count | Function::Bounds => true,
            Function::Binary(name) => is_float && ["eq", "ne", "lt", "le", "gt", "ge"].contains(&name.as_str()),
            Function::Unary(name) => ["ceil", "floor", "round", "sign"].contains(&name.as_str()),
            _ => false,
        }
    }

    fn set(&mut self, buffer: BufferId, state: State) -> Option<()> {
        self.states.insert(buffer, state);
        Some(())
    }

    /// Does the buffer belong to the module?
    fn is_memory(&self, buffer: BufferId) -> bool {
        self.trace.buffers[buffer].role == Role::External
    }

    /// The value of the module's memory after a part of it is overwritten: in each row the elements before the part, the part, and the
    /// elements after it.
    fn push_overwritten(&mut self, buffer: BufferId, part: Part) -> Option<Value> {
        let bytes = self.trace.buffers[buffer].bytes;
        let element = part.element;
        let (rows, row, width) = match part.dims[..] {
            _ if is_contiguous(&part.dims) => (1, bytes / element.bytes(), part.operand.len()),
            [Dim { len: rows, stride }, Dim { len: width, stride: 1 }] => (rows, stride, width),
            _ => return None,
        };
        let (before, end) = (part.first, part.first.checked_add(width).filter(|end| *end <= row)?);
        let old = match self.states.get(&buffer) {
            Some(State::Whole(value)) => *value,
            _ => match self.inputs.get(&buffer) {
                Some(&at) => Value::Input(at),
                None => self.add_input(buffer, element),
            },
        };
        if self.graph.element(old) != element {
            return None;
        }
        let of_old = |first, width| {
            let dims = vec![Dim { len: rows, stride: row }, Dim { len: width, stride: 1 }];
            Part { first, dims: dims.clone(), operand: Operand { value: old, first, dims }, element }
        };
        let mut parts = vec![of_old(0, before), part, of_old(end, row - end)];
        parts.retain(|part| !part.operand.is_empty());
        let node = concat(&parts, bytes)?;
        Some(self.push(node))
    }

    fn push(&mut self, node: Node) -> Value {
        let is_constant = |operand: &Operand| self.graph.is_constant(operand.value, &self.constant);
        self.constant.push(node.operands.iter().all(is_constant));
        self.origins.push(self.op);
        self.graph.nodes.push(node);
        Value::Node(self.graph.nodes.len() - 1)
    }

    /// The value of a view of a buffer at this point.
    fn operand(&mut self, view: &View) -> Option<Operand> {
        let value = self.value(view.buffer, view.element)?;
        Some(Operand { value, first: view.first, dims: view.dims.clone() })
    }

    /// The value in a buffer at this point, if it has elements of this type.
    fn value(&mut self, buffer: BufferId, element: Element) -> Option<Value> {
        let bytes = self.trace.buffers[buffer].bytes;
        let value = match self.states.get(&buffer) {
            Some(State::Whole(value)) => *value,
            Some(State::Zeros(_)) => {
                let known = self.elements.get(&buffer).copied().filter(|_| element == Element::Byte);
                let element = known.unwrap_or(element);
                let len = bytes / element.bytes();
                let compute = Compute::Recorded(Function::Zeros);
                let node = Node::new(compute, Vec::new(), element, len);
                return Some(self.push(node));
            }
            Some(State::Parts(_, parts)) => {
                let node = concat(parts, bytes)?;
                let value = self.push(node);
                self.states.insert(buffer, State::Whole(value));
                value
            }
            Some(State::Scratch(_)) => return None,
            // It stays where it is, and is the same in every pass.
            Some(State::Upload(_)) | None => return self.input(buffer, element),
        };
        (element == Element::Byte || self.graph.element(value) == element).then_some(value)
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

    fn input(&mut self, buffer: BufferId, element: Element) -> Option<Value> {
        let role = self.trace.buffers[buffer].role;
        let known = self.inputs.get(&buffer).copied();
        if let Some(at) = known {
            let is_same = element == Element::Byte || self.graph.inputs[at].element == element;
            return is_same.then_some(Value::Input(at));
        }
        // What a library holds for itself is no operand, and bytes are not known to be elements of anything.
        // A weight or an input that the pass writes is state, whose value changes on the way. A whole pass follows it.
        let element = if element == Element::Byte { *self.elements.get(&buffer)? } else { element };
        let is_followed = self.is_whole && role == Role::External;
        let is_state = matches!(role, Role::External | Role::Input(_)) && self.is_written[buffer] && !is_followed;
        if role == Role::Workspace || is_state {
            return None;
        }
        Some(self.add_input(buffer, element))
    }

    fn add_input(&mut self, buffer: BufferId, element: Element) -> Value {
        let len = self.trace.buffers[buffer].bytes / element.bytes();
        let is_constant = self.is_memory(buffer) || self.states.contains_key(&buffer);
        self.graph.inputs.push(Input { buffer, element, len, is_constant });
        self.inputs.insert(buffer, self.graph.inputs.len() - 1);
        Value::Input(self.graph.inputs.len() - 1)
    }

    /// The region of these ops, if they compute anything.
    ///
    /// # Errors
    /// The op before which the run has to end.
    fn finish(mut self, ops: Range<OpId>) -> Result<Option<Region>, OpId> {
        let is_needed = |buffer: BufferId| {
            let role = self.trace.buffers[buffer].role;
            matches!(role, Role::Output(_))
                || self.last_users[buffer].is_some_and(|last| last >= ops.end)
                || self.inputs.contains_key(&buffer) && role != Role::External
        };
        let mut needed: Vec<BufferId> = self.states.keys().copied().filter(|&buffer| is_needed(buffer)).collect();
        needed.sort_unstable();
        let (mut kept, mut too_early) = (Vec::new(), None);
        for buffer in needed {
            let bytes = self.trace.buffers[buffer].bytes;
            let value = match &self.states[&buffer] {
                State::Whole(value) => Ok(*value),
                State::Zeros(op) | State::Upload(op) => {
                    kept.push(*op);
                    continue;
                }
                State::Scratch(op) => Err(*op),
                State::Parts(op, parts) => concat(parts, bytes).ok_or(*op).map(|node| {
                    self.graph.nodes.push(node);
                    Value::Node(self.graph.nodes.len() - 1)
                }),
            };
            match value {
                Ok(value) => self.graph.outputs.push(Output { value, buffer }),
                Err(op) => too_early = Some(too_early.map_or(op, |earlier: OpId| earlier.min(op))),
            }
        }
        kept.sort_unstable();
        match too_early {
            Some(op) => Err(op),
            // What reads nothing is the same in every pass.
            None => {
                self.graph.constants_first();
                let is_any = !self.graph.outputs.is_empty() && !self.graph.inputs.is_empty();
                Ok(is_any.then_some(Region { ops, kept, graph: self.graph }))
            }
        }
    }
}

/// The concatenation that parts of a buffer are, if they fill it.
fn concat(parts: &[Part], bytes: u64) -> Option<Node> {
    let element = parts.first()?.element;
    let len = bytes / element.bytes();
    let mut parts: Vec<&Part> = parts.iter().collect();
    parts.sort_by_key(|part| part.first);
    // Each part has runs of one width, as far from each other as the whole row is wide; all in one run are one row.
    let runs = |part: &Part| match part.dims[..] {
        _ if is_contiguous(&part.dims) => None,
        [Dim { len: rows, stride }, Dim { len: width, stride: 1 }] => Some((rows, stride, width)),
        _ => Some((0, 0, 0)),
    };
    let (rows, row) = match parts.iter().find_map(|part| runs(part)) {
        Some((rows, stride, _)) => (rows, stride),
        None => (1, len),
    };
    let mut widths = Vec::with_capacity(parts.len());
    let mut at = 0;
    for part in &parts {
        let width = match runs(part) {
            Some((of_rows, stride, width)) if (of_rows, stride) == (rows, row) => width,
            None if rows == 1 => part.operand.len(),
            _ => return None,
        };
        if part.first != at || part.element != element {
            return None;
        }
        at += width;
        widths.push(width);
    }
    if at != row || rows.checked_mul(row) != Some(len) {
        return None;
    }
    let operands = parts.iter().map(|part| part.operand.clone()).collect();
    Some(Node::new(Compute::Concat { rows, widths }, operands, element, len))
}
