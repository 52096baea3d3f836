//! The first item of a batch: what a graph computes of a part of its operands.

use super::compute::Compute;
use super::graph::{Graph, Node, Operand, Value};
use crate::trace::{Dim, Function};

/// The part of a graph that computes one of several items.
#[derive(Debug, Clone, PartialEq)]
pub struct Item {
    /// The graph. Its inputs, nodes and outputs are as before, but many have the elements of the first item alone, which come first.
    pub graph: Graph,
    /// How many items there were.
    pub items: u64,
}

/// The graph of the first of so many items; `None` if what the outputs begin with does not follow from what its operands begin with.
pub fn first_item(graph: &Graph, items: u64) -> Option<Item> {
    if items < 2 {
        return None;
    }
    let mut parts = Parts::new(graph, items);
    let mut of_item = graph.clone();
    let live = graph.live();
    // Whoever reads a node comes behind it.
    for at in (0..graph.nodes.len()).rev().filter(|&at| live[at]) {
        let node = &graph.nodes[at];
        let part = if parts.nodes[at] { node_of_item(node, items) } else { None };
        let is_part = part.is_some();
        let node = part.unwrap_or_else(|| node.clone());
        for operand in &node.operands {
            if !is_part || last(operand) >= graph.len(operand.value) / items {
                parts.keep_whole(operand.value);
            }
        }
        parts.nodes[at] = is_part;
        of_item.nodes[at] = node;
    }
    for (input, is_part) in of_item.inputs.iter_mut().zip(&parts.inputs) {
        input.len /= if *is_part { items } else { 1 };
    }
    let is_part = |value: Value| match value {
        Value::Input(at) => parts.inputs[at],
        Value::Node(at) => parts.nodes[at],
    };
    of_item.outputs.iter().all(|output| is_part(output.value)).then_some(Item { graph: of_item, items })
}

/// Which values have the elements of the first item alone.
struct Parts {
    inputs: Vec<bool>,
    nodes: Vec<bool>,
}

impl Parts {
    /// All that calls give, as long as nothing needs more of it.
    fn new(graph: &Graph, items: u64) -> Self {
        let inputs = graph.inputs.iter().map(|input| !input.is_constant && input.len.is_multiple_of(items));
        let nodes = graph.nodes.iter().zip(graph.constant());
        let nodes = nodes.map(|(node, is_constant)| !is_constant && node.len.is_multiple_of(items));
        Self { inputs: inputs.collect(), nodes: nodes.collect() }
    }

    fn keep_whole(&mut self, value: Value) {
        match value {
            Value::Input(at) => self.inputs[at] = false,
            Value::Node(at) => self.nodes[at] = false,
        }
    }
}

/// The last element that an operand reads.
fn last(operand: &Operand) -> u64 {
    operand.first + operand.dims.iter().map(|dim| dim.len.saturating_sub(1) * dim.stride).sum::<u64>()
}

/// A node whose result is what it was in the first item; `None` if that is no matter of what its operands begin with.
fn node_of_item(node: &Node, items: u64) -> Option<Node> {
    let len = node.len / items;
    let mut part = Node { len, ..node.clone() };
    let Compute::Recorded(function) = &mut part.compute else {
        let Compute::Concat { rows, widths } = &mut part.compute else { return None };
        let lens = widths.iter().map(|width| *rows * width);
        let fit = rows.is_multiple_of(items) && lens.eq(node.operands.iter().map(Operand::len));
        *rows /= items;
        return (fit && each_begins(&mut part.operands, items).is_some()).then_some(part);
    };
    match function {
        Function::Zeros | Function::Fill(_) => {}
        Function::Copy
        | Function::Unary(_)
        | Function::Binary(_)
        | Function::Affine(..)
        | Function::AffineWide(..)
        | Function::Power(_)
        | Function::Elu(_)
        | Function::Where
        | Function::MaskedFill(_) => of_rows(&mut part, 1, items)?,
        Function::RowSum(columns)
        | Function::RowMax(columns)
        | Function::RowMin(columns)
        | Function::ArgMax(columns)
        | Function::ArgMin(columns) => {
            let columns = *columns;
            of_rows(&mut part, columns, items)?;
        }
        Function::Softmax(columns)
        | Function::LayerNorm(columns, _)
        | Function::RmsNorm(columns, _)
        | Function::ArgSort(columns, _) => {
            let are_whole_rows = len.is_multiple_of(*columns);
            are_whole_rows.then(|| of_rows(&mut part, 1, items))??;
        }
        Function::Matmul => {
            let [a, b] = &mut part.operands[..] else { return None };
            match (&mut a.dims[..], &mut b.dims[..]) {
                ([of_a, _, _, ..], [of_b, _, _, ..]) if of_a.len > 1 && of_a.len == of_b.len => {
                    (of_a.len, of_b.len) = (begins(of_a.len, items)?, begins(of_b.len, items)?);
                }
                ([Dim { len: 1, .. }, rows, _], [Dim { len: 1, .. }, _, _]) => rows.len = begins(rows.len, items)?,
                _ => return None,
            }
        }
        Function::Convolution(_)
        | Function::TransposedConvolution { .. }
        | Function::MaxPool(_)
        | Function::MeanPool(_)
        | Function::UpsampleNearest(_)
        | Function::UpsampleBilinear(_)
        | Function::Unfold(_) => {
            let [images, _, _, _] = &mut part.operands.first_mut()?.dims[..] else { return None };
            images.len = begins(images.len, items)?;
        }
        Function::QuantizedProduct(_) => {
            let [rows, _] = &mut part.operands.first_mut()?.dims[..] else { return None };
            rows.len = begins(rows.len, items)?;
        }
        Function::IndexSelect { left: 1, right, .. } => {
            let (right, [_, ids]) = (*right, &mut part.operands[..]) else { return None };
            (ids.len() * right == node.len).then(|| each_begins(std::slice::from_mut(ids), items))??;
        }
        Function::Rotary(of) if of.angles == 0 => {
            of.outer = begins(of.outer, items)?;
            each_begins(&mut part.operands[..1], items)?;
        }
        Function::IndexSelect { .. }
        | Function::Gather(_)
        | Function::IndexAdd(_)
        | Function::ScatterAdd(_)
        | Function::Scatter(_)
        | Function::Fold(_)
        | Function::Dequantized(_)
        | Function::QuantizedRows(_)
        | Function::ExpertProduct(_)
        | Function::Count
        | Function::Bounds
        | Function::Attention(_)
        | Function::PagedAttention(..)
        | Function::Rotary(_)
        | Function::Upload
        | Function::Part => return None,
    }
    Some(part)
}

/// A length without all items but the first.
fn begins(len: u64, items: u64) -> Option<u64> {
    len.is_multiple_of(items).then_some(len / items)
}

/// Lets a node read what its operands begin with, each of so many elements for one of the result.
fn of_rows(part: &mut Node, columns: u64, items: u64) -> Option<()> {
    let len = part.len * items * columns;
    let are_all = part.operands.iter().all(|operand| operand.len() == len);
    are_all.then(|| each_begins(&mut part.operands, items))?
}

/// Leaves what operands begin with, in the order of their elements.
fn each_begins(operands: &mut [Operand], items: u64) -> Option<()> {
    for operand in operands {
        let mut left = items;
        for dim in &mut operand.dims {
            if dim.len.is_multiple_of(left) {
                (dim.len, left) = (dim.len / left, 1);
                break;
            }
            if !left.is_multiple_of(dim.len) {
                return None;
            }
            (dim.len, left) = (1, left / dim.len);
        }
        if left > 1 {
            return None;
        }
    }
    Some(())
}
