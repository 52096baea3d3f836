//! Nodes that compute the same of constants, as one: layers of a module convert the same row of a table, each for itself.

use hashbrown::HashMap;

use super::graph::{Graph, Value};

impl Graph {
    /// Lets all readers of nodes that depend on constants alone, and that compute the same, read the first of them.
    pub(super) fn merge_constants(&mut self) {
        let constant = self.constant();
        let mut first: Vec<usize> = (0..self.nodes.len()).collect();
        // By what is read first, since all nodes of one value are few.
        let mut known: HashMap<Value, Vec<usize>> = HashMap::new();
        for at in 0..self.nodes.len() {
            for operand in &mut self.nodes[at].operands {
                operand.value = of(operand.value, &first);
            }
            let node = &self.nodes[at];
            let Some(read) = node.operands.first().filter(|_| constant[at]) else { continue };
            let alike = known.entry(read.value).or_default();
            match alike.iter().find(|&&other| self.nodes[other] == *node) {
                Some(&other) => first[at] = other,
                None => alike.push(at),
            }
        }
        for output in &mut self.outputs {
            output.value = of(output.value, &first);
        }
    }
}

fn of(value: Value, first: &[usize]) -> Value {
    match value {
        Value::Node(at) => Value::Node(first[at]),
        Value::Input(_) => value,
    }
}

#[cfg(test)]
mod tests {
    use super::super::compute::Compute;
    use super::super::graph::{Input, Node, Operand, Output};
    use super::*;
    use crate::trace::{Element, Function};

    #[test]
    fn the_same_of_a_constant_is_computed_once() {
        let input = |is_constant| Input { buffer: 0, element: Element::F16, len: 8, is_constant };
        let of = |value| Operand::whole(value, 8);
        let copy = |value| Node::new(Compute::Recorded(Function::Copy), vec![of(value)], Element::F32, 8);
        let sum =
            |a, b| Node::new(Compute::Recorded(Function::Binary("add".into())), vec![of(a), of(b)], Element::F32, 8);
        let nodes = vec![
            copy(Value::Input(0)),
            copy(Value::Input(0)),
            copy(Value::Input(1)),
            copy(Value::Input(1)),
            sum(Value::Node(1), Value::Node(2)),
            sum(Value::Node(4), Value::Node(3)),
        ];
        let outputs = vec![Output { value: Value::Node(5), buffer: 1 }];
        let mut graph = Graph { inputs: vec![input(true), input(false)], nodes, outputs };
        graph.merge_constants();
        assert_eq!(graph.live(), [true, false, true, true, true, true], "what calls give is no constant");
        assert_eq!(graph.nodes[4].operands[0].value, Value::Node(0));
    }
}
