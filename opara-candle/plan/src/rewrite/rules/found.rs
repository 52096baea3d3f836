//! Matches of patterns.
//!
//! What holds for every formula is written in none: nothing but the formula reads the values in between, all are of the type of the
//! result, except under a copy, and rows that a formula speaks of are the same everywhere in it.

use super::facts::Facts;
use super::pattern::Pattern;
use super::product::Product;
use crate::rewrite::compute::Compute;
use crate::rewrite::graph::{strides_over, Node, Operand, Value};
use crate::trace::{Dim, Element, Function};

/// A node that a pattern fits, and what its names stand for.
#[derive(Clone)]
pub(super) struct Found<'a> {
    /// The graph.
    pub facts: &'a Facts<'a>,
    /// The node.
    pub at: usize,
    names: Vec<(&'static str, &'a Operand)>,
    /// The nodes in between, once for each time that the formula reads them.
    inner: Vec<usize>,
    /// Number of rows, if the formula speaks of rows.
    rows: Option<u64>,
}

impl<'a> Found<'a> {
    /// All ways in which a pattern fits a node.
    pub fn find_all(facts: &'a Facts<'a>, pattern: &Pattern, at: usize) -> Vec<Self> {
        let Pattern::Node(kind, of) = *pattern else { return Vec::new() };
        let found = Self { facts, at, names: Vec::new(), inner: Vec::new(), rows: None };
        found.fit_node(kind, of, at).into_iter().filter(|found| found.is_closed(0, at)).collect()
    }

