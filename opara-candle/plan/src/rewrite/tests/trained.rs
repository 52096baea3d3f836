//! Rules for graphs of which gradients are computed.

use super::*;

/// A view of a value from its first element on.
fn strided(value: Value, dims: &[(u64, u64)]) -> Operand {
    let dims = dims.iter().map(|&(len, stride)| Dim { len, stride }).collect();
    Operand { value, first: 0, dims }
}

/// `f(x) @ w + b` in f32, of 3 rows of 4 to 2 columns.
fn activated(is_read: bool) -> Graph {
    let float = |buffer, len| Input { buffer, element: Element::F32, len, is_constant: buffer > 0 };
    let node = |compute, operands, len| Node::new(compute, operands, Element::F32, len);
    let matrix = |value, rows: u64, columns: u64| strided(value, &[(rows, columns), (columns, 1)]);
    let relu = Compute::Recorded(Function::Unary("relu".into()));
    let product = Compute::Linear { activation: None };
    let (weight, bias) = (matrix(Value::Input(1), 2, 4), Operand::whole(Value::Input(2), 2));
    let nodes = vec![
        node(relu, vec![Operand::whole(Value::Input(0), 12)], 12),
        node(product, vec![matrix(Value::Node(0), 3, 4), weight, bias], 6),
    ];
    let mut outputs = vec![Output { value: Value::Node(1), buffer: 9 }];
    if is_read {
        outputs.push(Output { value: Value::Node(0), buffer: 10 });
    }
    Graph { inputs: vec![float(0, 12), float(1, 8), float(2, 2)], nodes, outputs }
}

#[test]
fn a_product_takes_the_activation_that_nothing_else_reads() {
    let mut graph = activated(false);
    assert_eq!(rules::apply_trained(&mut graph).len(), 1);
    assert_eq!(graph.nodes[1].compute, Compute::ActivatedProduct { activation: "relu".into() });
    assert_eq!(graph.nodes[1].operands[0].value, Value::Input(0));
    assert_eq!(graph.live(), [false, true]);
    assert!(rules::apply_trained(&mut activated(true)).is_empty());
}

#[test]
fn products_of_16_bits_and_norms_are_by_rows() {
    let float = |buffer, len| Input { buffer, element: Element::Bf16, len, is_constant: buffer > 0 };
    let node = |function, operands, len| Node::new(Compute::Recorded(function), operands, Element::Bf16, len);
    let vector = |at| Operand::whole(Value::Input(at), 4);
    let x = strided(Value::Node(0), &[(1, 0), (3, 4), (4, 1)]);
    // The transposed weight of a product without a bias.
    let weight = strided(Value::Input(3), &[(1, 0), (4, 1), (2, 4)]);
    let nodes = vec![
        node(Function::LayerNorm(4, 1e-5), vec![Operand::whole(Value::Input(0), 12), vector(1), vector(2)], 12),
        node(Function::Matmul, vec![x, weight], 6),
    ];
    let inputs = vec![float(0, 12), float(1, 4), float(2, 4), float(3, 8)];
    let mut graph = Graph { inputs, nodes, outputs: vec![Output { value: Value::Node(1), buffer: 9 }] };
    let names: Vec<_> = rules::apply_trained(&mut graph).iter().map(|of| of.rule).collect();
    assert_eq!(names, ["norm-of-rows", "product-by-rows"]);
    assert_eq!(graph.nodes[0].compute, Compute::RowNorm { columns: 4, epsilon: 1e-5, is_rms: false });
    assert_eq!(graph.nodes[1].compute, Compute::Linear { activation: None });
    assert_eq!(graph.nodes[1].operands[1].dims[0], Dim { len: 2, stride: 4 });
}

/// `x @ w + y` in 16 bits, of 3 rows of 4 to 2 columns.
fn summed(element: Element, is_read: bool) -> Graph {
    let float = |buffer, len| Input { buffer, element, len, is_constant: buffer == 1 };
    let node = |function, operands, len| Node::new(Compute::Recorded(function), operands, element, len);
    let x = strided(Value::Input(0), &[(1, 0), (3, 4), (4, 1)]);
    let weight = strided(Value::Input(1), &[(1, 0), (4, 1), (2, 4)]);
    let whole = |value| Operand::whole(value, 6);
    let nodes = vec![
        node(Function::Matmul, vec![x, weight], 6),
        node(Function::Binary("add".into()), vec![whole(Value::Input(2)), whole(Value::Node(0))], 6),
    ];
    let mut outputs = vec![Output { value: Value::Node(1), buffer: 9 }];
    if is_read {
        outputs.push(Output { value: Value::Node(0), buffer: 10 });
    }
    Graph { inputs: vec![float(0, 12), float(1, 8), float(2, 6)], nodes, outputs }
}

#[test]
fn a_product_begins_with_what_is_added_to_it() {
    let mut graph = summed(Element::F16, false);
    let names = |graph: &mut Graph| rules::apply_trained(graph).iter().map(|of| of.rule).collect::<Vec<_>>();
    assert_eq!(names(&mut graph), ["product-by-rows", "product-sum"]);
    let sum = &graph.nodes[1];
    assert_eq!((&sum.compute, sum.operands.len()), (&Compute::ProductSum { factor: 1. }, 3));
    assert_eq!(sum.operands[2].value, Value::Input(2));
    assert_eq!(graph.live(), [false, true]);
    // A product that others read stays, and so does one of f32. Two products run beside each other, also if one is scaled.
    let mut two = summed(Element::F16, false);
    two.nodes.insert(1, two.nodes[0].clone());
    let sums = [0, 1].map(|at| Operand::whole(Value::Node(at), 6)).to_vec();
    two.nodes[2].operands = sums;
    two.outputs[0].value = Value::Node(2);
    let mut scaled = two.clone();
    let half = Node::new(
        Compute::Recorded(Function::Affine(0.5, 0.)),
        vec![Operand::whole(Value::Node(1), 6)],
        Element::F16,
        6,
    );
    scaled.nodes.insert(2, half);
    scaled.nodes[3].operands[1].value = Value::Node(2);
    scaled.outputs[0].value = Value::Node(3);
    for mut other in [summed(Element::F16, true), summed(Element::F32, false), two, scaled.clone()] {
        assert!(!names(&mut other).contains(&"product-sum"));
    }
    // One that takes little of the other's time begins with that, also if it is scaled.
    for (value, dims) in [(1, [(1, 0), (3, 64), (64, 1)]), (2, [(1, 0), (64, 1), (2, 64)])] {
        scaled.inputs.push(Input { len: 192 >> value, ..scaled.inputs[value - 1].clone() });
        scaled.nodes[0].operands[value - 1] = strided(Value::Input(2 + value), &dims);
    }
    assert!(names(&mut scaled).contains(&"product-sum"));
    let sum = scaled.nodes.last().unwrap();
    assert_eq!((&sum.compute, sum.operands[2].value), (&Compute::ProductSum { factor: 0.5 }, Value::Node(0)));
}
