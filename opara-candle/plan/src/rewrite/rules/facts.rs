//! What rules ask of a graph.

use crate::rewrite::graph::{Compute, Graph, Node, Operand, Value};
use crate::trace::Function;

/// A graph while a rule is applied to it, and what was known of it before: a rule leaves that true.
pub struct Facts<'a> {
    /// The graph.
    pub graph: &'a mut Graph,
    /// For each node, those that read it ([`Graph::users`]).
    pub users: Vec<Vec<usize>>,
    /// For each node, whether it depends on constants alone.
    constant: Vec<bool>,
    /// For each node, whether an output depends on it.
    pub live: Vec<bool>,
}

impl<'a> Facts<'a> {
    /// Of a graph.
    pub fn of(graph: &'a mut Graph) -> Self {
        let (users, constant, live) = (graph.users(), graph.constant(), graph.live());
        Self { graph, users, constant, live }
    }

    /// A node.
    pub fn node(&self, at: usize) -> &Node {
        &self.graph.nodes[at]
    }

    /// Whether an operand depends on constants alone.
    pub fn is_constant(&self, operand: &Operand) -> bool {
        self.graph.is_constant(operand.value, &self.constant)
    }

    /// Whether these are of the type of a node's results.
    pub fn have_type_of<'o>(&self, node: &Node, operands: impl IntoIterator<Item = &'o Operand>) -> bool {
        operands.into_iter().all(|operand| self.graph.element(operand.value) == node.element)
    }

    /// The node all of whose results an operand is, in their order.
    pub fn whole(&self, operand: &Operand) -> Option<usize> {
        let Value::Node(of) = operand.value else { return None };
        operand.is_whole(self.node(of).len).then_some(of)
    }

    /// The same, if nothing else reads it.
    pub fn only(&self, operand: &Operand) -> Option<usize> {
        self.whole(operand).filter(|&of| self.users[of].len() == 1)
    }

    /// The recorded function of a node.
    pub fn recorded(&self, at: usize) -> Option<&Function> {
        match &self.node(at).compute {
            Compute::Recorded(function) => Some(function),
            _ => None,
        }
    }

    /// The operands of a recorded function of two operands with this name.
    pub fn binary(&self, at: usize, name: &str) -> Option<[&Operand; 2]> {
        match (self.recorded(at)?, &self.node(at).operands[..]) {
            (Function::Binary(of), [a, b]) if of == name => Some([a, b]),
            _ => None,
        }
    }

    /// The operand of a recorded function of one operand with this name.
    pub fn unary(&self, at: usize, name: &str) -> Option<&Operand> {
        match (self.recorded(at)?, &self.node(at).operands[..]) {
            (Function::Unary(of), [a]) if of == name => Some(a),
            _ => None,
        }
    }
}
