//! Intermediate values at which a run is judged.

use super::*;

/// The least that are many.
const MANY: u64 = 512;

fn all(value: Value, len: u64) -> Operand {
    Operand::whole(value, len)
}

/// A function of one value of so many elements.
fn of(value: Value, reads: u64, function: Function, len: u64) -> Node {
    Node::new(Compute::Recorded(function), vec![all(value, reads)], F16, len)
}

fn unary(value: Value) -> Node {
    of(value, MANY, Function::Unary("exp".into()), MANY)
}

fn sum(value: Value) -> Node {
    of(value, MANY, Function::RowSum(MANY), 1)
}

fn added(one: Value, other: Value) -> Node {
    Node::new(Compute::Recorded(binary("add")), vec![all(one, 1), all(other, 1)], F16, 1)
}

/// A graph of these nodes, of which the last is its output, of an input and a weight of many elements.
fn graph(nodes: Vec<Node>) -> Graph {
    let input = |is_constant| Input { buffer: 0, element: F16, len: MANY, is_constant };
    let outputs = vec![Output { value: Value::Node(nodes.len() - 1), buffer: 1 }];
    Graph { inputs: vec![input(false), input(true)], nodes, outputs }
}

/// How what is behind the last values of many is computed, for each node that is changed by itself.
fn each_changed(graph: &Graph) -> Vec<Option<Downstream>> {
    let nodes = last_of_many(graph, MANY);
    let behind_of = |at: usize| {
        let mut changed = graph.clone();
        changed.nodes[at].precision = ProductPrecision::Highest;
        downstream(&nodes, graph, &changed)
    };
    assert_eq!(downstream(&nodes, graph, graph), RECORDED);
    (0..graph.nodes.len()).map(behind_of).collect()
}

const RECORDED: Option<Downstream> = Some(Downstream::AsRecorded);
const CHANGED: Option<Downstream> = Some(Downstream::Changed);

const X: Value = Value::Input(0);
const N: fn(usize) -> Value = Value::Node;

#[test]
fn changes_up_to_the_last_value_of_many_are_told_there() {
    let graph = graph(vec![unary(X), unary(N(0)), sum(N(1)), added(N(2), N(2))]);
    assert_eq!(last_of_many(&graph, MANY), [1]);
    assert_eq!(each_changed(&graph), [RECORDED, RECORDED, CHANGED, CHANGED]);
    assert!(last_of_many(&graph, MANY + 1).is_empty());
}

#[test]
fn every_value_that_few_numbers_come_from_counts() {
    // The first is read beside the second.
    let skipped = graph(vec![unary(X), unary(N(0)), sum(N(1)), sum(N(0)), added(N(2), N(3))]);
    assert_eq!(last_of_many(&skipped, MANY), [0, 1]);
    // Branches of their own.
    let branches = graph(vec![unary(X), unary(X), sum(N(0)), sum(N(1)), added(N(2), N(3))]);
    assert_eq!(last_of_many(&branches, MANY), [0, 1]);
    for graph in [skipped, branches] {
        assert_eq!(each_changed(&graph), [RECORDED, RECORDED, CHANGED, CHANGED, CHANGED]);
    }
}

#[test]
fn what_weights_give_does_not_count() {
    let graph = graph(vec![unary(Value::Input(1)), unary(X), sum(N(1)), sum(N(0)), added(N(2), N(3))]);
    assert_eq!(last_of_many(&graph, MANY), [1]);
    assert_eq!(each_changed(&graph)[..2], [CHANGED, RECORDED]);
}

#[test]
fn few_numbers_that_are_read_behind_the_last_value_of_many_are_not_told_there() {
    // A sum of the input that scales it, and that is read at the end, too.
    let scaled = Node::new(
        Compute::Recorded(binary("mul")),
        vec![all(X, MANY), Operand { dims: vec![Dim { len: MANY, stride: 0 }], ..all(N(0), 1) }],
        F16,
        MANY,
    );
    let is_read_again = graph(vec![sum(X), scaled.clone(), sum(N(1)), added(N(2), N(0))]);
    assert_eq!(last_of_many(&is_read_again, MANY), [1]);
    assert_eq!(each_changed(&is_read_again), [None, RECORDED, None, None]);
    let is_not = graph(vec![sum(X), scaled, sum(N(1)), added(N(2), N(2))]);
    assert_eq!(each_changed(&is_not), [RECORDED, RECORDED, CHANGED, CHANGED]);
}

#[test]
fn what_comes_beside_another_node_is_changed() {
    // The first gives the second, too, which nothing of many numbers depends on.
    let original = graph(vec![unary(X), sum(X), sum(N(0)), added(N(1), N(2))]);
    let nodes = last_of_many(&original, MANY);
    assert_eq!(nodes, [0]);
    let products = Compute::ProductsOfOne { others: vec![1], have_bias: vec![false; 2], tokens: 1, size: 1 };
    for compute in [products, Compute::SumBesideNorm { norm: 1, columns: 1, epsilon: 0. }] {
        let mut changed = original.clone();
        changed.nodes[0].compute = compute;
        assert_eq!(downstream(&nodes, &original, &changed), None);
    }
}

#[test]
fn a_value_that_is_no_longer_computed_tells_nothing() {
    let original = graph(vec![unary(X), sum(N(0))]);
    let mut changed = original.clone();
    changed.nodes[1].operands[0].value = X;
    assert_eq!(downstream(&last_of_many(&original, MANY), &original, &changed), None);
}

#[test]
fn few_numbers_of_the_input_itself_are_not_told_by_others() {
    // Beside values of many numbers, the input's sum is an output.
    let mut of_input = graph(vec![unary(X), sum(X)]);
    of_input.outputs.push(Output { value: N(0), buffer: 2 });
    assert_eq!(last_of_many(&of_input, MANY), [0]);
    assert_eq!(each_changed(&of_input), [RECORDED, None]);
    // What is behind reads the input where it read a value of many numbers, which another one reads.
    let original = graph(vec![unary(X), sum(N(0)), sum(N(0)), added(N(1), N(2))]);
    let mut changed = original.clone();
    changed.nodes[1].operands[0].value = X;
    assert_eq!(downstream(&last_of_many(&original, MANY), &original, &changed), None);
}
