//! Products whose rows are not a multiple of what tensor cores load.

use super::compute::Compute;
use super::graph::{Graph, Node, Operand, Value};
use crate::trace::{Dim, Element, Function};

/// Columns are multiples of this: 16 bytes of 16 bits.
const WIDE: u64 = 8;

/// Rows of a product that pays for a copy of its weight.
const MANY: u64 = 64;

impl Graph {
    /// Lets products of 16 bits have columns of zeros behind their own, if rows would begin at any place else and what reads them takes
    /// rows that are apart. Tensor cores load such rows by single elements, forward and twice backward.
    pub fn pad_products(&mut self) {
        while let Some((at, users)) = self.uneven() {
            self.pad(at, &users);
        }
    }

    /// The first such product, and its readers.
    fn uneven(&self) -> Option<(usize, Vec<usize>)> {
        let fits = |(at, users): &(usize, Vec<usize>)| {
            let takes = |&user: &usize| self.nodes.get(user).is_some_and(|node| takes_rows(node, *at));
            is_uneven(&self.nodes[*at]) && !users.is_empty() && users.iter().all(takes)
        };
        self.users().into_iter().enumerate().find(fits)
    }

    fn pad(&mut self, at: usize, users: &[usize]) {
        let [rows, columns] = sizes(&self.nodes[at]);
        let (more, all) = (columns.next_multiple_of(WIDE) - columns, columns.next_multiple_of(WIDE));
        let element = self.nodes[at].element;
        let dims = |pitch: u64| vec![Dim { len: rows, stride: pitch }, Dim { len: columns, stride: 1 }];
        for &user in users {
            self.nodes[user].operands[0].dims = dims(all);
        }
        let mut made = Vec::new();
        // Zeros, and each operand with a row or an element for each column in front of them.
        for operand in &mut self.nodes[at].operands[1..] {
            let each = operand.len() / columns;
            let zeros = Node::new(Compute::Recorded(Function::Zeros), Vec::new(), element, more * each);
            let (place, widths) = (at + made.len(), vec![columns * each, more * each]);
            let parts = vec![operand.clone(), Operand::whole(Value::Node(place), more * each)];
            made.extend([zeros, Node::new(Compute::Concat { rows: 1, widths }, parts, element, all * each)]);
            *operand = Operand { value: Value::Node(place + 1), first: 0, dims: operand.dims.clone() };
            operand.dims[0].len = all;
        }
        self.nodes[at].len = rows * all;
        let count = made.len();
        let moved = |value: &mut Value| match value {
            Value::Node(of) if *of >= at => *of += count,
            _ => {}
        };
        self.nodes[at + 1..].iter_mut().flat_map(|node| &mut node.operands).for_each(|of| moved(&mut of.value));
        self.outputs.iter_mut().for_each(|output| moved(&mut output.value));
        self.nodes.splice(at..at, made);
    }
}

fn sizes(product: &Node) -> [u64; 2] {
    [product.operands[0].dims[0].len, product.operands[1].dims[0].len]
}

/// Whether a node is a product of many rows whose columns fill no whole vectors, and its weight lies row by row.
fn is_uneven(node: &Node) -> bool {
    let is_product = node.compute == Compute::Linear { activation: None };
    if !is_product || !matches!(node.element, Element::F16 | Element::Bf16) {
        return false;
    }
    let ([rows, columns], weight) = (sizes(node), &node.operands[1]);
    rows >= MANY
        && columns % WIDE > 0
        && node.operands[1..].iter().all(|of| of.is_run_of(of.len()))
        && weight.dims.len() == 2
}

/// Whether a node reads all rows of another one as its first operand, which it takes as a view, and nothing else of it.
fn takes_rows(node: &Node, of: usize) -> bool {
    let reads = node.operands.iter().filter(|operand| operand.value == Value::Node(of)).count();
    let Compute::LogSoftmaxAt { columns } = node.compute else { return false };
    let x = &node.operands[0];
    reads == 1 && x.value == Value::Node(of) && x.is_whole(node.len * columns)
}
