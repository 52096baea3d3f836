//! A step of several tokens at once, made of the step of one: what as many steps compute, one after the other.
//!
//! Values of the tokens lie one behind the other, so that rows, elements and heads of one token become those of all. What is appended to
//! earlier tokens is one value for all: a token sees no places behind its own. What no later token depends on is computed of the last
//! token alone, unless the module gives logits of each.

use super::compute::{ByPosition, Compute, ProductEnd};
use super::graph::{Input, Node, Operand, Output, Value};
use super::growth::{Growth, Inputs, Source};
use super::tokens::{of_tokens, Made, Part};
use crate::trace::{Dim, Element, Function};

impl Growth {
    /// The step of several tokens, which gives logits of each, or of the last one alone, whose index is [`Source::Last`].
    ///
    /// # Errors
    /// What it has that no operator computes of several tokens.
    pub fn several(&self, tokens: u64, inputs: &Inputs, is_each: bool) -> Result<Self, String> {
        if !self.states.is_empty() {
            return Err("it has states, each of which follows from the one of the token before".into());
        }
        let grows = |input: &usize| inputs.counted.iter().any(|of| of.input == *input && of.grows.is_some());
        if self.sources.iter().any(|source| matches!(source, Source::Counted(input) if grows(input))) {
            return Err("what the host uploads grows with the text".into());
        }
        let differ = self.by_token();
        let has_places = self.check_shared(&differ)?;
        let of_all = if is_each { differ.clone() } else { self.before_caches(&differ) };
        let (made, at, picked) = (Self::default(), Vec::new(), Vec::new());
        Several { of: self, tokens, is_each, differ, has_places, of_all, made, at, picked }.made()
    }

    /// For each node, whether it differs from token to token.
    fn by_token(&self) -> Vec<bool> {
        let mut nodes: Vec<bool> = Vec::with_capacity(self.graph.nodes.len());
        for node in &self.graph.nodes {
            nodes.push(match node.compute {
                Compute::Appended { .. } => false,
                _ => node.operands.iter().any(|operand| self.differs(operand.value, &nodes)),
            });
        }
        nodes
    }

    /// Whether a value differs from token to token, if that is known of the nodes.
    fn differs(&self, value: Value, nodes: &[bool]) -> bool {
        match value {
            Value::Node(at) => nodes[at],
            Value::Input(at) => match self.sources[at] {
                Source::Position | Source::Row { .. } | Source::Counted(_) | Source::Unwritten(_) => true,
                Source::Recorded(_) => !self.graph.inputs[at].is_constant,
                _ => false,
            },
        }
    }

    /// For each node, whether it has places of all tokens. Fails if something is computed of these that some tokens do not see.
    fn check_shared(&self, differ: &[bool]) -> Result<Vec<bool>, String> {
        let nodes = &self.graph.nodes;
        let mut has_places: Vec<bool> = Vec::with_capacity(nodes.len());
        for (at, node) in nodes.iter().enumerate() {
            let is_appended = matches!(node.compute, Compute::Appended { .. });
            let of_places = |operand: &Operand| matches!(operand.value, Value::Node(of) if has_places[of]);
            let reads_places = node.operands.iter().any(of_places);
            let is_alike = match &node.compute {
                Compute::Recorded(function) => matches!(
                    function,
                    Function::Copy
                        | Function::Unary(_)
                        | Function::Binary(_)
                        | Function::Affine(..)
                        | Function::LayerNorm(..)
                        | Function::RmsNorm(..)
                ),
                Compute::Concat { .. } | Compute::RowNorm { .. } | Compute::NormOfSum { .. } => true,
                _ => is_appended,
            };
            if reads_places && !differ[at] && !is_alike {
                return Err(format!(
                    "step {at} has {:?} of all places, of which a token does not see all",
                    node.compute
                ));
            }
            has_places.push(!differ[at] && (is_appended || reads_places));
        }
        Ok(has_places)
    }

    /// The nodes that caches depend on, with attention itself and what comes with any of them.
    fn before_caches(&self, differ: &[bool]) -> Vec<bool> {
        let nodes = &self.graph.nodes;
        let keeps =
            |at: &usize| matches!(nodes[*at].compute, Compute::CachedAttention { .. } | Compute::Appended { .. });
        let mut values: Vec<Value> = (0..nodes.len()).filter(keeps).map(Value::Node).collect();
        loop {
            let needed = self.graph.needed_for(values.iter().copied());
            let beside = |at: &usize| nodes[*at].given_beside().iter().chain([at]).any(|&of| needed[of]);
            let more =
                (0..nodes.len()).filter(beside).flat_map(|at| nodes[at].given_beside().iter().copied().chain([at]));
            let more: Vec<Value> = more.filter(|&at| !needed[at]).map(Value::Node).collect();
            if more.is_empty() {
                return needed.into_iter().zip(differ).map(|(needed, differ)| needed && *differ).collect();
            }
            values.extend(more);
        }
    }
}

