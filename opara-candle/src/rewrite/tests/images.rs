//! Images between zeros, means of planes, and products of images of one pixel.

use super::*;

pub(super) fn all(value: Value, len: u64) -> Operand {
    operand(value, 0, &[(len, 1)])
}

pub(super) fn concat(parts: Vec<Operand>, rows: u64, widths: &[u64]) -> Node {
    let len = rows * widths.iter().sum::<u64>();
    let compute = Compute::Concat { rows, widths: widths.to_vec() };
    Node::new(compute, parts, Element::F32, len)
}

/// Convolutions of each of 6 channels of two images of 7 x 5 by itself, with a row of zeros below and a column of them on either side,
/// their concatenation, and `x * sigmoid(x)`.
fn padded() -> Graph {
    let mut nodes = vec![
        node(Function::Zeros, vec![], 60),
        node(Function::Zeros, vec![], 96),
        concat(vec![all(Value::Input(0), 420), all(Value::Node(0), 60)], 12, &[35, 5]),
        concat(vec![all(Value::Node(1), 96), all(Value::Node(2), 480), all(Value::Node(1), 96)], 96, &[1, 5, 1]),
    ];
    for channel in 0..6 {
        let image = operand(Value::Node(3), channel * 56, &[(2, 336), (1, 56), (8, 7), (7, 1)]);
        let weight = operand(Value::Input(1), channel * 9, &[(9, 1)]);
        nodes.push(node(Function::Convolution(window(0, 1)), vec![image, weight], 60));
    }
    nodes.push(concat((4..10).map(|of| all(Value::Node(of), 60)).collect(), 2, &[30; 6]));
    nodes.push(node(Function::Unary("sigmoid".into()), vec![all(Value::Node(10), 360)], 360));
    nodes.push(node(Function::Binary("mul".into()), vec![all(Value::Node(10), 360), all(Value::Node(11), 360)], 360));
    let inputs = vec![input(420, false), input(54, true)];
    Graph { inputs, nodes, outputs: vec![Output { value: Value::Node(12), buffer: 9 }] }
}

/// A graph, and what rules made of it, compute the same, in their types and in double precision.
fn both_compute(graphs: [&Graph; 2], inputs: &[Tensor], expected: &Tensor) -> Result<()> {
    for graph in graphs {
        for arithmetic in [Arithmetic::Typed, Arithmetic::In(DType::F64)] {
            assert!(largest_difference(&evaluate(graph, inputs, arithmetic)?[0], expected)? < 1e-5, "{arithmetic:?}");
        }
    }
    Ok(())
}

#[test]
fn zeros_around_an_image_compute_the_same_as_padding() -> Result<()> {
    let inputs = [numbers(420, 0.7)?, numbers(54, 1.3)?];
    let x = inputs[0].reshape((2, 6, 7, 5))?.pad_with_zeros(2, 0, 1)?.pad_with_zeros(3, 1, 1)?;
    let expected = x.conv2d(&inputs[1].reshape((6, 1, 3, 3))?, 0, 1, 1, 6)?.silu()?;
    let mut changed = padded();
    assert_eq!(apply(&mut changed, &[]), 3);
    assert_eq!(changed.live().iter().filter(|live| **live).count(), 1);
    both_compute([&padded(), &changed], &inputs, &expected)
}

/// Means of two images of 5 channels of 4 x 6, by columns and then rows, and a product with a weight of 3 rows, a bias and SiLU, as
/// candle convolves images of one pixel.
fn squeezed() -> Graph {
    let columns = operand(Value::Input(0), 0, &[(10, 24), (6, 1), (4, 6)]);
    let pixels = operand(Value::Node(3), 0, &[(2, 5), (5, 1), (1, 1), (1, 1)]);
    let window = Window { kernel: [1; 2], ..window(0, 1) };
    let nodes = vec![
        node(Function::RowSum(4), vec![columns], 60),
        node(Function::Affine(0.25, 0.), vec![all(Value::Node(0), 60)], 60),
        node(Function::RowSum(6), vec![all(Value::Node(1), 60)], 10),
        node(Function::Affine(1. / 6., 0.), vec![all(Value::Node(2), 10)], 10),
        node(Function::Convolution(window), vec![pixels, all(Value::Input(1), 15)], 6),
        node(
            Function::Binary("add".into()),
            vec![all(Value::Node(4), 6), operand(Value::Input(2), 0, &[(2, 0), (3, 1)])],
            6,
        ),
        node(Function::Unary("silu".into()), vec![all(Value::Node(5), 6)], 6),
    ];
    let inputs = vec![input(240, false), input(15, true), input(3, true)];
    Graph { inputs, nodes, outputs: vec![Output { value: Value::Node(6), buffer: 9 }] }
}

