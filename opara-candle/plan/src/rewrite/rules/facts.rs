//! Queries of rules about a graph.

use crate::rewrite::compute::{Compute, ProductEnd, Step};
use crate::rewrite::graph::{Graph, Node, Operand, Value};
use crate::trace::Function;

/// A graph while a rule is applied to it, and what was known of it before: a rule leaves that true.
pub(super) struct Facts<'a> {
    /// The graph.
    pub graph: &'a mut Graph,
    /// For each node, those that read it ([`Graph::users`]).
    pub users: Vec<Vec<usize>>,
    /// For each node, whether it depends on constants alone.
    constant: Vec<bool>,
    /// For each node, how often it is read now.
    reads: Vec<usize>,
    /// For each node, whether its value comes with that of another one.
    given: Vec<bool>,
}

impl<'a> Facts<'a> {
    /// Of a graph.
    pub fn of(graph: &'a mut Graph) -> Self {
        let (users, constant) = (graph.users(), graph.constant());
        let reads = users.iter().map(Vec::len).collect();
        let mut given = vec![false; graph.nodes.len()];
        graph.nodes.iter().flat_map(Node::given_beside).for_each(|&at| given[at] = true);
        Self { graph, users, constant, reads, given }
    }

    /// Puts a node in the place of another one. The launches that are fewer for it.
    pub fn replace(&mut self, at: usize, node: Node) -> usize {
        let mut removed = self.launches(at);
        for &other in node.given_beside() {
            removed += self.launches(other);
            self.given[other] = true;
        }
        node.read().for_each(|of| self.reads[of] += 1);
        let old = std::mem::replace(&mut self.graph.nodes[at], node);
        let mut unread: Vec<usize> = old.read().collect();
        while let Some(of) = unread.pop() {
            self.reads[of] -= 1;
            if !self.is_live(of) {
                removed += self.launches(of);
                unread.extend(self.node(of).read());
            }
        }
        removed.saturating_sub(self.launches(at))
    }

    /// How many launches compute a node's own value.
    fn launches(&self, at: usize) -> usize {
        if self.given[at] {
            0
        } else {
            self.node(at).launches()
        }
    }

    /// A node.
    pub fn node(&self, at: usize) -> &Node {
        &self.graph.nodes[at]
    }

    /// Whether an output depends on a node.
    pub fn is_live(&self, at: usize) -> bool {
        self.reads[at] > 0
    }

    /// Whether a node's value comes with that of another one.
    pub fn is_given(&self, at: usize) -> bool {
        self.given[at]
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

    /// The one node that reads a node, and nothing else does.
    pub fn reader(&self, at: usize) -> Option<usize> {
        match self.users[at][..] {
            // An output is no node.
            [reader] if reader < self.graph.nodes.len() => Some(reader),
            _ => None,
        }
    }

    /// The recorded function of a node.
    pub fn recorded(&self, at: usize) -> Option<&Function> {
        match &self.node(at).compute {
            Compute::Recorded(function) => Some(function),
            _ => None,
        }
    }

    /// The number that all elements of an operand are copies of, before it was converted to other types.
    pub fn fill(&self, operand: &Operand) -> Option<f64> {
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

    /// Whether it is known that all elements of an operand are ones and zeros: comparisons, and what models make of them.
    pub fn is_truth(&self, operand: &Operand) -> bool {
        let Value::Node(at) = operand.value else { return false };
        let operands = &self.node(at).operands[..];
        match self.recorded(at) {
            Some(Function::Binary(name)) => match name.as_str() {
                "eq" | "ne" | "lt" | "le" | "gt" | "ge" => true,
                "mul" | "min" | "max" => operands.iter().all(|operand| self.is_truth(operand)),
                _ => false,
            },
            // As it is, or its opposite.
            Some(Function::Copy | Function::Affine(-1., 1.)) => operands.iter().all(|operand| self.is_truth(operand)),
            Some(Function::Zeros) => true,
            Some(Function::Fill(bits)) => self.node(at).element.number(*bits) == Some(1.),
            _ => false,
        }
    }

    /// Whether a node is of a kind that formulas name: a function by its name in the catalogue, or one of these.
    pub fn is_of(&self, at: usize, kind: &str) -> bool {
        let node = self.node(at);
        let function = match (kind, &node.compute) {
            ("any", _)
            | ("attention", Compute::Attention(_))
            | ("concat", Compute::Concat { .. })
            | ("convolution", Compute::FusedConvolution(_))
            | ("group_norm", Compute::GroupNorm { .. })
            | ("norm", Compute::RowNorm { .. })
            | ("product", Compute::Linear { activation: None })
            | ("quantized", Compute::QuantizedProduct { end: ProductEnd::Nothing, .. })
            | ("transposed", Compute::TransposedConvolution { .. }) => return true,
            (_, Compute::Recorded(function)) => function,
            _ => return false,
        };
        match (kind, function) {
            (_, Function::Unary(name) | Function::Binary(name)) if name == kind => true,
            ("step", Function::Binary(name)) => Step::of(name).is_some(),
            ("mean", &Function::Affine(factor, 0.)) => self.is_mean(node, factor),
            ("copy", Function::Copy)
            | ("gather", Function::Gather(_))
            | ("matmul" | "product", Function::Matmul)
            | ("norm", Function::LayerNorm(..) | Function::RmsNorm(..))
            | ("of_blocks", Function::QuantizedProduct(_))
            | ("plus", Function::Affine(1., _))
            | ("row_max", Function::RowMax(_))
            | ("row_sum", Function::RowSum(_))
            | ("softmax", Function::Softmax(_))
            | ("times", Function::Affine(_, 0.))
            | ("unary", Function::Unary(_)) => true,
            _ => false,
        }
    }

    /// Whether a factor makes means of the sums that a node multiplies with it.
    fn is_mean(&self, node: &Node, factor: f32) -> bool {
        let [Operand { value: Value::Node(sum), .. }] = node.operands[..] else { return false };
        let Some(&Function::RowSum(columns)) = self.recorded(sum) else { return false };
        columns > 0 && (f64::from(factor) * columns as f64 - 1.).abs() < 1e-6
    }
}
