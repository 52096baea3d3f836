//! Nodes that depend on constants alone: they come before all others, so that an operator can read them wherever it is, and those that
//! compute the same are one. Layers of a module convert the same row of a table, each for itself.

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
                operand.value = renumbered(operand.value, &first);
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
            output.value = renumbered(output.value, &first);
        }
    }

    /// Moves nodes that depend on constants alone before all others. For each node, where it is now.
    pub(super) fn constants_first(&mut self) -> Vec<usize> {
        let constant = self.constant();
        let constants = constant.iter().filter(|&&is_constant| is_constant).count();
        let (mut of_constants, mut of_others) = (0..constants, constants..constant.len());
        let next = |&is_constant: &bool| if is_constant { of_constants.next() } else { of_others.next() };
        let moved: Vec<usize> = constant.iter().filter_map(next).collect();
        let mut nodes: Vec<_> = moved.iter().zip(std::mem::take(&mut self.nodes)).collect();
        nodes.sort_unstable_by_key(|(at, _)| **at);
        self.nodes = nodes.into_iter().map(|(_, node)| node).collect();
        let operands = self.nodes.iter_mut().flat_map(|node| &mut node.operands).map(|operand| &mut operand.value);
        for value in operands.chain(self.outputs.iter_mut().map(|output| &mut output.value)) {
            *value = renumbered(*value, &moved);
        }
        moved
    }
}

/// A value whose node is this one now.
pub(super) fn renumbered(value: Value, now: &[usize]) -> Value {
    match value {
        Value::Node(at) => Value::Node(now[at]),
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

    #[test]
    fn constants_come_first() {
        let input = |is_constant| Input { buffer: 0, element: Element::F16, len: 8, is_constant };
        let node = |name: &str, of: &[Value]| {
            let operands = of.iter().map(|&value| Operand::whole(value, 8)).collect();
            Node::new(Compute::Recorded(Function::Unary(name.into())), operands, Element::F16, 8)
        };
        let [weight, x] = [0, 1].map(Value::Input);
        let [first, second, third, fourth] = [0, 1, 2, 3].map(Value::Node);
        let nodes = vec![node("a", &[x]), node("b", &[weight]), node("c", &[first, second]), node("d", &[second])];
        let outputs = [second, third, fourth].map(|value| Output { value, buffer: 1 }).into();
        let mut graph = Graph { inputs: vec![input(true), input(false)], nodes, outputs };
        assert_eq!(graph.constants_first(), [2, 0, 3, 1]);
        assert_eq!(
            graph.nodes,
            [node("b", &[weight]), node("d", &[first]), node("a", &[x]), node("c", &[third, first])]
        );
        assert_eq!(graph.outputs.iter().map(|output| output.value).collect::<Vec<_>>(), [first, fourth, second]);
    }
}