#[test]
fn means_and_products_of_pixels_compute_the_same() -> Result<()> {
    let inputs = [numbers(240, 0.7)?, numbers(15, 1.3)?, numbers(3, 0.9)?];
    let mean = inputs[0].reshape((2, 5, 24))?.mean(2)?;
    let expected = mean.matmul(&inputs[1].reshape((3, 5))?.t()?)?.broadcast_add(&inputs[2])?.silu()?;
    let mut changed = squeezed();
    assert_eq!(apply(&mut changed, &[]), 5);
    assert_eq!(changed.live().iter().filter(|live| **live).count(), 2);
    for graph in [squeezed(), changed] {
        for arithmetic in [Arithmetic::Typed, Arithmetic::In(DType::F64)] {
            let got = &evaluate(&graph, &inputs, arithmetic)?[0];
            assert!(largest_difference(got, &expected)? < 1e-5, "{arithmetic:?}");
        }
    }
    // Images whose channels lie beside each other.
    let last = inputs[0].reshape((2, 5, 4, 6))?.permute((0, 2, 3, 1))?.contiguous()?.permute((0, 3, 1, 2))?;
    let inputs = [last, inputs[1].clone(), inputs[2].clone()];
    let mut changed = squeezed();
    apply(&mut changed, &[]);
    assert!(largest_difference(&evaluate(&changed, &inputs, Arithmetic::Typed)?[0], &expected)? < 1e-5);
    Ok(())
}

/// Convolutions of each of 6 channels of two images of 7 x 5 by itself, of `max(x, 0)`, their sum with the images, and `max(x, 0)` of that
/// beside the images.
fn between_relus() -> Graph {
    let relu = |of: Operand, len| node(Function::Unary("relu".into()), vec![of], len);
    let mut nodes = vec![relu(all(Value::Input(0), 420), 420)];
    for channel in 0..6 {
        let image = operand(Value::Node(0), channel * 35, &[(2, 210), (1, 35), (7, 5), (5, 1)]);
        let weight = operand(Value::Input(1), channel * 9, &[(9, 1)]);
        nodes.push(node(Function::Convolution(window(1, 1)), vec![image, weight], 70));
    }
    nodes.push(concat((1..7).map(|of| all(Value::Node(of), 70)).collect(), 2, &[35; 6]));
    let summands = vec![all(Value::Node(7), 420), all(Value::Input(0), 420)];
    nodes.push(node(Function::Binary("add".into()), summands, 420));
    nodes.push(concat(vec![all(Value::Input(0), 420), all(Value::Node(8), 420)], 2, &[210; 2]));
    nodes.push(relu(all(Value::Node(9), 840), 840));
    let inputs = vec![input(420, false), input(54, true)];
    Graph { inputs, nodes, outputs: vec![Output { value: Value::Node(10), buffer: 9 }] }
}

#[test]
fn relu_before_a_convolution_and_behind_a_concatenation_computes_the_same() -> Result<()> {
    let inputs = [numbers(420, 0.7)?, numbers(54, 1.3)?];
    let x = inputs[0].reshape((2, 6, 7, 5))?;
    let y = x.relu()?.conv2d(&inputs[1].reshape((6, 1, 3, 3))?, 1, 1, 1, 6)?;
    let expected = Tensor::cat(&[&x, &(y + &x)?], 1)?.relu()?;
    let mut changed = between_relus();
    assert_eq!(apply(&mut changed, &[]), 4);
    assert_eq!(changed.live().iter().filter(|live| **live).count(), 2);
    both_compute([&between_relus(), &changed], &inputs, &expected)
}
