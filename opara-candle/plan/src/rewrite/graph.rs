//! The computation of a run of ops, as a graph of values. Each value is computed once, from earlier ones.

use serde::{Deserialize, Serialize};

use super::compute::{Compute, ProductEnd};
use crate::trace::{is_contiguous, BufferId, Dim, Element, Function};

/// Rows of which one launch computes all of a gated unit.
const FEW: u64 = 8;

/// The computation of a run of ops.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Graph {
    /// Tensors from before the run.
    pub inputs: Vec<Input>,
    /// Values that it computes, each from inputs and earlier nodes.
    pub nodes: Vec<Node>,
    /// Values that are read after the run.
    pub outputs: Vec<Output>,
}

/// A buffer from before the run.
#[derive(Debug, Clone, PartialEq)]
pub struct Input {
    /// The buffer.
    pub buffer: BufferId,
    /// Type of its elements.
    pub element: Element,
    /// How many it has.
    pub len: u64,
    /// Whether it is the same in every pass: a weight, or what the host uploads.
    pub is_constant: bool,
}

/// A buffer that the run fills.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Output {
    /// Its value at the end.
    pub value: Value,
    /// The buffer.
    pub buffer: BufferId,
}

/// All elements of an input, or all results of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Value {
    /// The input of this index.
    Input(usize),
    /// The node of this index.
    Node(usize),
}

/// Elements of a value, in an order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operand {
    /// The value.
    pub value: Value,
    /// The first element.
    pub first: u64,
    /// From the outermost dimension on.
    pub dims: Vec<Dim>,
}

impl Operand {
    /// All elements of a value, in their order.
    pub fn whole(value: Value, len: u64) -> Self {
        Self { value, first: 0, dims: vec![Dim { len, stride: 1 }] }
    }

    /// How many elements it has.
    pub fn len(&self) -> u64 {
        self.dims.iter().map(|dim| dim.len).product()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether it is so many elements, one after the other.
    pub fn is_run_of(&self, len: u64) -> bool {
        self.len() == len && is_contiguous(&self.dims)
    }

    /// Whether it is all of a value of so many elements, in their order.
    pub fn is_whole(&self, len: u64) -> bool {
        self.first == 0 && self.is_run_of(len)
    }
}

/// A value and how it is computed; its elements lie one after the other.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// How.
    pub compute: Compute,
    /// Of what.
    pub operands: Vec<Operand>,
    /// Type of the results.
    pub element: Element,
    /// How many there are.
    pub len: u64,
    /// How its products of f32 are computed, if the library computes them.
    pub precision: ProductPrecision,
}

/// How products of f32 are computed. XLA calls the three default, high and highest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ProductPrecision {
    /// The fastest way that the operator has: convolutions round operands to TF32, 11 bits, if that is faster.
    #[default]
    Fastest,
    /// About as accurate as f32: an operand may be the sum of two numbers of TF32, which keep 22 bits.
    High,
    /// By multiplications of f32.
    Highest,
}

impl Node {
    /// A node whose products, if it has any, are computed in the fastest way.
    pub fn new(compute: Compute, operands: Vec<Operand>, element: Element, len: u64) -> Self {
        Self { compute, operands, element, len, precision: ProductPrecision::Fastest }
    }

    /// The nodes that it reads, once for each operand.
    pub fn read(&self) -> impl Iterator<Item = usize> + '_ {
        self.operands.iter().filter_map(|operand| match operand.value {
            Value::Node(of) => Some(of),
            Value::Input(_) => None,
        })
    }

    /// How many launches compute it, if it does not come with another node. Where a device needs several for an operator, that is not
    /// known here.
    pub fn launches(&self) -> usize {
        match self.compute {
            // A copy for each part.
            Compute::Concat { .. } => self.operands.len(),
            // Of many rows, what follows the product is a launch of its own.
            Compute::Gated { .. } if self.operands[0].dims[0].len > FEW => 2,
            _ => 1,
        }
    }

    /// The other nodes whose values come with its own.
    pub fn given_beside(&self) -> &[usize] {
        match &self.compute {
            Compute::ProductsOfOne { others, .. } => others,
            Compute::SumBesideNorm { norm, .. } => std::slice::from_ref(norm),
            Compute::BatchMoments { variance } => variance.as_slice(),
            Compute::QuantizedProduct { end: ProductEnd::Others(others), .. } => others,
            _ => &[],
        }
    }

    /// The next more accurate way to compute the products of f32 that the node has; `None` if there is none.
    pub fn more_precise(&self) -> Option<ProductPrecision> {
        let has_way = |precision| match self.compute {
            // Each channel by itself needs no tensor cores.
            Compute::FusedConvolution(ref of) => {
                of.window.groups == 1 || self.operands[0].dims.get(1).is_none_or(|dim| dim.len != of.window.groups)
            }
            // Others than convolutions never round to TF32.
            Compute::TransposedConvolution { .. }
            | Compute::Linear { .. }
            | Compute::ActivatedProduct { .. }
            | Compute::ProductConcat { .. }
            | Compute::ProductsOfOne { .. }
            | Compute::Gated { .. } => precision == ProductPrecision::Highest,
            _ => false,
        };
        let all = [ProductPrecision::High, ProductPrecision::Highest];
        let mut ways = all.into_iter().filter(|&way| way > self.precision && has_way(way));
        if self.element == Element::F32 {
            ways.next()
        } else {
            None
        }
    }
}

