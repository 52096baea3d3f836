//! Norms that are written as sums, squares and quotients, beside this library's operators.

use super::*;
use crate::rewrite::choice::{choose, Choice};
use crate::rewrite::set::Set;

/// Normalised rows of the first input, times the second input, plus the third if there is one, both over `vector`; SiLU if asked.
pub(super) fn norm([rows, columns]: [u64; 2], vectors: &[&[(u64, u64)]], is_rms: bool, silu: bool) -> Graph {
    let len = rows * columns;
    let all = |value: Value, len: u64| operand(value, 0, &[(len, 1)]);
    let each = |node: usize| operand(Value::Node(node), 0, &[(rows, 1), (columns, 0)]);
    let mut nodes: Vec<Node> = Vec::new();
    let mut made = |function: Function, operands: Vec<Operand>, len: u64| {
        nodes.push(node(function, operands, len));
        nodes.len() - 1
    };
    let part = Function::Affine(1. / columns as f32, 0.);
    let mut distance = Value::Input(0);
    if !is_rms {
        let sum = made(Function::RowSum(columns), vec![all(distance, len)], rows);
        let mean = made(part.clone(), vec![all(Value::Node(sum), rows)], rows);
        distance = Value::Node(made(Function::Binary("sub".into()), vec![all(distance, len), each(mean)], len));
    }
    let squares = made(Function::Unary("sqr".into()), vec![all(distance, len)], len);
    let sum = made(Function::RowSum(columns), vec![all(Value::Node(squares), len)], rows);
    let mean = made(part, vec![all(Value::Node(sum), rows)], rows);
    let plus = made(Function::Affine(1., 1e-5), vec![all(Value::Node(mean), rows)], rows);
    let root = made(Function::Unary("sqrt".into()), vec![all(Value::Node(plus), rows)], rows);
    let mut y = made(Function::Binary("div".into()), vec![all(distance, len), each(root)], len);
    let mut inputs = vec![input(len, false)];
    for (at, (name, dims)) in ["mul", "add"].into_iter().zip(vectors).enumerate() {
        let vector = operand(Value::Input(1 + at), 0, dims);
        y = made(Function::Binary(name.into()), vec![all(Value::Node(y), len), vector], len);
        inputs.push(input(dims.iter().filter(|dim| dim.1 > 0).map(|dim| dim.0).product(), true));
    }
    if silu {
        y = made(Function::Unary("silu".into()), vec![all(Value::Node(y), len)], len);
    }
    Graph { inputs, outputs: vec![Output { value: Value::Node(y), buffer: 9 }], nodes }
}

/// A graph of a norm computes the same as by one operator, which this rule puts there, and no less accurately.
fn is_one_operator(graph: &Graph, rule: &str, mean: f64) -> Result<()> {
    let of = |(at, input): (usize, &Input)| numbers(input.len, [0.7, 1.3, 0.9][at]);
    let mut inputs = graph.inputs.iter().enumerate().map(of).collect::<Result<Vec<_>>>()?;
    inputs[0] = (&inputs[0] + mean)?;
    let expected = &evaluate(graph, &inputs, Arithmetic::In(DType::F64))?[0];
    let mut changed = graph.clone();
    assert_eq!(apply(&mut changed, &[]), 1);
    assert_eq!(changed.live().iter().filter(|live| **live).count(), 1);
    for graph in [graph, &changed] {
        assert!(largest_difference(&evaluate(graph, &inputs, Arithmetic::Typed)?[0], expected)? < 1e-4, "{rule}");
    }
    let outputs = evaluate(graph, &inputs, Arithmetic::Typed)?;
    let set = Set::new(graph, inputs, outputs)?;
    let Choice { fits, notes, .. } = choose(graph, &[], &[set])?.unwrap();
    assert!(fits.iter().all(|fit| fit.rule == rule), "{notes:?}");
    Ok(())
}

#[test]
fn norms_of_rows_compute_the_same_as_one_operator() -> Result<()> {
    let rows: &[(u64, u64)] = &[(5, 0), (24, 1)];
    for (is_rms, vectors) in [(true, 1), (false, 1), (false, 2)] {
        // A mean that is large beside the distances from it.
        for mean in [0., 30.] {
            is_one_operator(&norm([5, 24], &[rows; 2][..vectors], is_rms, false), "row-norm", mean)?;
        }
    }
    Ok(())
}

#[test]
fn norms_of_channels_compute_the_same_as_one_operator() -> Result<()> {
    // Two images of six channels of 20 pixels, in three groups.
    let channels: &[(u64, u64)] = &[(2, 0), (6, 1), (20, 0)];
    for silu in [false, true] {
        is_one_operator(&norm([6, 40], &[channels; 2], false, silu), "group-norm", 1.)?;
    }
    Ok(())
}

#[test]
fn a_convolution_a_norm_of_its_channels_and_a_convolution_compute_the_same() -> Result<()> {
    // Images of four channels of 5 x 5, in two groups; the second convolution reads what the first norm gives.
    let channels: &[(u64, u64)] = &[(2, 0), (4, 1), (25, 0)];
    let norm = norm([4, 50], &[channels; 2], false, true);
    let image = |value: Value| operand(value, 0, &[(2, 100), (4, 25), (5, 5), (5, 1)]);
    let weight = |input: usize| operand(Value::Input(input), 0, &[(144, 1)]);
    let moved = |operand: &Operand| match operand.value {
        Value::Input(0) => Operand { value: Value::Node(0), ..operand.clone() },
        Value::Node(at) => Operand { value: Value::Node(at + 1), ..operand.clone() },
        Value::Input(_) => operand.clone(),
    };
    let behind =
        norm.nodes.iter().map(|node| Node { operands: node.operands.iter().map(moved).collect(), ..node.clone() });
    let mut nodes = vec![node(Function::Convolution(window(1, 1)), vec![image(Value::Input(0)), weight(3)], 200)];
    nodes.extend(behind);
    let last = Value::Node(nodes.len() - 1);
    nodes.push(node(Function::Convolution(window(1, 1)), vec![image(last), weight(4)], 200));
    let inputs = norm.inputs.iter().cloned().chain([input(144, true), input(144, true)]).collect();
    let graph = Graph { inputs, outputs: vec![Output { value: Value::Node(nodes.len() - 1), buffer: 9 }], nodes };
    let inputs = [numbers(200, 0.7)?, numbers(4, 1.3)?, numbers(4, 0.9)?, numbers(144, 0.4)?, numbers(144, 0.6)?];
    let expected = &evaluate(&graph, &inputs, Arithmetic::In(DType::F64))?[0];
    let mut changed = graph.clone();
    assert_eq!((apply(&mut changed, &[]), changed.live().iter().filter(|live| **live).count()), (2, 3));
    assert!(largest_difference(&evaluate(&changed, &inputs, Arithmetic::Typed)?[0], expected)? < 1e-4);
    Ok(())
}
