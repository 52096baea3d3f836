//! Rules for graphs of which gradients are computed.

use super::*;

/// `f(x) @ w + b` in f32, of 3 rows of 4 to 2 columns.
fn activated(is_read: bool) -> Graph {
    let float = |buffer, len| Input { buffer, element: Element::F32, len, is_constant: buffer > 0 };
    let node = |compute, operands, len| Node::new(compute, operands, Element::F32, len);
    let matrix = |value, rows: u64, columns: u64| {
        let dims = [(rows, columns), (columns, 1)].map(|(len, stride)| Dim { len, stride });
        Operand { value, first: 0, dims: dims.to_vec() }
    };
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
