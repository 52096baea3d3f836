//! A run of ops as it grows, and the graph of what they compute.

use hashbrown::{HashMap, HashSet};

use super::compute::Compute;
use super::graph::{Graph, Input, Node, Operand, Value};
use super::parts::{concat, Part};
use crate::trace::{is_contiguous, BufferId, Dim, Element, Function, Meaning, OpId, Role, Trace, View};

/// The known contents of a buffer that the run has written.
pub(super) enum State {
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

/// A run of ops as it grows.
pub(super) struct Run<'a> {
    pub trace: &'a Trace,
    pub last_users: &'a [Option<OpId>],
    is_written: &'a [bool],
    /// Is it to be the whole pass? Then it may take rows of a table by what a call gives, and overwrite parts of the module's memory.
    pub is_whole: bool,
    /// The type of the elements of buffers that are read as bytes, where it is known.
    pub elements: HashMap<BufferId, Element>,
    pub graph: Graph,
    /// For each node, whether it depends on constants alone.
    constant: Vec<bool>,
    /// For each node, the op that was taken then, which is this one now.
    pub origins: Vec<OpId>,
    pub op: OpId,
    pub states: HashMap<BufferId, State>,
    /// By buffer.
    pub inputs: HashMap<BufferId, usize>,
}

impl<'a> Run<'a> {
    pub fn new(trace: &'a Trace, last_users: &'a [Option<OpId>], is_written: &'a [bool]) -> Self {
        let (graph, constant, origins) = (Graph::default(), Vec::new(), Vec::new());
        let (elements, states, inputs) = (HashMap::new(), HashMap::new(), HashMap::new());
        let (is_whole, op) = (false, 0);
        Self { trace, last_users, is_written, is_whole, elements, graph, constant, origins, op, states, inputs }
    }

    /// Adds an op; `None` if it cannot be part of the run. What was noted of it meanwhile changes nothing for the ops before it.
    pub fn take(&mut self, op: OpId) -> Option<()> {
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
            Some(State::Whole(_) | State::Zeros(_)) if self.is_whole => {
                let value = self.push_overwritten(to.buffer, part)?;
                return self.set(to.buffer, State::Whole(value));
            }
            // It is overwritten in part: the rest of it is not followed.
            Some(State::Whole(_) | State::Upload(_) | State::Scratch(_) | State::Zeros(_)) => return None,
            None => drop(self.states.insert(to.buffer, State::Parts(op, vec![part]))),
        }
        Some(())
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

    pub fn set(&mut self, buffer: BufferId, state: State) -> Option<()> {
        self.states.insert(buffer, state);
        Some(())
    }

    /// Does the buffer belong to the module?
    pub fn is_memory(&self, buffer: BufferId) -> bool {
        self.trace.buffers[buffer].role == Role::External
    }

    /// The value of a buffer after a part of it is overwritten: in each row the elements before the part, the part, and the elements after
    /// it.
    fn push_overwritten(&mut self, buffer: BufferId, part: Part) -> Option<Value> {
        let bytes = self.trace.buffers[buffer].bytes;
        let element = part.element;
        let (rows, row, width) = match part.dims[..] {
            _ if is_contiguous(&part.dims) => (1, bytes / element.bytes(), part.operand.len()),
            [Dim { len: rows, stride }, Dim { len: width, stride: 1 }] => (rows, stride, width),
            _ => return None,
        };
        let (before, end) = (part.first, part.first.checked_add(width).filter(|end| *end <= row)?);
        let old = match (self.states.get(&buffer), self.inputs.get(&buffer)) {
            (Some(_), _) => self.value(buffer, element)?,
            (None, Some(&at)) => Value::Input(at),
            (None, None) => self.add_input(buffer, element),
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

    pub fn push(&mut self, node: Node) -> Value {
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
    pub fn value(&mut self, buffer: BufferId, element: Element) -> Option<Value> {
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

    pub fn add_input(&mut self, buffer: BufferId, element: Element) -> Value {
        let len = self.trace.buffers[buffer].bytes / element.bytes();
        let is_constant = self.is_memory(buffer) || self.states.contains_key(&buffer);
        self.graph.inputs.push(Input { buffer, element, len, is_constant });
        self.inputs.insert(buffer, self.graph.inputs.len() - 1);
        Value::Input(self.graph.inputs.len() - 1)
    }
}

/// Whether rules may be about it, and operators compute it about as fast as candle's kernel does.
fn is_of_rules(meaning: &Meaning) -> bool {
    let has_operator = !matches!(
        meaning.function,
        Function::Unfold(_) | Function::Fold(_) | Function::Attention(_) | Function::PagedAttention(..)
    );
    has_operator && meaning.views().all(|view| view.element.is_of_rules())
}
