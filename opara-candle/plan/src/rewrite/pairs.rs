//! Two passes behind texts of different lengths, node by node.

use hashbrown::HashMap;

use super::append::Append;
use super::graph::{Graph, Node, Operand, Value};
use super::growth::{Counted, Inputs};

/// The node that appends the new token to earlier ones, in both graphs.
pub(super) struct Appended {
    /// The input of earlier tokens.
    pub input: usize,
    /// Runs that it is appended to, and elements of a token.
    pub rows: u64,
    pub token: u64,
    /// Elements of a token in each run.
    pub step: u64,
    /// Elements of a run behind each of the texts.
    pub row: [u64; 2],
    /// How many of the latest tokens these are, if not all.
    pub window: Option<u64>,
    /// How many tokens lie before the new one behind each of the texts.
    pub place: [u64; 2],
    /// Of the new token.
    pub new: Operand,
}

/// Two graphs, node by node.
pub(super) struct Pairs<'a> {
    pub graph: &'a Graph,
    pub longer: &'a Graph,
    pub lengths: [u64; 2],
    pub inputs: &'a Inputs,
    pub live: Vec<bool>,
}

impl<'a> Pairs<'a> {
    pub fn new(graphs: [&'a Graph; 2], lengths: [u64; 2], inputs: &'a Inputs) -> Result<Self, String> {
        let [graph, longer] = graphs;
        if lengths[0] >= lengths[1] || lengths[0] < 2 {
            return Err(format!("passes behind {} and {} tokens tell nothing", lengths[0], lengths[1]));
        }
        let counts = graphs.map(|graph| (graph.inputs.len(), graph.nodes.len(), graph.outputs.len()));
        if counts[0] != counts[1] {
            let [(_, a, _), (_, b, _)] = counts;
            let behind = format!("behind {} tokens, and {b} behind {}", lengths[0], lengths[1]);
            let other = "; the host decides by the length, as for a window that is full behind one of them only";
            return Err(format!("it makes {a} steps {behind}{other}"));
        }
        Ok(Self { graph, longer, lengths, inputs, live: graph.live() })
    }

    /// The nodes that append to what was there, by index.
    ///
    /// # Errors
    /// An input whose size depends on the length, and that nothing appends to.
    pub fn appended(&self) -> Result<HashMap<usize, Appended>, String> {
        let appended = self.appends();
        for (at, (input, other)) in self.graph.inputs.iter().zip(&self.longer.inputs).enumerate() {
            if (input.element, input.is_constant) != (other.element, other.is_constant) {
                return Err(format!("input {at} has another type behind a longer text"));
            }
            let is_known = || appended.values().any(|of| of.input == at) || self.counted(at).is_some();
            if input.len != other.len && !is_known() {
                let [a, b] = self.lengths;
                return Err(format!(
                    "what it reads has {} elements behind {a} tokens and {} behind {b}, and is nothing that the new token is \
                     appended to",
                    input.len, other.len
                ));
            }
        }
        Ok(appended)
    }

    /// Nodes that append in both graphs.
    fn appends(&self) -> HashMap<usize, Appended> {
        let nodes = self.graph.nodes.iter().zip(&self.longer.nodes).enumerate();
        nodes.filter_map(|(at, (node, other))| Some((at, self.append(node, other)?))).collect()
    }

    /// The inputs that are rewritten whole, with their new values.
    pub fn states(&self) -> Vec<(usize, Value)> {
        let appends = self.appends();
        let next = self.inputs.next.iter().enumerate().filter_map(|(input, value)| Some((input, (*value)?)));
        let grows = |&(input, value): &(usize, Value)| match value {
            Value::Node(at) => appends.get(&at).is_some_and(|of| of.input == input),
            Value::Input(_) => false,
        };
        let is_read = |input: usize| input < self.graph.inputs.len();
        let len = |graph: &Graph, input: usize| graph.inputs[input].len;
        let is_same =
            |&(input, _): &(usize, Value)| is_read(input) && len(self.graph, input) == len(self.longer, input);
        next.filter(|of| is_same(of) && !grows(of)).collect()
    }

    /// The upload that an input is, if its numbers depend on the position.
    pub fn counted(&self, input: usize) -> Option<Counted> {
        self.inputs.counted.iter().copied().find(|of| of.input == input)
    }

    /// The cache that a node appends to, if it appends in both graphs.
    fn append(&self, node: &Node, other: &Node) -> Option<Appended> {
        let [of, longer] = [Append::of(node, self.graph)?, Append::of(other, self.longer)?];
        let window = match [of.window(self.lengths[0])?, longer.window(self.lengths[1])?] {
            [own, of_longer] if own == of_longer => own,
            // Behind the shorter text there is room left in the same buffer.
            [None, window] if of.row == longer.row => window,
            _ => return None,
        };
        let is_same = (of.input, of.rows, of.step, of.new) == (longer.input, longer.rows, longer.step, longer.new);
        is_same.then(|| Appended {
            input: of.input,
            rows: of.rows,
            token: of.rows * of.step,
            step: of.step,
            row: [of.row, longer.row],
            window,
            place: [of.place, longer.place],
            new: of.new.clone(),
        })
    }
}