    /// The operand of this name.
    pub fn operand(&self, name: &str) -> Option<&'a Operand> {
        self.names.iter().find_map(|&(known, operand)| (known == name).then_some(operand))
    }

    /// The node of this name.
    pub fn node(&self, name: &str) -> Option<&'a Node> {
        match self.operand(name)?.value {
            Value::Node(of) => Some(self.facts.node(of)),
            Value::Input(_) => None,
        }
    }

    /// The product with a weight of this name, if it is one.
    pub fn product(&self, name: &str) -> Option<Product> {
        Product::of(self.facts, self.facts.whole(self.operand(name)?)?)
    }

    /// The two numbers of the affine function of this name.
    pub fn affine(&self, name: &str) -> Option<[f32; 2]> {
        match self.node(name)?.compute {
            Compute::Recorded(Function::Affine(factor, summand)) => Some([factor, summand]),
            _ => None,
        }
    }

    /// The node that the pattern fits.
    pub fn root(&self) -> &'a Node {
        self.facts.node(self.at)
    }

    /// Elements of a row.
    pub fn columns(&self) -> Option<u64> {
        self.root().len.checked_div(self.rows?)
    }

    /// A node that computes the same, of these operands.
    pub fn replace_by(&self, compute: Compute, operands: Vec<Operand>) -> Node {
        Node { compute, operands, ..self.root().clone() }
    }

    /// All ways in which a pattern fits an operand, whose reader has this type.
    fn fit(self, pattern: &Pattern, operand: &'a Operand, element: Option<Element>) -> Vec<Self> {
        let facts = self.facts;
        let is_typed = element.is_none_or(|element| facts.graph.element(operand.value) == element);
        match *pattern {
            Pattern::Operand(name) => match self.operand(name) {
                Some(known) => self.repeat(known, operand).into_iter().collect(),
                None if is_typed => vec![self.bind(name, operand)],
                None => Vec::new(),
            },
            Pattern::Named(name, of) => {
                self.fit(of, operand, element).into_iter().map(|found| found.bind(name, operand)).collect()
            }
            Pattern::Either(patterns) => {
                let (first, Value::Node(at)) = (self.inner.len(), operand.value) else { return Vec::new() };
                let fitting = |pattern| {
                    let mut all = self.clone().fit(pattern, operand, element);
                    all.retain(|found| found.is_closed(first, at));
                    (!all.is_empty()).then_some(all)
                };
                patterns.iter().find_map(fitting).unwrap_or_default()
            }
            Pattern::Node(kind, of) => match facts.whole(operand) {
                Some(at) if is_typed => self.fit_inner(kind, of, at),
                _ => Vec::new(),
            },
            Pattern::PerRow(kind, of) => match (operand.value, self.fit_rows(operand)) {
                (Value::Node(at), Some(found)) if is_typed => found.fit_inner(kind, of, at),
                _ => Vec::new(),
            },
        }
    }

    /// The same of a node in between, which is no other node of the formula.
    fn fit_inner(self, kind: &str, of: &[Pattern], at: usize) -> Vec<Self> {
        if self.inner.contains(&at) {
            return Vec::new();
        }
        self.read(at).fit_node(kind, of, at)
    }

    /// All ways in which a node is of this kind, and its first operands are like these.
    fn fit_node(self, kind: &str, of: &[Pattern], at: usize) -> Vec<Self> {
        let node = self.facts.node(at);
        if !self.facts.is_of(at, kind) || node.operands.len() < of.len() {
            return Vec::new();
        }
        // What is copied may be converted.
        let is_copy = node.compute == Compute::Recorded(Function::Copy);
        let element = (!is_copy).then_some(node.element);
        let in_order = |operands: &mut dyn Iterator<Item = &'a Operand>| {
            let and = |all: Vec<Self>, (pattern, operand)| {
                all.into_iter().flat_map(|found: Self| found.fit(pattern, operand, element)).collect()
            };
            of.iter().zip(operands).fold(vec![self.clone()], and)
        };
        let mut all = in_order(&mut node.operands.iter());
        if commutes(node) && of.len() == 2 {
            all.extend(in_order(&mut node.operands.iter().rev()));
        }
        all
    }

    fn bind(mut self, name: &'static str, operand: &'a Operand) -> Self {
        self.names.push((name, operand));
        self
    }

    fn read(mut self, at: usize) -> Self {
        self.inner.push(at);
        self
    }

    /// What is known by a name stands here again.
    fn repeat(self, known: &Operand, operand: &Operand) -> Option<Self> {
        let found = match operand.value {
            Value::Node(at) if self.inner.contains(&at) => self.read(at),
            _ => self,
        };
        (known == operand).then_some(found)
    }

    /// An operand has one number a row, repeated.
    fn fit_rows(mut self, operand: &Operand) -> Option<Self> {
        let rows = self.facts.graph.len(operand.value);
        let columns = operand.len().checked_div(rows)?;
        let fits = *self.rows.get_or_insert(rows) == rows && operand.first == 0;
        (fits && is_scalar_of_rows(&operand.dims, rows, columns)).then_some(self)
    }

    /// Whether nothing else reads the nodes in between, from this one in their list on, but for the last one.
    fn is_closed(&self, first: usize, last: usize) -> bool {
        let inner = &self.inner[first..];
        let is_read_here = |&at: &usize| inner.iter().filter(|&&of| of == at).count() == self.facts.users[at].len();
        inner.iter().filter(|&&at| at != last).all(is_read_here)
    }
}

/// The name of the activation that a node is in the catalogue; a product with a sigmoid is one, too.
pub(super) fn activation(node: &Node) -> Option<&str> {
    match &node.compute {
        Compute::Recorded(Function::Unary(name)) => Some(name),
        Compute::Recorded(Function::Binary(_)) => Some("silu"),
        _ => None,
    }
}

/// Whether a node's two operands may change places.
fn commutes(node: &Node) -> bool {
    matches!(&node.compute, Compute::Recorded(Function::Binary(name)) if name == "add" || name == "mul")
}

/// Whether a view repeats one element for each row.
fn is_scalar_of_rows(dims: &[Dim], rows: u64, columns: u64) -> bool {
    strides_over(dims, &[rows, columns]).is_some_and(|strides| {
        let [row, column] = strides[..] else { return false };
        (row == 1 || rows == 1) && (column == 0 || columns == 1)
    })
}