/// The step of several tokens as it is made.
struct Several<'a> {
    of: &'a Growth,
    tokens: u64,
    is_each: bool,
    differ: Vec<bool>,
    /// Of each node, whether it has what all tokens have appended.
    has_places: Vec<bool>,
    of_all: Vec<bool>,
    made: Growth,
    /// Where each node of the step of one token is.
    at: Vec<usize>,
    /// Values of all tokens of which the last token's is a node.
    picked: Vec<(Value, usize)>,
}

impl Several<'_> {
    fn made(mut self) -> Result<Growth, String> {
        let Growth { graph, sources, caches, grown, .. } = self.of;
        let (sources, caches, grown) = (sources.clone(), caches.clone(), grown.clone());
        self.made = Growth { sources, caches, grown, ..Growth::default() };
        for (at, input) in graph.inputs.iter().enumerate() {
            let is_one = self.of.sources[at] == Source::Position || !self.of.differs(Value::Input(at), &[]);
            let by = if is_one { 1 } else { self.tokens };
            self.made.graph.inputs.push(Input { len: input.len * by, ..input.clone() });
        }
        for (at, node) in graph.nodes.iter().enumerate() {
            let made = match (&node.compute, self.differ[at], self.of_all[at]) {
                (Compute::Appended { .. }, ..) => self.appended(node),
                (_, false, _) => self.renamed(node),
                (_, true, true) => self.of_all(node).map_err(|what| format!("step {at} has {what}"))?,
                (_, true, false) => self.of_last(node),
            };
            let at = self.push(made);
            self.at.push(at);
        }
        for output in &graph.outputs {
            let value = match output.value {
                Value::Node(at) if self.of_all[at] && !self.is_each => self.picked(output.value),
                value => self.renamed_value(value),
            };
            self.made.graph.outputs.push(Output { value, ..*output });
        }
        let (nodes, at) = (&mut self.made.graph.nodes, &self.at);
        nodes.iter_mut().for_each(|node| rename_beside(&mut node.compute, at));
        Ok(self.made)
    }

    fn push(&mut self, node: Node) -> usize {
        self.made.graph.nodes.push(node);
        self.made.graph.nodes.len() - 1
    }

    fn renamed_value(&self, value: Value) -> Value {
        match value {
            Value::Node(at) => Value::Node(self.at[at]),
            input => input,
        }
    }

    fn renamed(&self, node: &Node) -> Node {
        let renamed = |operand: &Operand| Operand { value: self.renamed_value(operand.value), ..operand.clone() };
        Node { operands: node.operands.iter().map(renamed).collect(), ..node.clone() }
    }

    /// An input of one number that tokens have in common, or one each.
    fn numbers(&mut self, source: Source, len: u64) -> Operand {
        let like = Input { buffer: 0, element: Element::U32, len, is_constant: false };
        Operand::whole(self.made.input(source, like), len)
    }

    /// An operand, with how far its elements lie from token to token.
    fn part(&self, operand: &Operand) -> Part {
        let differs = self.of.differs(operand.value, &self.differ);
        let apart = if differs { self.of.graph.len(operand.value) } else { 0 };
        Part { operand: Operand { value: self.renamed_value(operand.value), ..operand.clone() }, differs, apart }
    }

    /// All tokens appended to earlier ones.
    fn appended(&mut self, node: &Node) -> Node {
        let mut made = self.renamed(node);
        made.operands[0] = self.part(&node.operands[0]).beside(self.tokens);
        let last = self.numbers(Source::Last, 1);
        made.operands.push(last);
        made
    }

    /// The same node of the last token.
    fn of_last(&mut self, node: &Node) -> Node {
        let mut operands = Vec::with_capacity(node.operands.len());
        for operand in &node.operands {
            let is_of_all = match operand.value {
                Value::Node(at) => self.of_all[at],
                Value::Input(_) => self.of.differs(operand.value, &self.differ),
            };
            let value = if is_of_all { self.picked(operand.value) } else { self.renamed_value(operand.value) };
            operands.push(Operand { value, ..operand.clone() });
        }
        Node { operands, ..node.clone() }
    }

    /// The last token's part of a value of all.
    fn picked(&mut self, value: Value) -> Value {
        if let Some((_, at)) = self.picked.iter().find(|(known, _)| *known == value) {
            return Value::Node(*at);
        }
        let (len, element) = (self.of.graph.len(value), self.of.graph.element(value));
        let moves = ByPosition::Moves { first: 0, step: len as i64 };
        // The position of the last token among those of all.
        let whole = Operand::whole(self.renamed_value(value), len);
        let whole = if self.of_positions(value) { self.numbers(Source::Places, self.tokens) } else { whole };
        let operands = vec![Operand { dims: vec![Dim { len, stride: 1 }], ..whole }, self.numbers(Source::Last, 1)];
        let at = self.push(Node::new(at_position(moves), operands, element, len));
        self.picked.push((value, at));
        Value::Node(at)
    }

    fn of_positions(&self, value: Value) -> bool {
        matches!(value, Value::Input(at) if self.of.sources[at] == Source::Position)
    }

    /// The same of all tokens, each with the numbers of its position.
    fn affine(&mut self, node: &Node) -> Node {
        let x = &node.operands[..node.operands.len() - 1];
        let mut operands: Vec<Operand> = x.iter().map(|x| self.part(x).beside(self.tokens)).collect();
        operands.push(self.numbers(Source::Places, self.tokens));
        Node { operands, len: node.len * self.tokens, ..node.clone() }
    }

    /// The node of all tokens.
    fn of_all(&mut self, node: &Node) -> Result<Node, String> {
        let mut parts: Vec<Part> = node.operands.iter().map(|operand| self.part(operand)).collect();
        let compute = match &node.compute {
            Compute::AffineAtPosition { .. } => return Ok(self.affine(node)),
            Compute::AtPosition { compute, operands } => {
                parts.pop();
                for &(at, by) in operands {
                    let is_of_cache = matches!(node.operands[at].value, Value::Node(of) if self.has_places[of]);
                    parts[at] = self.part_at_positions(&parts[at], by, is_of_cache)?;
                }
                compute
            }
            compute => compute,
        };
        let Made { compute, operands, behind } = of_tokens(compute, &parts, self.tokens)?;
        let made = Node { compute, operands, len: node.len * self.tokens, ..node.clone() };
        let Some(inner) = behind else { return Ok(made) };
        // Tokens inside of rows come to lie outside.
        let (len, rows) = (made.len, node.len / inner);
        let from = Value::Node(self.push(made));
        let dims = [(self.tokens, inner), (rows, self.tokens * inner), (inner, 1)];
        let dims = dims.map(|(len, stride)| Dim { len, stride }).to_vec();
        let operands = vec![Operand { value: from, first: 0, dims }];
        Ok(Node::new(Compute::Recorded(Function::Copy), operands, node.element, len))
    }

    /// An operand as it is at the position of each token.
    fn part_at_positions(&mut self, part: &Part, by: ByPosition, is_of_cache: bool) -> Result<Part, String> {
        let by = match by {
            ByPosition::Moves { .. } if part.differs => {
                return Err("an operand that moves over what differs from token to token".into());
            }
            // A copy of a cache for each token.
            ByPosition::EndsAs { .. } if is_of_cache => {
                return Err("places of a cache that are hidden from each token in another way".into());
            }
            ByPosition::EndsAs { dim, number } => ByPosition::EndsAs { dim: dim + 1, number },
            moves @ ByPosition::Moves { .. } => moves,
        };
        let element = self.made.graph.element(part.operand.value);
        // What repeats is copied once, but for places that end.
        let ends = match by {
            ByPosition::EndsAs { dim, .. } => Some(dim - 1),
            ByPosition::Moves { .. } => None,
        };
        let repeats = |at: usize, dim: &Dim| dim.stride == 0 && Some(at) != ends;
        let mut once = Part { operand: part.operand.clone(), ..*part };
        let dims = once.operand.dims.iter_mut().enumerate();
        dims.filter(|(at, dim)| repeats(*at, dim)).for_each(|(_, dim)| dim.len = 1);
        let len = once.operand.len();
        let operands = vec![once.beside(self.tokens), self.numbers(Source::Places, self.tokens)];
        let at = self.push(Node::new(at_position(by), operands, element, len * self.tokens));
        let mut stride = len;
        let dims = part.operand.dims.iter().enumerate().map(|(at, dim)| match repeats(at, dim) {
            true => *dim,
            false => {
                stride /= dim.len.max(1);
                Dim { len: dim.len, stride }
            }
        });
        let operand = Operand { value: Value::Node(at), first: 0, dims: dims.collect() };
        Ok(Part { operand, differs: true, apart: len })
    }
}

/// A copy of an operand as it is at a position.
fn at_position(by: ByPosition) -> Compute {
    Compute::AtPosition { compute: Box::new(Compute::Recorded(Function::Copy)), operands: vec![(0, by)] }
}

/// Says where nodes are that come with others.
fn rename_beside(compute: &mut Compute, at: &[usize]) {
    match compute {
        Compute::ProductsOfOne { others, .. } | Compute::QuantizedProduct { end: ProductEnd::Others(others), .. } => {
            others.iter_mut().for_each(|other| *other = at[*other]);
        }
        Compute::SumBesideNorm { norm, .. } => *norm = at[*norm],
        _ => {}
    }
}
