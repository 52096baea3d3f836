//! Queries of rules about a graph.

use crate::rewrite::graph::{Compute, Graph, Node, Operand, Value};
use crate::trace::{Element, Function};

/// An activation of a node that nothing else reads.
pub(super) struct Activated {
    /// Its name in the catalogue.
    pub name: String,
    /// The node.
    pub of: usize,
    /// The launches of the activation.
    pub launches: usize,
}

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

    /// The number that all elements of an operand are copies of, before it was converted to other types.
    pub(super) fn fill(&self, operand: &Operand) -> Option<f64> {
        let mut operand = operand;
        loop {
            let Value::Node(of) = operand.value else { return None };
            match self.recorded(of)? {
                Function::Zeros => return Some(0.),
                Function::Fill(bits) => return self.node(of).element.number(*bits),
                Function::Copy if self.node(of).element.is_float() => operand = self.node(of).operands.first()?,
                _ => return None,
            }
        }
    }

    /// The operands of a recorded function of two operands with this name.
    pub fn binary(&self, at: usize, name: &str) -> Option<[&Operand; 2]> {
        match (self.recorded(at)?, &self.node(at).operands[..]) {
            (Function::Binary(of), [a, b]) if of == name => Some([a, b]),
            _ => None,
        }
    }

    /// The mask and the other operand of a function that puts minus infinity where the mask, integers of 8 bits, is not 0.
    pub fn masked(&self, at: usize) -> Option<[&Operand; 2]> {
        let node = self.node(at);
        let (Function::MaskedFill(bits), [mask, of]) = (self.recorded(at)?, &node.operands[..]) else { return None };
        let hides = node.element.number(*bits) == Some(f64::NEG_INFINITY);
        (hides && self.graph.element(mask.value) == Element::U8).then_some([mask, of])
    }

    /// The operand of a recorded function of one operand with this name.
    pub fn unary(&self, at: usize, name: &str) -> Option<&Operand> {
        match (self.recorded(at)?, &self.node(at).operands[..]) {
            (Function::Unary(of), [a]) if of == name => Some(a),
            _ => None,
        }
    }

    /// The activation that a node is, and its operand, if both have one type: a recorded function, or `x * sigmoid(x)`.
    pub(super) fn activation(&self, at: usize) -> Option<Activated> {
        let launches = self.node(at).launches;
        let found = match (self.recorded(at)?, &self.node(at).operands[..]) {
            (Function::Unary(name), [x]) => Activated { name: name.clone(), of: self.only(x)?, launches },
            (Function::Binary(name), [a, b]) if name == "mul" => {
                [(a, b), (b, a)].into_iter().find_map(|(x, gate)| {
                    let (of, gate) = (self.whole(x)?, self.only(gate)?);
                    let fits = self.unary(gate, "sigmoid")? == x
                        && self.users[of].len() == 2
                        && self.node(gate).element == self.node(at).element;
                    let launches = launches + self.node(gate).launches;
                    fits.then(|| Activated { name: "silu".into(), of, launches })
                })?
            }
            _ => return None,
        };
        (self.node(found.of).element == self.node(at).element).then_some(found)
    }
}