impl Graph {
    /// Computes inputs of one element anew, those whose bits `number` tells: rules may ask for the number then.
    pub fn tell(&mut self, number: impl Fn(&Input) -> Option<u64>) {
        let bits = self.inputs.iter().map(|input| number(input).filter(|_| input.len == 1));
        let told: Vec<(usize, u64)> = bits.enumerate().filter_map(|(at, bits)| Some((at, bits?))).collect();
        let moved = |value: &mut Value| match *value {
            Value::Node(of) => *value = Value::Node(of + told.len()),
            Value::Input(of) => {
                if let Some(at) = told.iter().position(|(input, _)| *input == of) {
                    *value = Value::Node(at);
                }
            }
        };
        self.nodes.iter_mut().flat_map(|node| &mut node.operands).for_each(|operand| moved(&mut operand.value));
        self.outputs.iter_mut().for_each(|output| moved(&mut output.value));
        let fill = |&(input, bits): &(usize, u64)| {
            let compute = Compute::Recorded(Function::Fill(bits));
            Node::new(compute, Vec::new(), self.inputs[input].element, 1)
        };
        let filled: Vec<Node> = told.iter().map(fill).collect();
        self.nodes.splice(..0, filled);
    }

    /// How many elements a value has.
    pub fn len(&self, value: Value) -> u64 {
        match value {
            Value::Input(at) => self.inputs[at].len,
            Value::Node(at) => self.nodes[at].len,
        }
    }

    /// Type of a value's elements.
    pub fn element(&self, value: Value) -> Element {
        match value {
            Value::Input(at) => self.inputs[at].element,
            Value::Node(at) => self.nodes[at].element,
        }
    }

    /// For each node, the nodes that read it, once for each operand; an output reads it as a node behind all.
    pub fn users(&self) -> Vec<Vec<usize>> {
        let mut users = vec![Vec::new(); self.nodes.len()];
        let is_live = self.live();
        for (at, node) in self.nodes.iter().enumerate().filter(|(at, _)| is_live[*at]) {
            node.read().for_each(|of| users[of].push(at));
        }
        for output in &self.outputs {
            if let Value::Node(of) = output.value {
                users[of].push(self.nodes.len());
            }
        }
        users
    }

    /// For each node, whether an output depends on it.
    pub fn live(&self) -> Vec<bool> {
        self.needed_for(self.outputs.iter().map(|output| output.value))
    }

    /// For each node, whether one of these values is its own, or depends on it.
    pub fn needed_for(&self, values: impl IntoIterator<Item = Value>) -> Vec<bool> {
        let mut needed = vec![false; self.nodes.len()];
        for value in values {
            if let Value::Node(of) = value {
                needed[of] = true;
            }
        }
        for at in (0..self.nodes.len()).rev() {
            if needed[at] {
                self.nodes[at].read().for_each(|of| needed[of] = true);
            }
        }
        needed
    }

    /// For each node, whether it depends on constants alone.
    pub fn constant(&self) -> Vec<bool> {
        let mut constant: Vec<bool> = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            constant.push(node.operands.iter().all(|operand| self.is_constant(operand.value, &constant)));
        }
        constant
    }

    /// Whether a value depends on constants alone, if that is known of the nodes.
    pub fn is_constant(&self, value: Value, nodes: &[bool]) -> bool {
        match value {
            Value::Input(at) => self.inputs[at].is_constant,
            Value::Node(at) => nodes[at],
        }
    }
}

/// The strides of a view, of these dimensions, over a shape of as many elements; `None` if one of the shape's dimensions goes over
/// several of the view's that do not continue each other. Those of a dimension of one are 0.
pub fn strides_over(dims: &[Dim], shape: &[u64]) -> Option<Vec<u64>> {
    let mut dims = dims.iter().rev().filter(|dim| dim.len != 1);
    let mut strides = vec![0; shape.len()];
    // Of the dimension that is being gone over: its stride, elements gone over, and elements left.
    let mut current: Option<(u64, u64, u64)> = None;
    for (at, &len) in shape.iter().enumerate().rev().filter(|(_, len)| **len != 1) {
        let (stride, done, left) = match current {
            Some(current) => current,
            None => dims.next().map(|dim| (dim.stride, 1, dim.len))?,
        };
        if len == 0 || left % len != 0 {
            return None;
        }
        strides[at] = stride.checked_mul(done)?;
        current = (left != len).then_some((stride, done * len, left / len));
    }
    (current.is_none() && dims.next().is_none()).then_some(strides)
}
